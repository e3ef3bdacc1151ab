"""``kvflow bench paper``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .testbeds import TESTBEDS

__all__ = ["app"]

app = typer.Typer()


@app.command()
def paper(
    fig: Annotated[int, typer.Option(help="The paper's figure: 5.")] = 5,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Smaller and fewer: under 15 minutes on 2 cores."),
    ] = False,
    testbeds: Annotated[
        str, typer.Option(help=f"Comma-separated: {', '.join(TESTBEDS)}.")
    ] = ",".join(TESTBEDS),
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Write the report here.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a PNG here.")] = None,
) -> None:
    """The paper's evaluation, on the emulated accelerator.

    Token counts are the paper's over one factor. Bus and model are made to fit by
    measuring, so that prefill, load and decoding stand in the testbed's proportion; the
    report says how well. Systems take turns, workflow by workflow.
    """
    from kvflow_server.bench.report import make_console, write_json
    from kvflow_server.edge.launcher import ServerError

    from .fig5 import FULL, QUICK, measure
    from .plot import save_fig5
    from .report import build_report, show

    if fig != 5:
        raise typer.BadParameter(f"{fig} is not built, use 5", param_hint="--fig")
    names = tuple(name.strip() for name in testbeds.split(",") if name.strip())
    if not names or not set(names) <= set(TESTBEDS):
        raise typer.BadParameter(
            f"{testbeds!r}: use {', '.join(TESTBEDS)}", param_hint="--testbeds"
        )
    effort = QUICK if quick else FULL
    console = make_console()
    try:
        results = measure(effort, console, names)
    except ServerError as error:
        console.print(str(error), style="red", markup=False, highlight=False)
        raise typer.Exit(1) from error
    report = build_report(results, effort)
    show(console, report)
    if json_path is not None:
        write_json(report, json_path)
        console.print(f"Report: {json_path}")
    if plot is not None:
        save_fig5(plot, report)
        console.print(f"Plot: {plot}")
