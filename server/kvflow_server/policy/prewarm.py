"""Which fixed prompt is computed ahead of its agent's first call, and how much of it.

Pure bookkeeping: the engine says when the device is idle, and how near an agent is.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

__all__ = ["Prewarm", "PrewarmLimits", "PrewarmQueue"]


@dataclass(frozen=True, slots=True)
class PrewarmLimits:
    """Bounds of pre-warming."""

    enabled: bool = False
    client_tokens: int = 1 << 16
    """Tokens that are computed ahead for one client while its lease runs."""
    prompts: int = 1024
    """Prompts that wait, over all clients."""
    waiting_tokens: int = 1 << 22
    """Tokens of all prompts that wait."""
    idle_s: float = 0.1
    """Seconds without any request before the device counts as idle."""
    tries: int = 3
    """Attempts at one piece of a prompt before the prompt is given up."""


@dataclass(slots=True, eq=False)
class Prewarm:
    """One fixed prompt that waits."""

    client: str
    agent: str
    tokens: array[int]
    extra_key: str | None = None
    cache_salt: str | None = None
    failures: int = 0


@dataclass(slots=True)
class PrewarmQueue:
    """The prompts that wait, and what their clients have had. Not thread-safe."""

    limits: PrewarmLimits
    version: int = 0
    """Grows whenever a prompt comes or goes."""
    _waiting: list[Prewarm] = field(default_factory=list)
    _spent: Counter[str] = field(default_factory=Counter)

    def add(self, entry: Prewarm) -> str | None:
        """Take `entry` in, or say which bound it exceeds. A prompt that waits already
        is taken in once."""
        same = (
            known
            for known in self._waiting
            if (known.client, known.agent) == (entry.client, entry.agent)
            and known.tokens == entry.tokens
        )
        if next(same, None) is not None:
            return None
        if refusal := self._exceeded(entry):
            return refusal
        self._waiting.append(entry)
        self.version += 1
        return None

    def nearest_first(self, steps: Callable[[str, str], float]) -> Iterator[Prewarm]:
        """The waiting prompts by their agents' `steps`, then as they came."""
        return iter(
            sorted(self._waiting, key=lambda entry: steps(entry.client, entry.agent))
        )

    def spend(self, entry: Prewarm, tokens: int) -> None:
        """`tokens` of `entry` are computed."""
        self._spent[entry.client] += tokens

    def fail(self, entry: Prewarm) -> None:
        """A piece of `entry` did not come about; after some tries it is given up."""
        entry.failures += 1
        if entry.failures >= self.limits.tries:
            self.remove(entry)

    def remove(self, entry: Prewarm) -> None:
        """`entry` is in the cache, or will never be."""
        if entry in self._waiting:
            self._waiting.remove(entry)
            self.version += 1

    def drop_client(self, client: str) -> None:
        """The client's lease has ended."""
        self._spent.pop(client, None)
        kept = [entry for entry in self._waiting if entry.client != client]
        self.version += len(kept) < len(self._waiting)
        self._waiting = kept

    def __len__(self) -> int:
        return len(self._waiting)

    def _exceeded(self, entry: Prewarm) -> str | None:
        limits = self.limits
        own = sum(len(e.tokens) for e in self._waiting if e.client == entry.client)
        spent = self._spent[entry.client] + own
        if spent + len(entry.tokens) > limits.client_tokens:
            return (
                f"the prompt of agent {entry.agent!r} has {len(entry.tokens)} tokens, "
                f"{spent} of the {limits.client_tokens} for its client are taken "
                "(KVFLOW_PREWARM_TOKENS)"
            )
        if len(self._waiting) >= limits.prompts:
            return f"{limits.prompts} prompts wait already"
        waiting = sum(len(other.tokens) for other in self._waiting)
        if waiting + len(entry.tokens) > limits.waiting_tokens:
            return f"prompts of {limits.waiting_tokens} tokens wait already"
        return None
