"""Figure 6 as JSON and as a table, the paper's numbers beside ours."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from kvflow_server.bench.report import versions, where_it_ran
from kvflow_server.bench.results import Spread, summarise
from kvflow_server.bench.results import outputs_identical as identical

from .fig6 import Block, CrowdEffort, CrowdResult
from .report import Entry
from .scale import Scale, scaled
from .testbeds import Paper

__all__ = ["build_report6", "show6"]


def build_report6(
    results: Sequence[CrowdResult],
    effort: CrowdEffort,
    figure: str = "6",
    hardware: str | None = None,
) -> Entry:
    """Plain values. `crowds.<testbed>.<fixed>x<concurrency, the paper's>` has, by
    system, `throughput` (workflows per second, the median of the blocks) and `latency`
    (seconds of a workflow), and `speedup`, ratios of throughputs of paired blocks."""
    crowds: dict[str, Entry] = {}
    for result in results:
        name = result.crowded.testbed.name
        crowds.setdefault(name, {})[str(result.crowd)] = _crowd(result, effort)
    every = [
        (f"{testbed} {name}", crowd)
        for testbed, own in crowds.items()
        for name, crowd in own.items()
    ]
    return {
        "figure": figure,
        **where_it_ran(hardware),
        "effort": asdict(effort),
        "versions": versions(),
        "crowds": crowds,
        "verdict": {
            "slower_than_a_baseline": {
                name: worst
                for name, crowd in every
                if (worst := _worst(crowd["speedup"])) < 0.99
            },
            "short_of_the_paper": {
                name: [
                    crowd["speedup"]["kvflow_over_recompute"],
                    crowd["paper"]["kvflow"],
                ]
                for name, crowd in every
                if crowd["speedup"]["kvflow_over_recompute"] < crowd["paper"]["kvflow"]
            },
        },
    }


def _worst(speedups: Mapping[str, float]) -> float:
    """KVFlow against the closest of the baselines, stock SGLang's."""
    return min(
        ratio
        for name, ratio in speedups.items()
        if name.startswith(("kvflow_over_hicache", "kvflow_over_recompute"))
    )


def _crowd(result: CrowdResult, effort: CrowdEffort) -> Entry:
    blocks = result.blocks
    spreads = {
        f"{over}_over_{base}": _paired(blocks[over], blocks[base])
        for base in blocks
        for over in blocks
        if over != base and (base == "recompute" or over == "kvflow")
    }
    return {
        "throughput": {
            name: statistics.median(block.throughput for block in own)
            for name, own in blocks.items()
        },
        "latency": {name: _latency(own) for name, own in blocks.items()},
        "speedup": {name: spread.median for name, spread in spreads.items()},
        "paper": _paper(result.paper),
        "concurrency": result.concurrency,
        "emulation": asdict(result.servers),
        "costs": result.costs.to_dict(),
        "proportion": _proportion(result, effort.scale),
        "spread": {name: asdict(spread) for name, spread in spreads.items()},
        "blocks": {name: [b.seconds for b in own] for name, own in blocks.items()},
        "tokens": {
            name: summarise([run for block in own for run in block.workflows])["tokens"]
            for name, own in blocks.items()
        },
        "counters": result.counters,
        "outputs_identical": _identical(blocks) if result.servers.emulated else None,
    }


def _identical(blocks: Mapping[str, Sequence[Block]]) -> bool:
    return identical(
        {
            name: [run for block in own for run in block.workflows]
            for name, own in blocks.items()
        }
    )


def _paired(above: Sequence[Block], below: Sequence[Block]) -> Spread:
    pairs = zip(above, below, strict=True)
    return Spread.of([a.throughput / b.throughput for a, b in pairs])


def _latency(blocks: Sequence[Block]) -> Entry:
    seconds = sorted(run.seconds for block in blocks for run in block.workflows)
    return {
        "p50": statistics.median(seconds),
        "p99": seconds[min(len(seconds) - 1, int(0.99 * len(seconds)))],
        "n": len(seconds),
    }


def _paper(paper: Paper) -> Entry:
    return {
        "hicache": paper.hicache,
        "kvflow": paper.kvflow,
        "kvflow_over_hicache": paper.over_hicache,
    }


def _proportion(result: CrowdResult, scale: Scale) -> Entry:
    """Computing all clients' fixed prompts of one agent over decoding their answers,
    whose first tokens come of the prefill."""
    testbed, crowd = result.crowded.testbed, result.crowd
    prefill = testbed.prefill_s(crowd.mix.fixed) * crowd.concurrency
    steps = scaled(crowd.mix, scale.factor, scale.most_output).output - 1
    return {
        "wanted": prefill / (testbed.crowd_step_s(crowd) * (crowd.mix.output - 1)),
        "reached": result.prefill_s / (result.step_s * max(1, steps)),
    }


def show6(console: Console, report: Entry) -> None:
    """Print what `build_report6` returned."""
    for testbed, crowds in report["crowds"].items():
        for name, crowd in crowds.items():
            console.print(_table(f"{testbed} {name}", crowd))
            same = crowd["outputs_identical"] is not False
            aim, got = crowd["proportion"]["wanted"], crowd["proportion"]["reached"]
            console.print(
                f"Prefill over decoding {got:.2f}, wanted {aim:.2f}; outputs "
                f"{'identical' if same else 'not identical: batches differ'}.",
                style="dim",
            )
    for title, key in (
        ("Short of the paper", "short_of_the_paper"),
        ("Slower than a baseline", "slower_than_a_baseline"),
    ):
        for name, value in report["verdict"][key].items():
            console.print(f"{title}: {name}, {value}", style="yellow")
    console.print(report["note"], style="dim")


def _table(title: str, crowd: Mapping[str, Any]) -> Table:
    table = Table(title=f"{title}, here {crowd['concurrency']} at the same time")
    table.add_column("system", no_wrap=True)
    for name in ("workflows/s", "p50 s", "p99 s", "over recompute", "the paper"):
        table.add_column(name, justify="right")
    for name in ("device", "host", "recomputed"):
        table.add_column(name, justify="right", style="dim")
    for name, rate in crowd["throughput"].items():
        latency, tokens = crowd["latency"][name], crowd["tokens"][name]
        ours = crowd["speedup"].get(f"{name}_over_recompute", 1.0)
        paper = crowd["paper"].get(name)
        table.add_row(
            name,
            f"{rate:.2f}",
            f"{latency['p50']:.2f}",
            f"{latency['p99']:.2f}",
            f"{ours:.3f}",
            "" if paper is None else f"{paper:.3f}",
            *(f"{tokens[kind]:,.0f}" for kind in ("device", "host", "recomputed")),
        )
    return table
