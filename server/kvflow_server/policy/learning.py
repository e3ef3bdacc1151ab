"""Where an agent's fixed prompt ends, learnt from its calls.

For agents that mark nothing. The boundary is the longest common token prefix of an
agent's recent calls, once repetition has confirmed it. One odd call does not shrink
it: a call that shares too little starts a cluster of its own, which is how an agent
with two prompts gets two boundaries. When calls keep parting early, the agent's prompt
drifts, and the learner says at which token.

Pure bookkeeping over token ids; keeps the latest prompt of each cluster and nothing
else, and every bound is a number.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

__all__ = ["BoundaryLearner", "DriftCount", "LearningLimits", "common_tokens"]


@dataclass(frozen=True, slots=True)
class LearningLimits:
    """Bounds of a `BoundaryLearner`."""

    agents: int = 8192
    """Agents, over all clients; the one not heard of for longest goes."""
    prompts_per_agent: int = 8
    min_tokens: int = 32
    """A common prefix shorter than this is not worth a boundary."""
    confirm: int = 2
    """Repetitions that have to agree before a boundary is used."""
    window: int = 8
    """Recent repetitions that decide."""
    keep: float = 0.5
    """A call that shares less than this share of a known boundary is another prompt."""
    max_tokens: int = 1 << 17
    """Tokens kept of a prompt."""


@dataclass(slots=True)
class DriftCount:
    """How often an agent's calls parted before the end of what used to be fixed."""

    calls: int = 0
    token: int = 0
    """Tokens that the latest such pair of calls had in common."""
    expected: int = 0
    """Tokens that should have been: the boundary, or the whole shorter prompt."""
    lost: int = 0
    """Tokens computed again because of it, over all `calls`."""


@dataclass(slots=True)
class _Cluster:
    """Calls of one agent that begin alike."""

    sample: array[int]
    """The tokens of the latest call that has the boundary."""
    common: deque[int]
    """Common prefixes of the latest calls with the sample before them."""
    boundary: int = 0
    """0 until confirmed."""


@dataclass(slots=True)
class _Agent:
    clusters: list[_Cluster] = field(default_factory=list)
    """Least recently used first."""
    calls: int = 0
    found_after: int | None = None
    drift: DriftCount = field(default_factory=DriftCount)


class BoundaryLearner:
    """Learned fixed-prompt boundaries of every (client, agent). Not thread-safe."""

    def __init__(self, limits: LearningLimits | None = None) -> None:
        self.limits = limits or LearningLimits()
        self._agents: OrderedDict[tuple[str, str], _Agent] = OrderedDict()
        self._of_client: dict[str, dict[str, None]] = {}

    def observe(self, client: str, agent: str, tokens: array[int]) -> int:
        """Take in one call's prompt; how many of its tokens are fixed, 0 if unknown.

        Compares memory; no loop over tokens.
        """
        known = self._agent(client, agent)
        tokens = tokens[: self.limits.max_tokens]
        shared = [common_tokens(c.sample, tokens) for c in known.clusters]
        best = max(range(len(shared)), key=shared.__getitem__, default=None)
        if best is not None and tokens == known.clusters[best].sample:
            # A retry, or a copy of one call: it says nothing about what is fixed.
            return known.clusters[best].boundary
        known.calls += 1
        if best is None or not self._belongs(known.clusters[best], shared[best]):
            self._note_drift(known, best, shared, tokens)
            self._open(known, tokens)
            return 0
        cluster = known.clusters.pop(best)
        known.clusters.append(cluster)
        self._extend(known, cluster, tokens, shared[best])
        return cluster.boundary

    def drift(self, client: str, agent: str) -> DriftCount | None:
        """What is known of the agent's drift; None if its calls never parted early."""
        known = self._agents.get((client, agent))
        return known.drift if known is not None and known.drift.calls else None

    def is_lost(self, client: str, agent: str) -> bool:
        """Whether the agent's calls keep parting early, with no boundary found."""
        known = self._agents.get((client, agent))
        if known is None or any(cluster.boundary for cluster in known.clusters):
            return False
        return known.drift.calls >= self.limits.confirm

    def boundaries(self, client: str, agent: str) -> list[int]:
        """The agent's confirmed boundaries, in tokens."""
        known = self._agents.get((client, agent))
        clusters = known.clusters if known is not None else []
        return [cluster.boundary for cluster in clusters if cluster.boundary]

    def found_after(self, client: str, agent: str) -> int | None:
        """Calls it took until the first boundary was confirmed."""
        known = self._agents.get((client, agent))
        return known.found_after if known is not None else None

    def drop_client(self, client: str) -> None:
        """The client's lease has ended."""
        for agent in self._of_client.pop(client, ()):
            del self._agents[client, agent]

    def clear(self) -> None:
        self._agents.clear()
        self._of_client.clear()

    def agents(self) -> Iterator[tuple[str, str]]:
        return iter(self._agents)

    def agents_of(self, client: str) -> Iterator[str]:
        """The client's agents that have made a call."""
        return iter(self._of_client.get(client, ()))

    def __len__(self) -> int:
        return len(self._agents)

    def _agent(self, client: str, agent: str) -> _Agent:
        key = client, agent
        known = self._agents.setdefault(key, _Agent())
        self._agents.move_to_end(key)
        self._of_client.setdefault(client, {})[agent] = None
        while len(self._agents) > self.limits.agents:
            oldest, name = self._agents.popitem(last=False)[0]
            del self._of_client[oldest][name]
            if not self._of_client[oldest]:
                del self._of_client[oldest]
        return known

    def _belongs(self, cluster: _Cluster, shared: int) -> bool:
        least = max(self.limits.min_tokens, int(self.limits.keep * cluster.boundary))
        return shared >= least

    def _open(self, known: _Agent, tokens: array[int]) -> None:
        window: deque[int] = deque(maxlen=self.limits.window)
        known.clusters.append(_Cluster(tokens, window))
        if len(known.clusters) > self.limits.prompts_per_agent:
            del known.clusters[0]

    def _extend(
        self, known: _Agent, cluster: _Cluster, tokens: array[int], shared: int
    ) -> None:
        if cluster.boundary - shared >= self.limits.min_tokens:
            self._count(known.drift, shared, cluster.boundary)
        cluster.common.append(shared)
        cluster.boundary = self._settled(cluster)
        if shared >= cluster.boundary:
            # Not after an odd call, or its successor would look odd as well.
            cluster.sample = tokens
        if cluster.boundary and known.found_after is None:
            known.found_after = known.calls

    def _settled(self, cluster: _Cluster) -> int:
        """The boundary that the recent common prefixes speak for.

        The shortest of them, if `confirm` of them are there. A known boundary shrinks
        when `confirm` of the recent ones are shorter, and grows when all of a full
        window are longer.
        """
        recent = sorted(cluster.common)
        if len(recent) < self.limits.confirm:
            return 0
        if not cluster.boundary:
            return recent[0]
        shorter = [length for length in recent if length < cluster.boundary]
        if len(shorter) >= self.limits.confirm:
            return shorter[0]
        if not shorter and len(recent) == self.limits.window:
            return recent[0]
        return cluster.boundary

    def _note_drift(
        self,
        known: _Agent,
        best: int | None,
        shared: list[int],
        tokens: array[int],
    ) -> None:
        """A call that belongs to no cluster, though others came before it."""
        if best is None:
            return
        cluster = known.clusters[best]
        expected = cluster.boundary or min(len(cluster.sample), len(tokens))
        if expected - shared[best] >= self.limits.min_tokens:
            self._count(known.drift, shared[best], expected)

    @staticmethod
    def _count(drift: DriftCount, token: int, expected: int) -> None:
        drift.calls += 1
        drift.token = token
        drift.expected = expected
        drift.lost += expected - token


def common_tokens(old: array[int], new: array[int]) -> int:
    """Length of the longest common prefix; compares memory, block by block."""
    low, end = 0, min(len(old), len(new))
    while low < end and old[low : low + _BLOCK] == new[low : low + _BLOCK]:
        low += _BLOCK
    low, high = min(low, end), min(low + _BLOCK, end)
    while low < high:
        middle = (low + high + 1) // 2
        if old[low:middle] == new[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


_BLOCK = 512
