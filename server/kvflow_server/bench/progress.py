"""Progress of long experiments, and the order in which systems take turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

__all__ = ["progress_bar", "rotated", "tracked"]

T = TypeVar("T")


def progress_bar(console: Console) -> Progress:
    """One line per step of an experiment: a bar, how many are done, the time."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description:24}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )


def tracked(progress: Progress, what: str, items: Sequence[T]) -> Iterator[T]:
    """Yield `items`, showing which one is worked on: its text, or a tuple's last."""
    task = progress.add_task(what, total=len(items))
    for item in items:
        label = item[-1] if isinstance(item, tuple) else item
        progress.update(task, description=f"{what} {label}")
        yield item
        progress.advance(task)
    progress.update(task, description=what)


def rotated(names: Sequence[str], turn: int) -> list[str]:
    """`names`, beginning with another one each turn: none always follows another."""
    shift = turn % len(names)
    return [*names[shift:], *names[:shift]]
