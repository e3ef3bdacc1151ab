"""`kvflow lint`: which agents' prompts drift, and what to do about it."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvflow_sdk.drift import AgentReport, Drift, DriftReport, analyse, read_requests
from kvflow_sdk.drift.recording import environment

__all__ = ["app"]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

_USAGE_ERROR = 2
_Encode = Callable[[str], Sequence[int]]


@app.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    options_metavar="[OPTIONS]",
)
def lint(
    target: Annotated[
        list[str],
        typer.Argument(
            metavar="REQUESTS.jsonl | -- PROGRAM [ARGS]",
            help="A file of recorded requests (a body per line, or OpenAI's batch "
            "format), or a Python program to run and listen to.",
        ),
    ],
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="A tokenizer.json, or a model directory that has one, to count "
            "tokens with. Without it four characters are taken as one.",
        ),
    ] = None,
    json_path: Annotated[
        Path | None,
        typer.Option("--json", metavar="PATH", help="Write the report here."),
    ] = None,
    show_text: Annotated[
        bool,
        typer.Option("--text/--no-text", help="Show the text around what drifts."),
    ] = True,
    exit_zero: Annotated[
        bool, typer.Option("--exit-zero", help="Exit with 0 even if prompts drift.")
    ] = False,
) -> None:
    """Find what makes prompts new that should be the same from call to call.

    Runs PROGRAM as it is, records the LLM requests that it sends with httpx (the
    openai, anthropic and langchain clients do) into a temporary file of this machine,
    and compares each agent's consecutive prompts. Exit status: 0 if nothing drifts, 1
    if something does, the program's own if it fails.
    """
    console = Console()
    encode = _tokenizer(console, tokenizer)
    code, report = _report(console, target, encode)
    if json_path is not None:
        json_path.write_text(json.dumps(_as_json(report, show_text), indent=2) + "\n")
    _show(console, report, show_text)
    if code:
        raise typer.Exit(code)
    if report.drifting and not exit_zero:
        raise typer.Exit(1)


def _report(
    console: Console, target: list[str], encode: _Encode | None
) -> tuple[int, DriftReport]:
    """The program's exit status (0 for a file), and what was found."""
    if len(target) == 1 and target[0].endswith((".jsonl", ".json")):
        return 0, _analysed(console, Path(target[0]), encode)
    with tempfile.TemporaryDirectory(prefix="kvflow-lint-") as directory:
        path = Path(directory) / "requests.jsonl"
        path.touch(mode=0o600)
        code = _run(console, target, path)
        report = _analysed(console, path, encode)
    if not report.agents:
        console.print(
            "No LLM call was seen. The program must be Python and call its model "
            "through httpx (openai, anthropic, langchain).",
            style="yellow",
        )
    return code, report


def _run(console: Console, command: list[str], path: Path) -> int:
    try:
        process = subprocess.Popen(command, env={**os.environ, **environment(path)})
    except OSError as error:
        console.print(f"cannot run {command[0]}: {error.strerror}", style="red")
        raise typer.Exit(_USAGE_ERROR) from None
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            # The terminal interrupts the program, too; report on what it did.
            continue


def _analysed(console: Console, path: Path, encode: _Encode | None) -> DriftReport:
    try:
        with path.open(encoding="utf-8") as lines:
            return analyse(read_requests(lines), encode)
    except (OSError, ValueError) as error:
        console.print(f"{path}: {error}", style="red")
        raise typer.Exit(_USAGE_ERROR) from None


def _tokenizer(console: Console, path: Path | None) -> _Encode | None:
    if path is None:
        return None
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        console.print(f"{file}: no such file", style="red")
        raise typer.Exit(_USAGE_ERROR)
    try:
        from tokenizers import Tokenizer

        loaded = Tokenizer.from_file(str(file))
    except ImportError:
        console.print("--tokenizer needs the package tokenizers", style="red")
        raise typer.Exit(_USAGE_ERROR) from None
    except Exception as error:
        console.print(f"{file}: no tokenizer ({error})", style="red")
        raise typer.Exit(_USAGE_ERROR) from None
    return lambda text: loaded.encode(text, add_special_tokens=False).ids


def _show(console: Console, report: DriftReport, show_text: bool) -> None:
    if not report.agents:
        return
    about = "" if report.exact_tokens else "≈ "
    table = Table(title="Prompts, agent by agent (tokens)")
    table.add_column("agent")
    for name in ("calls", "prompt", "fixed", "drifts", "a reordering saves"):
        table.add_column(name, justify="right")
    for agent in report.agents:
        table.add_row(
            agent.name,
            str(agent.calls),
            f"{about}{agent.prompt_tokens:,}",
            f"{about}{agent.fixed_tokens:,}" if agent.calls > 1 else "?",
            str(len(agent.drifts)),
            f"{about}{agent.savable_tokens:,}" if agent.savable_tokens else "",
        )
    console.print(table)
    for agent in report.drifting:
        for drift in agent.drifts:
            console.print(_described(agent, drift, about, show_text))
    for text in report.shared:
        shown = f" ({text.beginning!r} …)" if show_text else ""
        console.print(
            Text(
                f"\n{', '.join(text.agents)}: {about}{text.tokens:,} tokens of the same "
                f"text{shown} stand behind what is different. Put what is common first, "
                "in one order, and all of them find it in the cache.",
                style="yellow",
            )
        )


def _described(agent: AgentReport, drift: Drift, about: str, show_text: bool) -> Text:
    text = Text()
    text.append(f"\n{agent.name}: {drift.kind.value}", style="bold yellow")
    text.append(
        f" in {drift.part} at character {drift.chars:,} (token {about}{drift.token:,}), "
        f"in {drift.calls} of {agent.calls - 1} repeated calls"
    )
    if drift.recomputed:
        text.append(
            f"; {about}{drift.recomputed // drift.calls:,} tokens a call are computed "
            "again because of it"
        )
    if show_text:
        text.append(f"\n  before  {drift.old!r}\n  after   {drift.new!r}", style="dim")
    text.append(f"\n  {drift.kind.advice}")
    return text


def _as_json(report: DriftReport, show_text: bool) -> dict[str, Any]:
    agents = []
    for agent in report.agents:
        entry = asdict(agent)
        for drift, source in zip(entry["drifts"], agent.drifts, strict=True):
            drift["kind"] = source.kind.value
            drift["advice"] = source.kind.advice
            if not show_text:
                del drift["old"], drift["new"]
        agents.append(entry)
    shared = [asdict(text) for text in report.shared]
    for entry in shared if not show_text else ():
        del entry["beginning"]
    return {"exact_tokens": report.exact_tokens, "agents": agents, "shared": shared}
