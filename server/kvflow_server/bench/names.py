"""Names on a command line: comma-separated, each of them known."""

from __future__ import annotations

from collections.abc import Collection

import typer

__all__ = ["names_in"]


def names_in(
    text: str, known: Collection[str], option: str, what: str = ""
) -> list[str]:
    """Raises `typer.BadParameter` for `option`, naming the one that is unknown; `what`
    stands before it."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise typer.BadParameter(
                f"{what}{name!r} is unknown, use {', '.join(known) or 'none'}",
                param_hint=option,
            )
    return names
