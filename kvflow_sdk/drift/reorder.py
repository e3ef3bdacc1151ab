"""The same content in another order: JSON keys, tools, lists, lines."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from .spans import Difference

__all__ = ["same_items", "same_json", "same_tools"]

_REACH = 50_000
"""Characters before the difference in which a JSON value may begin."""
_STARTS = 64
"""JSON values tried; the outermost first."""
_DECODER = json.JSONDecoder()
_TOOLS = re.compile(r"\b(?:tools?|functions?|plugins?|actions?)\b", re.IGNORECASE)
_CUE_CHARS = 400


def same_json(difference: Difference) -> bool:
    """A JSON value around the difference is equal but for the order of keys."""
    return any(
        old != new and _sorted_keys(old) == _sorted_keys(new)
        for old, new in _raw_values(difference)
    )


def same_tools(difference: Difference) -> bool:
    """The tools are the same, in another order."""
    return any(
        _is_permuted(old, new) and all(map(_is_tool, old))
        for old, new in _collections(difference)
    ) or (same_items(difference) and _speaks_of_tools(difference))


def same_items(difference: Difference) -> bool:
    """Items of a JSON list, lines, or a comma-separated list, in another order."""
    return any(_is_permuted(old, new) for old, new in _collections(difference))


def _collections(difference: Difference) -> Iterator[tuple[list[Any], list[Any]]]:
    for old, new in _values(difference):
        if isinstance(old, list) and isinstance(new, list):
            yield old, new
    yield _lines(difference.old, difference.at), _lines(difference.new, difference.at)
    yield _commas(difference.old, difference.at), _commas(difference.new, difference.at)


def _is_permuted(old: list[Any], new: list[Any]) -> bool:
    if len(old) < 2 or len(old) != len(new):
        return False
    before, after = [_canonical(item) for item in old], [_canonical(i) for i in new]
    return before != after and sorted(before) == sorted(after)


def _is_tool(item: Any) -> bool:
    if isinstance(item, str):
        try:
            item = json.loads(item)
        except ValueError:
            return False
    if not isinstance(item, dict):
        return False
    return "function" in item or (
        "name" in item
        and bool({"description", "parameters", "input_schema"} & set(item))
    )


def _speaks_of_tools(difference: Difference) -> bool:
    before = difference.old[max(0, difference.at - _CUE_CHARS) : difference.at]
    return _TOOLS.search(before) is not None


def _values(difference: Difference) -> Iterator[tuple[Any, Any]]:
    for old, new in _raw_values(difference):
        yield json.loads(old), json.loads(new)


def _raw_values(difference: Difference) -> Iterator[tuple[str, str]]:
    """The JSON texts that span the difference in both prompts, outermost first."""
    found = 0
    for match in re.finditer(
        r"[\[{]", difference.old[max(0, difference.at - _REACH) : difference.at + 1]
    ):
        start = match.start() + max(0, difference.at - _REACH)
        ends = [_json_end(text, start) for text in (difference.old, difference.new)]
        if all(end is not None and end > difference.at for end in ends):
            yield difference.old[start : ends[0]], difference.new[start : ends[1]]
            found += 1
            if found == _STARTS:
                return


def _json_end(text: str, start: int) -> int | None:
    try:
        return _DECODER.raw_decode(text, start)[1]
    except (ValueError, RecursionError):
        return None


def _sorted_keys(text: str) -> str:
    return json.dumps(json.loads(text), sort_keys=True)


def _canonical(item: Any) -> str:
    return item if isinstance(item, str) else json.dumps(item, sort_keys=True)


def _lines(text: str, at: int) -> list[str]:
    """The lines of the block, bounded by blank lines, in which `at` stands."""
    start = text.rfind("\n\n", 0, at) + 2 if "\n\n" in text[:at] else 0
    end = text.find("\n\n", at)
    block = text[start:] if end < 0 else text[start:end]
    return [_NUMBERING.sub("", line.strip()) for line in block.splitlines()]


_NUMBERING = re.compile(r"^(?:\d+[.)]|[-*•])\s+")


def _commas(text: str, at: int) -> list[str]:
    """The comma-separated items of the clause in which `at` stands."""
    start = max(text.rfind(mark, 0, at) for mark in (":", "\n", "(", "[")) + 1
    end = min(
        (p for mark in (".", "\n", ")", "]", ";") if (p := text.find(mark, at)) >= 0),
        default=len(text),
    )
    items = re.split(r",\s*(?:and\s+)?|\s+and\s+", text[start:end].strip())
    return [item.strip() for item in items if item.strip()]
