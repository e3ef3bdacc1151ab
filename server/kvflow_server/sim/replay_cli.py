"""`kvflow replay`: the command of `replay`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from kvflow_server.bench.progress import progress_bar
from kvflow_server.engine.trace import TraceError

from .replay import ReplayError, ReplayOptions, ReplayResult, replay
from .trace import Latency, open_trace, scan

__all__ = ["app"]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

_INTERRUPTED = 130


@app.command("replay")
def main(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="TRACE",
            help="A trace of `kvflow record`, or one of Mooncake's.",
            show_default=False,
        ),
    ],
    url: Annotated[str, typer.Option(help="The server.")] = "http://127.0.0.1:30000",
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="KVFLOW_API_KEY",
            help="The server's --api-key, if it has one.",
            show_default=False,
        ),
    ] = None,
    speed: Annotated[
        float, typer.Option(metavar="FACTOR", help="Times as fast as recorded.")
    ] = 1.0,
    fast: Annotated[
        bool,
        typer.Option(
            "--fast",
            help="Wait for no recorded time: send each call once the calls of its run "
            "that had ended before it have.",
        ),
    ] = False,
    concurrency: Annotated[
        int, typer.Option(metavar="N", help="Calls at a time with --fast.")
    ] = 64,
    hints: Annotated[
        bool,
        typer.Option("--hints/--no-hints", help="Send the recorded metadata."),
    ] = True,
    vocabulary: Annotated[
        int, typer.Option(metavar="N", help="Send random tokens below N.")
    ] = 512,
    json_path: Annotated[
        Path | None, typer.Option("--json", metavar="PATH", help="Write it here.")
    ] = None,
) -> None:
    """Send a recorded trace to a running server and measure.

    Prompts are random tokens that share what the recorded ones shared, answers are as
    long as recorded. Clients are new ones; the metadata is sent if the server is
    KVFlow. Ctrl-C ends it and shows what was measured so far. Exit status: 0, or 1 if a
    call has failed.
    """
    console = Console(stderr=True)
    try:
        options = ReplayOptions(speed, fast, concurrency, hints, vocabulary, api_key)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    result = ReplayResult()
    interrupted = False
    try:
        with progress_bar(console) as progress:
            _run(path, url, options, result, progress)
    except (ReplayError, TraceError, OSError) as error:
        console.print(f"[red]kvflow replay:[/] {escape(str(error))}")
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        interrupted = True
    if json_path is not None:
        report = {"trace": path.name, "interrupted": interrupted, **result.to_dict()}
        json_path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    _show(result, interrupted=interrupted)
    if interrupted:
        raise typer.Exit(_INTERRUPTED)
    if result.failed:
        raise typer.Exit(1)


def _run(
    path: Path,
    url: str,
    options: ReplayOptions,
    result: ReplayResult,
    progress: Progress,
) -> None:
    trace = open_trace(path)
    found = scan(trace)
    task = progress.add_task("replaying", total=found.calls + found.updates)
    asyncio.run(replay(trace, url, options, result, lambda: progress.advance(task)))


def _show(result: ReplayResult, *, interrupted: bool) -> None:
    console = Console()
    latency, before = Latency.of(result.latencies), Latency.of(result.recorded)
    table = Table(title="Latency of a call, seconds")
    for name in ("", "mean", "p50", "p90", "p99", "most"):
        table.add_column(name, justify="right" if name else "left")
    for name, row in (("now", latency), ("recorded", before)):
        if row is not None:
            values = (f"{value:.3f}" for value in row.to_dict().values())
            table.add_row(name, *values)
    console.print(table)
    rest = result.prompt - result.device - result.host
    console.print(
        f"{result.calls} calls in {result.seconds:.1f} s, metadata "
        f"{'sent' if result.hints else 'not sent'}. Of {result.prompt} prompt tokens "
        f"{result.device} were on the device, {result.host} loaded, {rest} computed "
        f"(hit rate {result.hit_rate:.1%})."
    )
    if result.late_s > 1:
        console.print(
            f"Records were sent up to {result.late_s:.1f} s late.", style="yellow"
        )
    if result.failed or result.updates_failed:
        console.print(
            f"{result.failed} calls and {result.updates_failed} step updates failed:",
            *(escape(error) for error in result.errors),
            sep="\n  ",
            style="red",
        )
    if interrupted:
        console.print("Interrupted; the rest of the trace was not sent.")
