"""The report of an experiment: JSON for machines, tables for people."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rich.console import Console
from rich.table import Table

from .results import (
    Spread,
    Workflow,
    compare,
    largest_logprob_gap,
    outputs_identical,
    summarise,
)
from .settings import Settings

__all__ = [
    "EMULATED",
    "EMULATED_DEVICE",
    "build_report",
    "make_console",
    "show",
    "versions",
    "where_it_ran",
    "write_json",
]

EMULATED = (
    "EMULATED accelerator: real scheduler, radix tree, model arithmetic and copies; "
    "the bus is a rate limit."
)

EMULATED_DEVICE = (
    "EMULATED accelerator: real scheduler, radix tree, copies and answers (of a tiny "
    "model); how long a pass and a copy take is what the data sheets of the testbed say."
)

REAL_DEVICE = (
    "Nothing is emulated: the paper's shapes on {}, a model of the testbed's dimensions "
    "with weights of no meaning. Times are this device's, whatever the testbed's is."
)

_SPEEDUPS = (
    "kvflow_over_hicache",
    "kvflow_over_recompute",
    "evict_over_hicache",
    "prewarm_over_cold",
    "unmarked_over_hicache",
)
_PACKAGES = ("kvflow", "sglang", "torch", "transformers")


def make_console() -> Console:
    """A console wide enough for the tables where the output is no terminal."""
    return Console(width=None if sys.stdout.isatty() else 130)


def build_report(
    settings: Settings,
    results: Mapping[str, Sequence[Workflow]],
    counters: Mapping[str, Mapping[str, float]],
    drift: Mapping[str, Sequence[Mapping[str, object]]] | None = None,
    *,
    emulated: bool,
) -> dict[str, object]:
    """Everything about one experiment as plain values.

    `counters` has, by system, the server's own counts per measured workflow, `drift`
    its report of agents whose prompts part too early. A ratio of which one system was
    not run is null.
    """
    spreads = compare(results)
    return {
        "settings": settings.to_dict(),
        "versions": versions(),
        "emulated": emulated,
        "systems": {
            name: summarise(workflows) | {"counters": dict(counters.get(name, {}))}
            for name, workflows in results.items()
        },
        "d2h_bytes_per_workflow": {
            name: own["d2h_bytes"] for name, own in counters.items() if own
        },
        "speedup": {name: _median(spreads, name) for name in _SPEEDUPS},
        "ratio": {
            "kvflow_over_ideal": _median(spreads, "kvflow_over_ideal"),
            "unmarked_over_marked": _median(spreads, "unmarked_over_marked"),
            "silent_over_hicache": _median(spreads, "silent_over_hicache"),
            "evict_host_tokens_over_hicache": _host_ratio(results),
        },
        "spread": {name: asdict(spread) for name, spread in spreads.items()},
        "drift": {name: list(agents) for name, agents in (drift or {}).items()},
        "outputs_identical": outputs_identical(results),
        "largest_logprob_gap": largest_logprob_gap(results),
    }


def where_it_ran(hardware: str | None) -> dict[str, object]:
    """Of a report of `kvflow bench paper`; `hardware` is the name of an accelerator,
    None the emulated one."""
    if hardware is None:
        return {"emulated": True, "note": EMULATED_DEVICE}
    return {
        "emulated": False,
        "note": REAL_DEVICE.format(hardware),
        "hardware": hardware,
    }


def versions() -> dict[str, object]:
    """What ran, and on what."""
    found: dict[str, object] = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
    }
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def write_json(report: Mapping[str, object], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def show(
    console: Console,
    results: Mapping[str, Sequence[Workflow]],
    counters: Mapping[str, Mapping[str, float]],
    *,
    emulated: bool,
) -> None:
    """Print the tables."""
    console.print(_systems_table(results, counters))
    console.print(_ratios_table(compare(results)))
    same = outputs_identical(results)
    console.print(
        f"Outputs {'identical' if same else 'DIFFER'} across systems, token by token; "
        f"log-probabilities within {largest_logprob_gap(results):.1e}.",
        style="green" if same else "bold red",
    )
    if emulated:
        console.print(EMULATED, style="dim")
    console.print(
        f"Python {sys.version.split()[0]}, {os.cpu_count()} CPUs", style="dim"
    )


def _systems_table(
    results: Mapping[str, Sequence[Workflow]],
    counters: Mapping[str, Mapping[str, float]],
) -> Table:
    table = Table(title="Per workflow: seconds, and where the prompt tokens came from")
    table.add_column("system", no_wrap=True)
    for name in ("median s", "min", "max", "device", "host", "recomputed"):
        table.add_column(name, justify="right")
    for name in ("prefetched", "on demand", "late", "to host"):
        table.add_column(name, justify="right", style="dim")
    for name, workflows in results.items():
        seconds = [run.seconds for run in workflows]
        tokens = summarise(workflows)["tokens"]
        own = counters.get(name, {})
        table.add_row(
            name,
            f"{statistics.median(seconds):.2f}",
            f"{min(seconds):.2f}",
            f"{max(seconds):.2f}",
            *(f"{tokens[kind]:,.0f}" for kind in ("device", "host", "recomputed")),
            *(
                f"{own[key]:,.0f}" if key in own else ""
                for key in (
                    "prefetch_tokens",
                    "load_on_demand_tokens",
                    "late_join_tokens",
                    "d2h_tokens",
                )
            ),
        )
    return table


def _ratios_table(spreads: Mapping[str, Spread]) -> Table:
    table = Table(title="Ratios of paired workflows")
    table.add_column("ratio", no_wrap=True)
    for name in ("median", "quartiles", "min .. max", "pairs"):
        table.add_column(name, justify="right")
    for name, spread in spreads.items():
        table.add_row(
            name.replace("_", " "),
            f"{spread.median:.3f}",
            f"{spread.q1:.3f} .. {spread.q3:.3f}",
            f"{spread.min:.3f} .. {spread.max:.3f}",
            str(spread.n),
        )
    return table


def _host_ratio(results: Mapping[str, Sequence[Workflow]]) -> float | None:
    """Tokens that eviction alone loads from the host, over what stock HiCache loads."""
    if not {"hicache", "kvflow-evict"} <= set(results):
        return None
    stock, evict = (
        summarise(results[name])["tokens"]["host"]
        for name in ("hicache", "kvflow-evict")
    )
    return float(evict / stock) if stock else None


def _median(spreads: Mapping[str, Spread], name: str) -> float | None:
    return spreads[name].median if name in spreads else None
