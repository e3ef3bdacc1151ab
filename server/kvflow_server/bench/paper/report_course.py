"""Branches and the dynamic workflow as JSON and as a table."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from kvflow_server.bench.report import EMULATED_DEVICE, versions
from kvflow_server.bench.results import Workflow, paired

from .courses import Course
from .fig5 import MixResult, TestbedResult
from .report import Entry, details, testbed_report
from .scale import Effort

__all__ = ["build_report_course", "show_course"]


def build_report_course(
    results: Sequence[TestbedResult], effort: Effort, course: Course
) -> Entry:
    """Plain values. `mixes.<testbed>.<fixed/dynamic/output>` has the median seconds of
    each system and `speedup.<system>_over_<system>`, medians over paired workflows."""
    return {
        "figure": course.name,
        "about": course.about,
        "emulated": True,
        "note": EMULATED_DEVICE,
        "effort": asdict(effort),
        "versions": versions(),
        "testbeds": {result.testbed.name: testbed_report(result) for result in results},
        "mixes": {
            result.testbed.name: {
                str(mix): _mix(found) for mix, found in result.mixes.items()
            }
            for result in results
        },
    }


def _mix(found: MixResult) -> Entry:
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
        **details(found),
    }


def _median(runs: Sequence[Workflow]) -> float:
    return statistics.median(run.seconds for run in runs)


def show_course(console: Console, report: Entry) -> None:
    """Print what `build_report_course` returned."""
    console.print(report["about"])
    for testbed, mixes in report["mixes"].items():
        for mix, entry in mixes.items():
            console.print(_table(f"{testbed} {mix}", entry))
    console.print(EMULATED_DEVICE, style="dim")


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
