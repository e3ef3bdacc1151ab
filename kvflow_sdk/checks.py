"""What every message has to fulfil; each check names the field in its error."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from .errors import WireError

__all__ = [
    "MAX_AGENTS",
    "MAX_NAME_CHARS",
    "MAX_STEPS",
    "check_likelihood",
    "check_name",
    "check_range",
    "check_steps",
    "check_version",
    "convert",
]

_T = TypeVar("_T")

MAX_NAME_CHARS = 256
"""Unicode code points of a client, run or agent name."""
MAX_AGENTS = 4096
"""Entries of `steps` and of `likelihood` in one payload."""
MAX_STEPS = 1_000_000
_NUMBERS: Mapping[str, tuple[type, ...]] = {"steps": (int,), "likelihood": (float, int)}


def convert(obj: object, kind: type[_T]) -> _T:
    """`obj` as a `kind`. Raises `WireError` naming the field."""
    try:
        return msgspec.convert(obj, kind, from_attributes=True)
    except msgspec.ValidationError as error:
        field = _field_of(str(error), obj)
        raise WireError(f"{field}: {error}", field=field) from error


def _field_of(message: str, obj: object) -> str:
    """The offending field in a message of msgspec.

    msgspec ends it with the path (``at `$.steps[...]` ``) of the value, or of the
    object that lacks a field, and does not say which key of a mapping it was.
    """
    path = message.rpartition("`$")[2].strip("`.") if "`$" in message else ""
    if missing := re.search(r"missing required field `(\w+)`", message):
        path = f"{path}.{missing[1]}".strip(".")
    name, is_entry, _ = path.partition("[...]")
    entries = obj.get(name) if is_entry and isinstance(obj, Mapping) else None
    if isinstance(entries, Mapping):
        for key, value in entries.items():
            if isinstance(value, bool) or not isinstance(value, _NUMBERS[name]):
                return f"{name}[{str(key)[:MAX_NAME_CHARS]!r}]"
    return path or "body"


def check_version(got: str, known: str, field: str) -> None:
    """Raises `WireError` when `got` is of another major version than `known`."""
    major, _, minor = got.partition(".")
    if major != known.partition(".")[0] or (minor and not minor.isdecimal()):
        raise WireError(
            f"{field}: {got[:32]!r} is not supported, this server speaks {known!r}",
            field=field,
        )


def check_range(value: int, high: int, field: str) -> None:
    """Raises `WireError` when `value` is not from 0 to `high`."""
    if not 0 <= value <= high:
        raise WireError(
            f"{field}: must be between 0 and {high}, not {_shown(value)}", field=field
        )


def _shown(value: int) -> str:
    # Python refuses to print an integer of more than 4 300 digits.
    return str(value) if abs(value) < 10**18 else f"a {value.bit_length()}-bit number"


def check_name(name: str, field: str) -> None:
    """Raises `WireError` when `name`, of `field`, is empty or too long."""
    if not 0 < len(name) <= MAX_NAME_CHARS:
        raise WireError(
            f"{field}: a name has 1 to {MAX_NAME_CHARS} characters, not {len(name)}",
            field=field,
        )


def _check_count(entries: Mapping[str, object], field: str) -> None:
    if len(entries) > MAX_AGENTS:
        raise WireError(
            f"{field}: {len(entries)} agents, at most {MAX_AGENTS} are accepted",
            field=field,
            status=413,
        )


def check_steps(steps: Mapping[str, int]) -> None:
    """Raises `WireError` naming the entry."""
    _check_count(steps, "steps")
    for name, value in steps.items():
        if not (0 < len(name) <= MAX_NAME_CHARS and 0 <= value <= MAX_STEPS):
            field = f"steps[{name[:MAX_NAME_CHARS]!r}]"
            check_name(name, field)
            check_range(value, MAX_STEPS, field)


def check_likelihood(likelihood: Mapping[str, float]) -> None:
    _check_count(likelihood, "likelihood")
    for name, value in likelihood.items():
        field = f"likelihood[{name[:MAX_NAME_CHARS]!r}]"
        check_name(name, field)
        if not 0.0 <= value <= 1.0:
            raise WireError(
                f"{field}: must be between 0 and 1, not {value}", field=field
            )
