"""``kvflow bench paper``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvflow_server.bench.names import names_in

from .testbeds import CROWDED, TESTBEDS

if TYPE_CHECKING:
    from rich.console import Console

    from .fig6 import CrowdEffort, RunCrowds
    from .scale import Effort

__all__ = ["DEFAULT_MIXES", "DEFAULT_TESTBEDS", "all_cases", "app"]

app = typer.Typer()
DEFAULT_TESTBEDS = {
    "5": list(TESTBEDS),
    "6": list(CROWDED),
    "8": list(CROWDED),
    "branches": ["h100"],
    "dynamic": ["h100", "a10g"],
}
DEFAULT_MIXES = {"branches": ["4096/32/32", "8192/32/32"], "dynamic": ["8192/32/32"]}
"""Those that are run when none is named; of figure 5, all."""


@app.command()
def paper(
    fig: Annotated[
        str,
        typer.Option(
            help="The paper's figure: 5 (one workflow), 6 (many at a time); 8 "
            "(PEER, with the token counts of figure 7); branches "
            "(each stage picks one of two agents), dynamic (agents chosen at run time)."
        ),
    ] = "5",
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Smaller and fewer: under 15 minutes on 2 cores."),
    ] = False,
    testbeds: Annotated[
        str,
        typer.Option(
            help=f"Comma-separated: {', '.join(TESTBEDS)}; "
            f"for figure 6 {', '.join(CROWDED)}.",
            show_default=False,
        ),
    ] = "",
    systems: Annotated[
        str,
        typer.Option(
            help="Comma-separated, besides the figure's own; see `kvflow bench systems`.",
            show_default=False,
        ),
    ] = "",
    mixes: Annotated[
        str,
        typer.Option(
            help="Comma-separated: 8192/32/32,...; of figure 6 512x20,... None: all.",
            show_default=False,
        ),
    ] = "",
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Write the report here.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a PNG here.")] = None,
    dataset: Annotated[
        Path | None,
        typer.Option(help='Of figure 8: questions, JSON lines with a field "text".'),
    ] = None,
    emulated: Annotated[
        bool | None,
        typer.Option(
            "--emulated/--no-emulated",
            help="Use the emulated accelerator (CPU). Default: when there is no GPU.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """The paper's evaluation.

    On the emulated accelerator token counts are the paper's over one factor, and a pass
    and a copy take what the data sheets of the paper's testbed say, so that prefill, load
    and decoding stand in its proportion; the report says how well. Systems take turns,
    workflow by workflow (figure 6: block by block), and ratios are medians over the
    pairs.

    On a GPU nothing is emulated: the paper's shapes, with a model of the testbed's
    dimensions, which must fit beside its pool (Llama-3.1-8B 21 GB, Qwen2.5-32B 75 GB).
    Systems have the GPU one after the other, twice.
    """
    from kvflow_server.bench.report import make_console, write_json
    from kvflow_server.edge.launcher import ServerError
    from kvflow_server.edge.serve import has_gpu

    chosen = _Chosen.of(fig, quick, testbeds, systems, mixes, dataset)
    if emulated is None:
        emulated = not has_gpu()
    chosen = replace(chosen, emulated=emulated)
    console = make_console()

    def keep(report: dict[str, Any]) -> None:
        if json_path is not None:
            write_json(report, json_path)

    run = {"5": _fig5, "6": _fig6, "8": _fig8}.get(fig, _course)
    try:
        report = run(console, chosen, keep)
    except ServerError as error:
        console.print(str(error), style="red", markup=False, highlight=False)
        raise typer.Exit(1) from error
    keep(report)
    if json_path is not None:
        console.print(f"Report: {json_path}")
    if plot is not None:
        _plot(fig, plot, report)
        console.print(f"Plot: {plot}")


Report = dict[str, Any]
Keep = Callable[[Report], None]


@dataclass(frozen=True, slots=True)
class _Chosen:
    """What the options say. Raises `typer.BadParameter` naming the option."""

    fig: str
    quick: bool
    testbeds: list[str]
    systems: list[str]
    """Besides the figure's own."""
    mixes: list[str]
    questions: list[str]
    emulated: bool = True

    @property
    def hardware(self) -> str | None:
        """None: the emulated accelerator."""
        from .real import hardware

        return None if self.emulated else hardware()

    @classmethod
    def of(
        cls,
        fig: str,
        quick: bool,
        testbeds: str,
        systems: str,
        mixes: str,
        dataset: Path | None,
    ) -> _Chosen:
        from kvflow_server.bench.systems import SYSTEMS

        if fig not in DEFAULT_TESTBEDS:
            raise typer.BadParameter(
                f"{fig!r}: use {', '.join(DEFAULT_TESTBEDS)}", param_hint="--fig"
            )
        known = DEFAULT_TESTBEDS[fig]
        names = names_in(testbeds, known, "--testbeds") or known
        only = names_in(mixes, all_cases(fig, names), "--mixes")
        added = names_in(systems, SYSTEMS, "--systems")
        asked = _questions(dataset) if fig == "8" else []
        return cls(fig, quick, names, added, only or DEFAULT_MIXES.get(fig, []), asked)

    def with_systems(self, own: Sequence[str]) -> list[str]:
        return list(dict.fromkeys([*own, *self.systems]))


def all_cases(fig: str, testbeds: Sequence[str]) -> list[str]:
    """What ``--mixes`` may name; of figure 8 nothing."""
    if fig == "8":
        return []
    if fig == "6":
        return [str(crowd) for name in testbeds for crowd in CROWDED[name].fig6]
    return [str(mix) for name in testbeds for mix in TESTBEDS[name].fig5]


def _questions(path: Path | None) -> list[str]:
    from .fig8 import questions

    if path is None:
        raise typer.BadParameter("figure 8 needs questions", param_hint="--dataset")
    try:
        return questions(path)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _plot(fig: str, path: Path, report: dict[str, Any]) -> None:
    from .bars import save_systems
    from .plot import save_fig5, save_fig6

    if fig in ("6", "8"):
        save_fig6(path, report)
    elif fig == "5":
        save_fig5(path, report)
    else:
        save_systems(path, report, "recompute")


def _fig5(console: Console, chosen: _Chosen, keep: Keep) -> Report:
    from .fig5 import SYSTEMS_OF_FIG5
    from .report import build_report, show

    measure, effort = _workflows(chosen)
    systems = chosen.with_systems(SYSTEMS_OF_FIG5)
    hardware = chosen.hardware
    return _run(
        partial(measure, effort, console, chosen.testbeds, systems, chosen.mixes),
        lambda done: build_report(done, effort, hardware),
        partial(show, console),
        keep,
    )


def _fig6(console: Console, chosen: _Chosen, keep: Keep) -> Report:
    from .fig6 import SYSTEMS_OF_FIG6, measure
    from .report6 import build_report6, show6

    run, effort = _crowds(chosen)
    systems = chosen.with_systems(SYSTEMS_OF_FIG6)
    hardware = chosen.hardware
    return _run(
        partial(
            measure, effort, console, chosen.testbeds, systems, chosen.mixes, run=run
        ),
        lambda done: build_report6(done, effort, "6", hardware),
        partial(show6, console),
        keep,
    )


def _fig8(console: Console, chosen: _Chosen, keep: Keep) -> Report:
    from .fig6 import SYSTEMS_OF_FIG6
    from .fig8 import for_peer, measure_peer
    from .report6 import build_report6, show6

    run, effort = _crowds(chosen)
    effort = for_peer(effort)
    systems = chosen.with_systems(SYSTEMS_OF_FIG6)
    asked, hardware = chosen.questions, chosen.hardware
    args = effort, console, chosen.testbeds, systems, asked
    return _run(
        partial(measure_peer, *args, run=run),
        lambda done: build_report6(done, effort, "8", hardware),
        partial(show6, console),
        keep,
    )


def _course(console: Console, chosen: _Chosen, keep: Keep) -> Report:
    from .courses import COURSES
    from .report_course import SYSTEMS_OF_A_COURSE, build_report_course, show_course

    course = COURSES[chosen.fig]
    measure, effort = _workflows(chosen)
    effort = replace(effort, agents=course.agents, calls=course.calls, settling=4)
    systems = chosen.with_systems(SYSTEMS_OF_A_COURSE)
    hardware = chosen.hardware
    args = effort, console, chosen.testbeds, systems, chosen.mixes
    return _run(
        lambda told: measure(*args, told, course),
        lambda done: build_report_course(done, effort, course, hardware),
        partial(show_course, console),
        keep,
    )


def _workflows(chosen: _Chosen) -> tuple[Callable[..., Any], Effort]:
    """How one workflow at a time is measured, and how thoroughly."""
    from . import fig5, real

    where = fig5 if chosen.emulated else real
    return where.measure, where.QUICK if chosen.quick else where.FULL


def _crowds(chosen: _Chosen) -> tuple[RunCrowds, CrowdEffort]:
    """How many at a time are measured, and how thoroughly."""
    from . import fig6, real_crowds

    where = fig6 if chosen.emulated else real_crowds
    return where.run_crowds, where.QUICK if chosen.quick else where.FULL


def _run(
    measure: Callable[[Callable[[Any], None]], Any],
    build: Callable[[Any], Report],
    show: Callable[[Report], None],
    keep: Keep,
) -> Report:
    """Measure, keep the report of what is done after each part, show the whole."""
    report = build(measure(lambda done: keep(build(done))))
    show(report)
    return report
