"""Branches and the dynamic workflow as JSON and as a table."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from kvflow_server.bench.report import versions, where_it_ran
from kvflow_server.bench.results import Workflow, paired

from .courses import Course
from .fig5 import SYSTEMS_OF_FIG5, MixResult, TestbedResult
from .offline import least_brought_in, prompt_parts
from .report import Entry, details, testbed_report
from .scale import Effort
from .testbeds import Mix

__all__ = ["SYSTEMS_OF_A_COURSE", "build_report_course", "show_course"]

SYSTEMS_OF_A_COURSE = (*SYSTEMS_OF_FIG5, "kvflow-steps", "kvflow-unlearnt")


def build_report_course(
    results: Sequence[TestbedResult],
    effort: Effort,
    course: Course,
    hardware: str | None = None,
) -> Entry:
    """Plain values. `mixes.<testbed>.<fixed/dynamic/output>` has the median seconds of
    each system and `speedup.<system>_over_<system>`, medians over paired workflows;
    `belady` is a bound, not a system: see `_optimum`."""
    return {
        "figure": course.name,
        "about": course.about,
        **where_it_ran(hardware),
        "effort": asdict(effort),
        "versions": versions(),
        "testbeds": {result.testbed.name: testbed_report(result) for result in results},
        "mixes": {
            result.testbed.name: {
                str(mix): _mix(result, found)
                | _optimum(result, mix, found, effort, course)
                for mix, found in result.mixes.items()
            }
            for result in results
        },
    }


def _mix(result: TestbedResult, found: MixResult) -> Entry:
    runs = found.workflows
    spreads = {
        f"{over}_over_{base}": paired(runs, base, over)
        for over in runs
        for base in runs
        if over != base
    }
    return {
        **{name: _median(own) for name, own in runs.items()},
        "speedup": {name: spread.median for name, spread in spreads.items()},
        "spread": {name: asdict(spread) for name, spread in spreads.items()},
        **details(found, compared=result.servers.emulated),
    }


def _optimum(
    result: TestbedResult, mix: Mix, found: MixResult, effort: Effort, course: Course
) -> Entry:
    """The offline optimum of the way that the measured runs took, in tokens of fixed
    prompts and in seconds of a workflow.

    In time it is the longer of the computing (the pool that never evicts) and of the bus,
    if it carries no more than the least tokens and all that is missed is loaded. A
    system that computes part of that instead can be below it, where the bus is the longer
    of the two.
    """
    runs, costs = found.workflows, found.costs
    small = effort.small(mix)
    numbers = {f"agent-{number}": number for number in range(course.agents)}
    calls = [
        prompt_parts(course, numbers[call.agent], small.fixed)
        for run in runs["ideal"]
        for call in run.calls
    ]
    pool, beside = result.servers.pool_tokens, small.dynamic + small.output
    least = least_brought_in(calls, beside, pool) / len(runs["ideal"])
    token_s = costs.kv_bytes / costs.bus_bytes_per_s
    ideal_s = _median(runs["ideal"])
    pairs = zip(runs["kvflow"], runs["ideal"], strict=True)
    times = [run.seconds / max(best.seconds, least * token_s) for run, best in pairs]
    return {
        "belady": max(ideal_s, least * token_s),
        "least_loaded_tokens": least,
        "kvflow_over_belady": statistics.median(times),
        "load_below_run": small.fixed * token_s < ideal_s / course.calls,
        "costs": costs.to_dict(),
    }


def _median(runs: Sequence[Workflow]) -> float:
    return statistics.median(run.seconds for run in runs)


def show_course(console: Console, report: Entry) -> None:
    """Print what `build_report_course` returned."""
    console.print(report["about"])
    for testbed, mixes in report["mixes"].items():
        for mix, entry in mixes.items():
            console.print(_table(f"{testbed} {mix}", entry))
            console.print(
                f"The bound (Belady) is {entry['belady']:.3f} s and "
                f"{entry['least_loaded_tokens']:,.0f} tokens brought in; KVFlow takes "
                f"{entry['kvflow_over_belady']:.3f} times as long.",
                style="dim",
            )
    console.print(report["note"], style="dim")


def _table(title: str, entry: Mapping[str, Any]) -> Table:
    table = Table(title=title)
    table.add_column("system", no_wrap=True)
    for name in ("median s", "over recompute", "over hicache"):
        table.add_column(name, justify="right")
    for name in ("device", "host", "recomputed"):
        table.add_column(name, justify="right", style="dim")
    for name, tokens in entry["tokens"].items():
        ratios = (
            entry["speedup"].get(f"{name}_over_{base}", 1.0)
            for base in ("recompute", "hicache")
        )
        table.add_row(
            name,
            f"{entry[name]:.3f}",
            *(f"{ratio:.3f}" for ratio in ratios),
            *(f"{tokens[kind]:,.0f}" for kind in ("device", "host", "recomputed")),
        )
    return table
