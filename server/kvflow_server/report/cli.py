"""``kvflow report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["app"]

app = typer.Typer()


@app.command()
def report(
    results: Annotated[
        Path, typer.Option(help="Folder with the JSON of the runs.")
    ] = Path("results"),
    out: Annotated[
        Path, typer.Option(help="Folder for the page and its pictures.")
    ] = Path("build/report"),
) -> None:
    """Put everything that was measured and simulated on one page.

    The page shows what the JSON files hold and computes nothing of its own, but for
    ratios of the runs in them and the simulator's agreement with what was measured.
    """
    from .build import build_report

    if not results.is_dir():
        raise typer.BadParameter(f"{results} is no folder", param_hint="--results")
    typer.echo(f"Report: {build_report(results, out)}")
