"""`kvflow record`: `kvflow serve` that writes down what the server sees."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["app"]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(
    context_settings={
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,
    },
    options_metavar="[OPTIONS]",
)
def record(
    ctx: typer.Context,
    out: Annotated[
        Path,
        typer.Argument(
            metavar="OUT.jsonl[.gz] [FLAGS OF kvflow serve]",
            help="The trace; compressed if its name ends in .gz.",
            show_default=False,
        ),
    ],
    force: Annotated[
        bool, typer.Option("--force", help="Replace OUT if it is there.")
    ] = False,
    limit: Annotated[
        int,
        typer.Option(
            "--limit-mb",
            metavar="MB",
            min=1,
            max=1 << 20,
            help="Stop recording, and go on serving, when OUT is this large.",
        ),
    ] = 1024,
) -> None:
    """Serve as `kvflow serve` does, and record what the server sees.

    Step updates and calls, with the lengths of prompts and answers and hashes of their
    blocks: no text, and clients and runs by numbers that say nothing. Names of agents
    are kept. Run it again with `kvflow replay`, or on the simulator. With several
    replicas (--dp-size) each writes its own file.
    """
    if "--kvflow-stock" in ctx.args:
        raise typer.BadParameter(
            "stock SGLang records nothing; --kvflow-mode off has its eviction order"
        )
    if out.exists() and not force:
        raise typer.BadParameter(f"{out} is there; --force replaces it")
    if not os.access(out.absolute().parent, os.W_OK) or out.is_dir():
        raise typer.BadParameter(f"{out} cannot be written")
    os.environ["KVFLOW_RECORD"] = str(out.absolute())
    os.environ["KVFLOW_RECORD_MB"] = str(limit)
    root = ctx.parent
    assert root is not None, "a command of `kvflow`"
    commands: Any = root.command
    serve = commands.get_command(root, "serve")
    with serve.make_context("serve", list(ctx.args), parent=root) as inner:
        serve.invoke(inner)
