"""Which dynamic suffixes are worth a copy in host memory.

Fixed prompts always are. A suffix is used once in most workflows, and copying it is
traffic for nothing; but a chat sends its history again with every turn, and must find
it in host memory when it was evicted in between. Which of the two an agent does shows
in its calls: one *goes on* from an earlier one if it begins with at least half of what
followed the fixed prompt there. That is told from the prompts themselves, so it is
known of histories that have left the cache, too.
"""

from __future__ import annotations

import hashlib
import math
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

__all__ = ["Backup", "BackupLimits", "SuffixBackup"]


class Backup(Enum):
    """What of a tagged call is written to host memory."""

    FIXED = "fixed"
    """Its fixed prompt, and nothing else ever."""
    REUSED = "reused"
    """And its suffix, if the agent's calls go on from earlier ones; otherwise on its
    second use."""
    ALL = "all"
    """Everything at once, as SGLang's write-through does."""


@dataclass(frozen=True, slots=True)
class BackupLimits:
    """Bounds of `SuffixBackup`."""

    suffix_hits: int = 2
    """Uses after which a suffix is backed up whoever wrote it; the first counts."""
    memory_calls: int = 64
    """An agent goes on from earlier calls while one of this many did."""
    beginnings: int = 1 << 16
    """Beginnings of suffixes that are remembered, of all agents together."""
    agents: int = 1 << 14


class SuffixBackup:
    """Says after how many uses a call's suffix goes to host memory.

    What it remembers is digests, and the oldest of them goes first.
    """

    def __init__(self, backup: Backup, limits: BackupLimits | None = None) -> None:
        self.backup = backup
        self.limits = limits or BackupLimits()
        self._beginnings: OrderedDict[tuple[str, str, bytes], int] = OrderedDict()
        """(client, agent, digest of a suffix's beginning) -> length of that suffix."""
        self._calls_left: OrderedDict[tuple[str, str], int] = OrderedDict()
        """Owner -> calls until it no longer counts as one that goes on."""

    @property
    def default_hits(self) -> float:
        """Of a suffix whose writer is unknown."""
        if self.backup is Backup.ALL:
            return 1
        return math.inf if self.backup is Backup.FIXED else self.limits.suffix_hits

    def hits(self, client: str, agent: str, suffix: Sequence[int]) -> float:
        """Uses after which the suffix of this call is backed up; 1 is at once.

        `suffix` are the prompt's tokens behind its fixed part. To be asked once per
        call. O(tokens), in C.
        """
        if self.backup is not Backup.REUSED:
            return self.default_hits
        owner = (client, agent)
        left = self._calls_left.pop(owner, None)
        if self._goes_on(owner, suffix):
            left = self.limits.memory_calls
        # Of an agent's first call nobody knows yet: kept, so that a chat loses nothing.
        keep = left is None or left > 0
        self._calls_left[owner] = max((left or 0) - 1, 0)
        if len(self._calls_left) > self.limits.agents:
            self._calls_left.popitem(last=False)
        return 1 if keep else self.limits.suffix_hits

    def __len__(self) -> int:
        return len(self._beginnings)

    def _goes_on(self, owner: tuple[str, str], suffix: Sequence[int]) -> bool:
        """Whether an earlier suffix of the owner is continued; remembers this one."""
        known = self._beginnings
        found = False
        key = None
        for digest in _beginnings(suffix):
            key = (*owner, digest)
            # Of the same length: the same call again, or one of n parallel answers.
            found = found or known.get(key, len(suffix)) != len(suffix)
        if key is not None:
            known.pop(key, None)
            known[key] = len(suffix)
            if len(known) > self.limits.beginnings:
                known.popitem(last=False)
        return found


def _beginnings(suffix: Sequence[int]) -> Iterator[bytes]:
    """Digests of its first 4, 8, 16, … tokens; the last covers more than half of it."""
    data = memoryview(array("q", suffix)).cast("B")
    digest = hashlib.blake2b(digest_size=12)
    done, length = 0, 4
    while length <= len(suffix):
        digest.update(data[done * 8 : length * 8])
        yield digest.digest()
        done, length = length, length * 2
