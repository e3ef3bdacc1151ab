"""Figure 5 as JSON and as a table, the paper's numbers beside ours."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from kvflow_server.bench.report import versions, where_it_ran
from kvflow_server.bench.results import Spread, Workflow, paired, summarise
from kvflow_server.bench.results import outputs_identical as identical
from kvflow_server.emulated.costs import Costs

from .belady import belady_s, least_loaded
from .fig5 import MixResult, TestbedResult
from .scale import AGENTS, Effort, wanted
from .testbeds import Mix, Paper

__all__ = [
    "Entry",
    "build_report",
    "details",
    "mix_report",
    "show",
    "testbed_report",
    "verdict",
]

Entry = dict[str, Any]


def build_report(
    results: Sequence[TestbedResult], effort: Effort, hardware: str | None = None
) -> Entry:
    """Plain values. `mixes.<testbed>.<fixed/dynamic/output, the paper's>` has, in
    seconds, the median of each system and the bound `belady`, and `speedup`."""
    mixes = {
        result.testbed.name: {
            str(mix): mix_report(result, mix, found, effort)
            for mix, found in result.mixes.items()
        }
        for result in results
    }
    return {
        "figure": "5",
        **where_it_ran(hardware),
        "effort": asdict(effort),
        "versions": versions(),
        "testbeds": {result.testbed.name: testbed_report(result) for result in results},
        "mixes": mixes,
        "verdict": verdict(mixes),
    }


def testbed_report(result: TestbedResult) -> Entry:
    testbed, servers = result.testbed, result.servers
    return {
        "device": asdict(testbed.device),
        "model": asdict(testbed.model),
        "pool_tokens": testbed.pool_tokens,
        "emulation": asdict(servers),
    }


def mix_report(
    result: TestbedResult, mix: Mix, found: MixResult, effort: Effort
) -> Entry:
    """Speed-ups are over recomputation, in the median of paired workflows."""
    small = effort.small(mix)
    bound = _Bound.of(found.costs, result.servers.pool_tokens, small)
    seconds = {
        name: statistics.median(run.seconds for run in runs)
        for name, runs in found.workflows.items()
    }
    optimum = bound.seconds(seconds["ideal"])
    spreads = _spreads(found, bound)
    return {
        **seconds,
        "belady": optimum,
        "speedup": {
            "belady": seconds["recompute"] / optimum,
            **{
                name.removesuffix("_over_recompute"): spread.median
                for name, spread in spreads.items()
                if name != "kvflow_over_belady"
            },
        },
        "paper": _paper(result.testbed.fig5[mix]),
        "kvflow_over_belady": spreads["kvflow_over_belady"].median,
        "load_below_run": bound.load_s < seconds["ideal"] / AGENTS,
        "proportion": {
            "wanted": asdict(wanted(result.testbed, mix)),
            "reached": _reached(seconds, bound.load_s),
        },
        "costs": found.costs.to_dict(),
        "least_loaded_tokens": least_loaded(AGENTS, bound.held) * small.fixed,
        "spread": {name: asdict(spread) for name, spread in spreads.items()},
        **details(found, compared=result.servers.emulated),
    }


@dataclass(frozen=True, slots=True)
class _Bound:
    """Of a mix on the emulated accelerator."""

    load_s: float
    """Of one fixed prompt, at the bus's own rate."""
    held: float
    """Fixed prompts that the pool holds beside what a call adds."""

    @classmethod
    def of(cls, costs: Costs, pool_tokens: int, small: Mix) -> _Bound:
        room = pool_tokens - small.dynamic - small.output
        return cls(costs.copy_seconds(small.fixed), room / small.fixed)

    def seconds(self, ideal_s: float) -> float:
        return belady_s(ideal_s, self.load_s, AGENTS, self.held)


def _spreads(found: MixResult, bound: _Bound) -> dict[str, Spread]:
    runs = found.workflows
    others = [name for name in runs if name != "recompute"]
    spreads = {
        f"{name}_over_recompute": paired(runs, "recompute", name) for name in others
    }
    spreads |= {
        f"kvflow_over_{name}": paired(runs, name, "kvflow")
        for name in others
        if name not in ("kvflow", "ideal")
    }
    pairs = zip(runs["kvflow"], runs["ideal"], strict=True)
    spreads["kvflow_over_belady"] = Spread.of(
        [run.seconds / bound.seconds(ideal.seconds) for run, ideal in pairs]
    )
    return spreads


def details(found: MixResult, *, compared: bool) -> Entry:
    """`compared`: answers say something, so they must be the same on all systems."""
    runs = found.workflows
    return {
        "runs": {name: [run.seconds for run in own] for name, own in runs.items()},
        "tokens": {name: summarise(own)["tokens"] for name, own in runs.items()},
        "call_s": {name: _by_position(own) for name, own in runs.items()},
        "counters": {name: dict(own) for name, own in found.counters.items()},
        "outputs_identical": identical(runs) if compared else None,
    }


def _paper(paper: Paper) -> Entry:
    return {
        "hicache": paper.hicache,
        "kvflow": paper.kvflow,
        "kvflow_over_hicache": paper.over_hicache,
    }


def _reached(seconds: Mapping[str, float], load: float) -> Entry:
    """From the measured workflows; the load at the bus's own rate."""
    prefill = (seconds["recompute"] - seconds["ideal"]) / AGENTS
    if prefill <= 0:  # lost in the noise
        return {"load": None, "hit": None}
    return {"load": load / prefill, "hit": seconds["ideal"] / AGENTS / prefill}


def _by_position(runs: Sequence[Workflow]) -> list[float]:
    """Median seconds of the first call, the second, and so on."""
    calls = zip(*(run.calls for run in runs), strict=True)
    return [statistics.median(call.seconds for call in column) for column in calls]


def verdict(mixes: Mapping[str, Mapping[str, Entry]]) -> Entry:
    """What issue 6 asks of Figure 5, and which mixes miss it."""
    every = [
        (f"{testbed} {name}", mix)
        for testbed, own in mixes.items()
        for name, mix in own.items()
    ]
    lowest = {name: _closest(mix["spread"]) for name, mix in every}
    slower = {name: value for name, value in lowest.items() if value < 0.99}
    short = {
        name: [mix["speedup"]["kvflow"], mix["paper"]["kvflow"]]
        for name, mix in every
        if mix["speedup"]["kvflow"] < mix["paper"]["kvflow"]
    }
    far = {
        name: mix["kvflow_over_belady"]
        for name, mix in every
        if mix["load_below_run"] and mix["kvflow_over_belady"] > 1.05
    }
    return {
        "mixes": len(every),
        "slower_than_a_baseline": slower,
        "reach_the_paper": len(every) - len(short),
        "short_of_the_paper": short,
        "over_belady_by_5_percent": far,
        "outputs_identical": all(
            mix["outputs_identical"] is not False for _, mix in every
        ),
    }


def _closest(spreads: Mapping[str, Entry]) -> float:
    """KVFlow's speed-up over the baseline that comes closest to it, or is ahead: stock
    SGLang's. Its own modes are no baselines."""
    return min(
        float(spread["median"])
        for name, spread in spreads.items()
        if name.startswith("kvflow_over_")
        and name.removeprefix("kvflow_over_").startswith(("hicache", "recompute"))
    )


def show(console: Console, report: Entry) -> None:
    """Print what `build_report` returned."""
    for testbed, mixes in report["mixes"].items():
        console.print(_table(testbed, mixes))
        if extra := _others(mixes):
            console.print(extra)
        for name, mix in mixes.items():
            console.print(f"{name}: {mix['costs']['source']}.", style="dim")
    _show_verdict(console, report["verdict"])
    console.print(report["note"], style="dim")


def _table(testbed: str, mixes: Mapping[str, Entry]) -> Table:
    table = Table(
        title=f"{testbed}: seconds per workflow; speed-ups over recomputation, "
        "the paper's in brackets; load and run time over prefill, wanted in brackets"
    )
    table.add_column("fixed/dyn/out", no_wrap=True)
    for name in ("recompute", "hicache", "kvflow", "ideal", "belady"):
        table.add_column(name, justify="right")
    for name in ("hicache x", "kvflow x", "over hicache", "of belady"):
        table.add_column(name, justify="right")
    for name in ("load", "run"):
        table.add_column(name, justify="right", style="dim")
    for name, mix in mixes.items():
        ours, paper = mix["speedup"], mix["paper"]
        aim, got = mix["proportion"]["wanted"], mix["proportion"]["reached"]
        pairs = [("hicache", "hicache"), ("kvflow", "kvflow")]
        pairs.append(("kvflow_over_hicache", "kvflow_over_hicache"))
        table.add_row(
            name,
            *(
                f"{mix[s]:.2f}"
                for s in ("recompute", "hicache", "kvflow", "ideal", "belady")
            ),
            *(f"{ours[a]:.3f} ({paper[b]:.3f})" for a, b in pairs),
            f"{mix['kvflow_over_belady']:.3f}",
            *(f"{_text(got[key])} ({aim[key]:.2f})" for key in ("load", "hit")),
        )
    return table


def _others(mixes: Mapping[str, Entry]) -> Table | None:
    """Speed-ups of the systems that the figure itself does not have."""
    own = {"hicache", "kvflow", "ideal", "recompute"}
    names = [name for name in next(iter(mixes.values()))["runs"] if name not in own]
    if not names:
        return None
    table = Table(title="Speed-ups over recomputation")
    table.add_column("fixed/dyn/out", no_wrap=True)
    for name in ("hicache", *names, "kvflow"):
        table.add_column(name, justify="right")
    for mix, entry in mixes.items():
        values = (entry["speedup"][name] for name in ("hicache", *names, "kvflow"))
        table.add_row(mix, *(f"{value:.3f}" for value in values))
    return table


def _text(value: float | None) -> str:
    return "?" if value is None else f"{value:.2f}"


def _show_verdict(console: Console, found: Entry) -> None:
    console.print(
        f"KVFlow reaches the paper's speed-up over recomputation in "
        f"{found['reach_the_paper']} of {found['mixes']} mixes."
    )
    for title, key in (
        ("Short of it", "short_of_the_paper"),
        ("Slower than a baseline", "slower_than_a_baseline"),
        ("More than 5% over the bound", "over_belady_by_5_percent"),
    ):
        for name, value in found[key].items():
            values = value if isinstance(value, list) else [value]
            text = ", the paper ".join(f"{number:.3f}" for number in values)
            console.print(f"{title}: {name}, {text}", style="yellow")
    same = found["outputs_identical"]
    console.print(
        f"Outputs {'identical' if same else 'DIFFER'} across systems, token by token.",
        style="green" if same else "bold red",
    )
