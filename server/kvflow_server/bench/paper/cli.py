"""``kvflow bench paper``."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .testbeds import CROWDED, TESTBEDS

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["app"]

app = typer.Typer()
_TESTBEDS: dict[int, list[str]] = {5: list(TESTBEDS), 6: list(CROWDED)}


@app.command()
def paper(
    fig: Annotated[
        int, typer.Option(help="The paper's figure: 5 (one workflow), 6 (many).")
    ] = 5,
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
            help="Of figure 5, comma-separated: 8192/32/32,... None: all.",
            show_default=False,
        ),
    ] = "",
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Write the report here.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a PNG here.")] = None,
) -> None:
    """The paper's evaluation, on the emulated accelerator.

    Token counts are the paper's over one factor. Bus and model are made to fit by
    measuring, so that prefill, load and decoding stand in the testbed's proportion; the
    report says how well. Systems take turns, workflow by workflow (figure 6: block by
    block), and ratios are medians over the pairs.
    """
    from kvflow_server.bench.report import make_console, write_json
    from kvflow_server.edge.launcher import ServerError

    if fig not in _TESTBEDS:
        raise typer.BadParameter(f"{fig} is not built, use 5 or 6", param_hint="--fig")
    known = _TESTBEDS[fig]
    names = _chosen(testbeds, known, "--testbeds") or known
    added = _chosen(systems, _systems(), "--systems")
    every = (
        {str(mix) for name in names for mix in TESTBEDS[name].fig5} if fig == 5 else ()
    )
    only = _chosen(mixes, every, "--mixes")
    console = make_console()

    def keep(report: dict[str, Any]) -> None:
        if json_path is not None:
            write_json(report, json_path)

    try:
        if fig == 5:
            report = _fig5(console, quick, names, added, only, keep)
        else:
            report = _fig6(console, quick, names, added, keep)
    except ServerError as error:
        console.print(str(error), style="red", markup=False, highlight=False)
        raise typer.Exit(1) from error
    keep(report)
    if json_path is not None:
        console.print(f"Report: {json_path}")
    if plot is not None:
        _plot(fig, plot, report)
        console.print(f"Plot: {plot}")


def _plot(fig: int, path: Path, report: dict[str, Any]) -> None:
    from .plot import save_fig5, save_fig6

    {5: save_fig5, 6: save_fig6}[fig](path, report)


def _systems() -> Collection[str]:
    from kvflow_server.bench.systems import SYSTEMS

    return SYSTEMS


def _chosen(text: str, known: Collection[str], option: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise typer.BadParameter(
                f"{name!r} is unknown, use {', '.join(known) or 'none'}",
                param_hint=option,
            )
    return names


def _fig5(
    console: Console,
    quick: bool,
    testbeds: list[str],
    added: list[str],
    mixes: list[str],
    keep: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    from .fig5 import FULL, QUICK, SYSTEMS_OF_FIG5, measure
    from .report import build_report, show

    effort = QUICK if quick else FULL
    systems = list(dict.fromkeys([*SYSTEMS_OF_FIG5, *added]))
    results = measure(
        effort,
        console,
        testbeds,
        systems,
        mixes,
        lambda done: keep(build_report(done, effort)),
    )
    report = build_report(results, effort)
    show(console, report)
    return report


def _fig6(
    console: Console,
    quick: bool,
    testbeds: list[str],
    added: list[str],
    keep: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    from .fig6 import FULL, QUICK, SYSTEMS_OF_FIG6, measure
    from .report6 import build_report6, show6

    effort = QUICK if quick else FULL
    systems = list(dict.fromkeys([*SYSTEMS_OF_FIG6, *added]))
    results = measure(
        effort,
        console,
        testbeds,
        systems,
        lambda done: keep(build_report6(done, effort)),
    )
    report = build_report6(results, effort)
    show6(console, report)
    return report
