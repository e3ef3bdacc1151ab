"""Where two prompts part, and where they meet again."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import Match, SequenceMatcher
from functools import cached_property

__all__ = [
    "Difference",
    "common_prefix",
    "differences",
    "first_difference",
    "most_shared",
    "shared_after",
]

_WINDOW = 200
"""Characters on each side in which a shape is looked for."""
_REACH = 20_000
"""Characters after the difference that are compared; bounds the time."""
_WORD = re.compile(r"\s+|\w+|[^\w\s]")
_MEET = 4
"""Words in a row that must be the same for two texts to have met again."""


def common_prefix(old: str, new: str) -> int:
    """Length of the longest common prefix, in characters."""
    # Bisecting over slices compares at the speed of memcmp, which a loop does not.
    low, high = 0, min(len(old), len(new))
    while low < high:
        middle = (low + high + 1) // 2
        if old[low:middle] == new[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def first_difference(old: str, new: str) -> Difference | None:
    """Where the texts part; None if they are the same, or one goes on where the
    other ends, which is growth and no drift."""
    at = common_prefix(old, new)
    if at in (len(old), len(new)):
        return None
    return Difference(old, new, at)


def differences(old: str, new: str, limit: int = 8) -> Iterator[Difference]:
    """The places where the texts differ, each as if those before it were the same;
    at most `limit`."""
    for _ in range(limit):
        found = first_difference(old, new)
        if found is None:
            return
        yield found
        gone, come = found.changed
        start = found.word_start
        new = old[: start + len(gone)] + new[start + len(come) :]
        if new == old[: len(new)] or not gone + come:
            return


def shared_after(old: str, new: str, at: int) -> int:
    """Characters that both have after their first difference at `at`, in the same
    order: what a cache could keep if the difference stood at the end."""
    if old[at:] == new[at:]:
        return len(old) - at
    return Difference(old, new, at).shared


def most_shared(old: str, new: str, at: int) -> int:
    """No less than `shared_after`, and much cheaper: as if order did not matter."""
    words = (Counter(_WORD.findall(text[at : at + _REACH])) for text in (old, new))
    both = next(words) & next(words)
    return sum(len(word) * count for word, count in both.items())


@dataclass(frozen=True)
class Difference:
    """The first difference between two texts: `old[:at] == new[:at]`."""

    old: str
    new: str
    at: int

    @cached_property
    def word_start(self) -> int:
        """Where the word begins in which the texts part."""
        start = self.at
        while start > 0 and _is_wordy(self.old[start - 1]):
            start -= 1
        return start

    @cached_property
    def _matched(self) -> tuple[list[str], list[str], list[Match]]:
        """The words of both texts from `word_start` on, and the runs they share."""
        start = self.word_start
        old = _WORD.findall(self.old[start : start + _REACH])
        new = _WORD.findall(self.new[start : start + _REACH])
        matcher = SequenceMatcher(None, old, new, autojunk=False)
        return old, new, matcher.get_matching_blocks()

    @cached_property
    def shared(self) -> int:
        """Characters that both texts have after the difference, in the same order."""
        old, _, blocks = self._matched
        return sum(
            sum(map(len, old[block.a : block.a + block.size]))
            for block in blocks
            if block.size >= _MEET
        )

    @cached_property
    def changed(self) -> tuple[str, str]:
        """What stands in the old and in the new text until they meet again."""
        old, new, blocks = self._matched
        for block in blocks:
            if block.size >= _MEET or block.a + block.size == len(old):
                return "".join(old[: block.a]), "".join(new[: block.b])
        return "".join(old), "".join(new)

    def match_at(self, pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
        """The match of `pattern` in `text` that covers the difference."""
        for match in pattern.finditer(
            text, max(0, self.at - _WINDOW), self.at + _WINDOW
        ):
            if match.start() <= self.at <= match.end() and match.end() > match.start():
                return match
        return None

    def around(self, text: str, chars: int = 40) -> str:
        """`chars` characters of `text` on each side of the difference."""
        return text[max(0, self.at - chars) : self.at + chars]


def _is_wordy(char: str) -> bool:
    return char.isalnum() or char in "_@-'\u2019"
