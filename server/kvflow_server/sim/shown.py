"""Runs simulations with a progress bar, and shows what came of them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from kvflow_server.bench.progress import progress_bar
from kvflow_server.bench.report import make_console, versions, write_json
from kvflow_server.emulated.costs import Costs
from kvflow_server.engine.trace import TraceError

from .check import agreements
from .experiment import Comparison
from .figures import FIGURES, Case, run_case
from .maps import Grid, cells, grid_report
from .plots import NOTE, save_figure_bars, save_maps, save_sweep
from .scenario import Scenario
from .server import ServerSize
from .sweep import QUANTITIES, Setup, Sweep
from .trace import Latency, simulate_trace

__all__ = [
    "run_check",
    "run_figures",
    "run_map",
    "run_sweep",
    "run_trace",
    "run_workload",
]


def run_workload(
    setup: Setup, systems: Sequence[str], json_path: Path | None, plot: Path | None
) -> None:
    """One workload on each system."""
    console = make_console()
    found = setup.run(systems)
    console.print(_table(found, f"{setup.costs.name}: {_shape(setup.scenario)}"))
    console.print(NOTE, style="dim")
    _save(console, found.to_dict(), json_path)
    if plot is not None:
        speedups = {n: [found.speedup(n, "recompute") or 0.0] for n in found.results}
        title = f"{setup.costs.name}, {_shape(setup.scenario)}"
        save_figure_bars(plot, title, ["this workload"], speedups, {})
        console.print(f"Plot: {plot}")


def run_sweep(
    setup: Setup,
    over: Sweep,
    systems: Sequence[str],
    json_path: Path | None,
    plot: Path | None,
) -> None:
    """The workload for each value of one quantity."""
    console = make_console()
    found: list[tuple[float, Comparison]] = []
    with progress_bar(console) as progress:
        task = progress.add_task(over.quantity, total=len(over.values))
        for value in over.values:
            progress.update(task, description=f"{over.quantity} {value:g}")
            found.append((value, QUANTITIES[over.quantity](setup, value).run(systems)))
            progress.advance(task)
    table = Table(over.quantity, title=_shape(setup.scenario), title_justify="left")
    for name in systems:
        table.add_column(f"{name}, s", justify="right")
    for value, comparison in found:
        times = (f"{r.workflow_s:.3f}" for r in comparison.results.values())
        table.add_row(f"{value:g}", *times)
    console.print(table)
    console.print(NOTE, style="dim")
    steps = [{"value": v, **c.to_dict()} for v, c in found]
    _save(console, {"quantity": over.quantity, "steps": steps}, json_path)
    if plot is not None:
        lines = {
            name: [(value, c.results[name].workflow_s) for value, c in found]
            for name in systems
        }
        save_sweep(plot, over.quantity, lines)
        console.print(f"Plot: {plot}")


def run_trace(
    path: Path,
    costs: Costs,
    size: ServerSize,
    systems: Sequence[str],
    speed: float,
    json_path: Path | None,
) -> None:
    """A recorded trace on each system. Raises `ValueError` for a file that is none."""
    console = make_console()
    try:
        with progress_bar(console) as progress:
            found = [
                simulate_trace(path, costs, size, (name,), speed=speed)[name]
                for name in progress.track(systems, description=path.name)
            ]
    except (OSError, TraceError) as error:
        raise ValueError(str(error)) from error
    heads = ("system", "calls", "left out", "hit rate", "mean s", "p50 s", "p99 s")
    table = Table(*heads, title=f"{path.name} on {costs.name}", title_justify="left")
    for result in found:
        latency = Latency.of(result.latencies)
        times = (latency.mean, latency.p50, latency.p99) if latency else ()
        table.add_row(
            result.system,
            f"{result.calls:,}",
            f"{result.too_long:,}",
            f"{result.hit_rate:.1%}",
            *(f"{time:.3f}" for time in times),
        )
    console.print(table)
    console.print(NOTE, style="dim")
    report = {
        "trace": path.name,
        "speed": speed,
        "costs": costs.to_dict(),
        "size": dataclasses.asdict(size),
        "systems": {result.system: result.to_dict() for result in found},
    }
    _save(console, report, json_path)


def run_figures(
    names: Sequence[str], json_path: Path | None, plot: Path | None
) -> None:
    """Figures of the paper; with several, a plot's name gets that of its figure."""
    console = make_console()
    report: dict[str, Any] = {}
    for name in names:
        cases = FIGURES[name].cases()
        found = _each(console, f"figure {name}", cases)
        console.print(_figure_table(FIGURES[name].title, cases, found))
        report[name] = [
            {"profile": c.profile, "label": c.label, "paper": dict(c.paper)}
            | comparison.to_dict()
            for c, comparison in zip(cases, found, strict=True)
        ]
        if plot is not None:
            target = plot.with_stem(f"{plot.stem}-{name}") if len(names) > 1 else plot
            _plot_figure(target, FIGURES[name].title, cases, found)
            console.print(f"Plot: {target}")
    console.print(NOTE, style="dim")
    _save(console, {"figures": report}, json_path)


def run_map(
    costs: Costs,
    scenario: Scenario,
    grid: Grid,
    json_path: Path | None,
    plot: Path | None,
) -> None:
    """Every cell of the grid."""
    console = make_console()
    with progress_bar(console) as progress:
        every = cells(costs, scenario, grid)
        found = list(progress.track(every, total=len(grid), description="map"))
    report = grid_report(costs, scenario, found)
    for over in ("over_hicache", "over_recompute"):
        ends: Any = report[over]
        for which in ("worst", "best"):
            cell = ends[which]
            console.print(
                f"{which} {over.replace('_', ' ')}: {cell[over]:.3f} at "
                f"{cell['bus_gbps']:g} GB/s, pool {cell['pool_ratio']:g}, "
                f"{cell['output']} tokens out"
            )
    console.print(NOTE, style="dim")
    _save(console, report, json_path)
    if plot is not None:
        save_maps(plot, found, f"KVFlow's speed-up, {costs.name}")
        console.print(f"Plot: {plot}")


def run_check(path: Path, json_path: Path | None) -> None:
    """The simulator against a report of what was measured."""
    console = make_console()
    found = agreements(json.loads(path.read_text(encoding="utf-8")))
    head = ("testbed", "mix", "system", "measured, s", "simulated, s", "error")
    table = Table(*head, title="Seconds per workflow", title_justify="left")
    for one in found:
        times = f"{one.measured:.3f}", f"{one.simulated:.3f}"
        table.add_row(one.testbed, one.mix, one.system, *times, f"{one.error:+.1%}")
    console.print(table)
    worst = max(found, key=lambda one: abs(one.error))
    console.print(
        f"worst: {worst.testbed} {worst.mix} {worst.system} {worst.error:+.1%}"
    )
    report = {"worst": worst.to_dict(), "all": [one.to_dict() for one in found]}
    _save(console, report, json_path)


def _each(console: Console, what: str, cases: Iterable[Case]) -> list[Comparison]:
    chosen = list(cases)
    with progress_bar(console) as progress:
        track = progress.track(chosen, total=len(chosen), description=what)
        return [run_case(case) for case in track]


def _table(found: Comparison, title: str) -> Table:
    table = Table("system", title=title, title_justify="left")
    for name in ("workflow, s", "p99, s", "workflows/s", "over recompute"):
        table.add_column(name, justify="right")
    for kind in ("on device", "from host", "computed"):
        table.add_column(f"tokens {kind}", justify="right")
    for name, result in found.results.items():
        speedup = found.speedup(name, "recompute")
        table.add_row(
            name,
            f"{result.workflow_s:.3f}",
            f"{result.quantile_s(0.99):.3f}",
            f"{result.throughput:.3f}",
            "" if speedup is None else f"{speedup:.2f}",
            *(f"{result.tokens(k):,.0f}" for k in ("device", "host", "recomputed")),
        )
    return table


def _figure_table(
    title: str, cases: Sequence[Case], found: Sequence[Comparison]
) -> Table:
    table = Table("machine", "case", title=title, title_justify="left")
    names = [name for name in found[0].results if name != "recompute"]
    for name in names:
        table.add_column(name, justify="right")
    table.add_column("paper: HiCache, KVFlow", justify="right")
    for case, comparison in zip(cases, found, strict=True):
        speedups = (comparison.speedup(name, "recompute") or 0.0 for name in names)
        printed = [case.paper.get(name) for name in ("hicache", "kvflow")]
        table.add_row(
            case.profile,
            case.label,
            *(f"{value:.3f}" for value in speedups),
            ", ".join("" if value is None else f"{value:.3f}" for value in printed),
        )
    return table


def _plot_figure(
    path: Path, title: str, cases: Sequence[Case], found: Sequence[Comparison]
) -> None:
    systems = ("hicache", "steps", "kvflow", "ideal")
    save_figure_bars(
        path,
        title,
        [f"{case.profile}\n{case.label}" for case in cases],
        {n: [c.speedup(n, "recompute") or 0.0 for c in found] for n in systems},
        {n: [case.paper.get(n) for case in cases] for n in ("hicache", "kvflow")},
    )


def _shape(scenario: Scenario) -> str:
    programs = f"{scenario.workflows} x " if scenario.workflows > 1 else ""
    return (
        f"{programs}{scenario.agents} agents, fixed/dynamic/output "
        f"{scenario.fixed}/{scenario.dynamic}/{scenario.output}"
    )


def _save(console: Console, report: dict[str, Any], path: Path | None) -> None:
    if path is not None:
        write_json(report | {"simulated": True, "versions": versions()}, path)
        console.print(f"Report: {path}")
