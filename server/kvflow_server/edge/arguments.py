"""What a user's SGLang command line settles, a ``--config`` file included."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

__all__ = ["ConfigFileError", "GivenFlags"]

_ALIASES = {
    "--model-path": ("--model",),
    "--enable-hierarchical-cache": ("--enable-hicache",),
    "--tp-size": ("--tensor-parallel-size", "--tp"),
    "--dp-size": ("--data-parallel-size", "--dp"),
}


class ConfigFileError(ValueError):
    """A ``--config`` file cannot be read; the message names it."""


class GivenFlags:
    """The flags of a command line, by SGLang's names and their aliases.

    Raises `ConfigFileError`.
    """

    def __init__(self, args: Sequence[str]) -> None:
        self._values: dict[str, str] = {}
        for word, following in pairwise([*args, ""]):
            if word.startswith("--"):
                name, equals, value = word.partition("=")
                self._values[name] = value if equals else following
        if path := self._values.get("--config"):
            self._values = _read_config(Path(path)) | self._values

    def __call__(self, flag: str) -> bool:
        """Whether `flag` was given."""
        return self._find(flag) is not None

    def value(self, flag: str) -> str | None:
        """The value given for `flag`, None if it was not given."""
        found = self._find(flag)
        return None if found is None else self._values[found]

    def number(self, flag: str, default: int) -> int:
        """The whole number given for `flag`; `default` if none was, or no number."""
        text = self.value(flag) or ""
        return int(text) if text.isdecimal() else default

    def _find(self, flag: str) -> str | None:
        for name in (flag, *_ALIASES.get(flag, ())):
            if name in self._values:
                return name
        return None


def _read_config(path: Path) -> dict[str, str]:
    # SGLang brings PyYAML; the client environment, which type checks too, does not.
    yaml: Any = importlib.import_module("yaml")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ConfigFileError(f"--config {path}: {error}") from error
    content = {} if content is None else content
    if not isinstance(content, dict):
        raise ConfigFileError(f"--config {path}: must be a mapping of flags to values")
    # SGLang puts the names as they are behind two hyphens, and knows none with an
    # underscore: it says so itself, and KVFlow does not take one for another.
    return {
        f"--{name}": str(value) for name, value in content.items() if value is not False
    }
