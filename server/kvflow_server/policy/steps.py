"""The StepTable: who runs next, for every client and run that told us.

Envelopes go in, steps-to-execution come out. An agent's steps are the minimum over
its client's live runs (PAPER.md: several workflows on one node take the minimum). An
agent that no live run will reach again is *retained*: the table then says in how many
steps a next run would reach it, learnt from the first snapshot of the last run.

Pure bookkeeping: the caller passes the time, every bound is a number, and nothing here
knows what a KV cache is. Who holds something that depends on the answers asks for a
`Changes` feed (`StepTable.watch`) and need not look at what stayed as it was.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from kvflow_sdk.wire import StepUpdate, shown_client

from .feeds import Changes, Outcome, StepLimits

__all__ = ["Changes", "Outcome", "StepLimits", "StepTable"]


@dataclass(slots=True)
class _Run:
    seq: int
    seen: float
    steps: dict[str, int] = field(default_factory=dict)
    likelihood: dict[str, float] = field(default_factory=dict)
    remaining: int = 0
    """Steps until this run has reached its farthest agent."""


@dataclass(slots=True)
class _Client:
    name: str
    seen: float
    runs: dict[str, _Run] = field(default_factory=dict)
    ended: OrderedDict[str, float] = field(default_factory=OrderedDict)
    """Tombstones: a late snapshot must not bring an ended run back."""
    nearest: dict[str, dict[int, int]] = field(default_factory=dict)
    """agent -> {steps: number of live runs that say so}."""
    likely: dict[str, dict[float, int]] = field(default_factory=dict)
    """agent -> {likelihood: number of live runs that say so}."""
    remaining: dict[int, int] = field(default_factory=dict)
    """{steps a run has left: number of live runs}."""
    entry: dict[str, int] = field(default_factory=dict)
    """Steps of every agent in the first snapshot of the last run that started."""
    entries: int = 0
    """Entries of `steps` in the snapshots of all live runs."""
    started: int = 0
    """Runs seen so far; from the second on, the client is known to come back."""
    expected: bool = False
    """The client said so itself."""

    @property
    def shift(self) -> int | None:
        """What a next run's steps are counted from; None if none is foreseen."""
        comes_back = self.started > 1 or self.expected
        return min(self.remaining, default=0) if comes_back else None


class StepTable:
    """Steps-to-execution of every (client, agent). Not thread-safe."""

    def __init__(self, limits: StepLimits | None = None) -> None:
        self.limits = limits or StepLimits()
        self.version = 0
        """Grows with every change; equal versions mean equal answers."""
        self._clients: dict[str, _Client] = {}
        self._feeds: list[Changes] = []

    def watch(self) -> Changes:
        """A feed of what changes from now on; its holder clears it."""
        feed = Changes()
        self._feeds.append(feed)
        return feed

    def apply(self, update: StepUpdate, now: float) -> Outcome:
        """Take in one snapshot. O(agents in it). `now` is in seconds."""
        name = update.client
        client = self._clients.get(name) or _Client(name=name, seen=now)
        if update.run in client.ended:
            return Outcome.STALE
        run = client.runs.get(update.run)
        if run is not None and update.seq <= run.seq and not update.final:
            run.seen = client.seen = now
            return Outcome.STALE
        if self.exceeded(update) is not None:
            return Outcome.OVER_CAP
        if update.client not in self._clients:
            self._clients[client.name] = client
            self._mark_client(client)
        client.seen = now
        if update.final:
            self._end_run(client, update.run, now)
        else:
            self._set_run(client, update, now)
        self.version += 1
        return Outcome.APPLIED

    def expect(self, client: str, steps: Mapping[str, int], now: float) -> Outcome:
        """A run of `client` is to come that begins with these steps."""
        known = self._clients.get(client)
        if len(steps) > self.limits.agents_per_client or (
            known is None and len(self._clients) >= self.limits.clients
        ):
            return Outcome.OVER_CAP
        if known is None:
            known = self._clients[client] = _Client(name=client, seen=now)
            self._mark_client(known)
        known.seen = now
        entry, shift = known.entry, known.shift
        if not known.started and entry != steps:
            known.entry = dict(steps)
        known.expected = True
        self._mark_next_run(known, entry, shift)
        self.version += 1
        return Outcome.APPLIED

    def exceeded(self, update: StepUpdate) -> str | None:
        """The bound that `apply` would refuse `update` for, a field of `StepLimits`."""
        client = self._clients.get(update.client)
        if client is None:
            if len(self._clients) >= self.limits.clients:
                return "clients"
            client = _NOBODY
        if update.final or update.run in client.ended:
            return None
        run = client.runs.get(update.run)
        if run is None and len(client.runs) >= self.limits.runs_per_client:
            return "runs_per_client"
        steps = update.steps or {}
        fresh = sum(1 for agent in steps if agent not in client.nearest)
        if len(client.nearest) + fresh > self.limits.agents_per_client:
            return "agents_per_client"
        replaced = len(run.steps) if run is not None else 0
        entries = client.entries + len(steps) - replaced
        full = entries > self.limits.entries_per_client
        return "entries_per_client" if full else None

    def steps(self, client: str, agent: str) -> int | None:
        """Steps of the nearest live run of `client` that will reach `agent`."""
        entry = self._clients.get(client)
        counts = entry.nearest.get(agent) if entry is not None else None
        return min(counts) if counts else None

    def steps_of_next_run(self, client: str, agent: str) -> int | None:
        """Steps until a run that is still to come reaches `agent`.

        What the nearest live run has left, plus the agent's place in the last run's
        first snapshot. None while the client is unknown, has only ever started one
        run, or never mentioned the agent at a run's start.
        """
        entry = self._clients.get(client)
        if entry is None or agent not in entry.entry:
            return None
        shift = entry.shift
        return None if shift is None else shift + entry.entry[agent]

    def likelihood(self, client: str, agent: str) -> float | None:
        """How likely the likeliest live run goes on to `agent`; None is unknown."""
        entry = self._clients.get(client)
        counts = entry.likely.get(agent) if entry is not None else None
        return max(counts) if counts else None

    def knows(self, client: str) -> bool:
        """Whether the client's lease still runs."""
        return client in self._clients

    def run_is_live(self, client: str, run: str) -> bool:
        entry = self._clients.get(client)
        return entry is not None and run in entry.runs

    def is_executing(self, client: str, run: str, agent: str) -> bool:
        """Whether `agent` executes in that very run."""
        entry = self._clients.get(client)
        live = entry.runs.get(run) if entry is not None else None
        return live is not None and live.steps.get(agent) == 0

    def expire(self, now: float) -> list[str]:
        """Forget what has been silent for a lease; returns the clients dropped."""
        horizon = now - self.limits.lease_s
        dropped = [name for name, c in self._clients.items() if c.seen < horizon]
        for name in dropped:
            client = self._clients[name]
            for run in list(client.runs):
                self._drop_run(client, run)
            del self._clients[name]
            self._mark_client(client)
        changed = bool(dropped)
        for client in self._clients.values():
            for name in [n for n, run in client.runs.items() if run.seen < horizon]:
                self._drop_run(client, name)
                changed = True
            while client.ended and next(iter(client.ended.values())) < horizon:
                client.ended.popitem(last=False)
        self.version += changed
        return dropped

    def clear(self) -> None:
        self.expire(float("inf"))

    def clients(self) -> Iterator[str]:
        return iter(self._clients)

    def runs(self, client: str) -> Mapping[str, Mapping[str, int]]:
        """run -> steps, of the client's live runs."""
        entry = self._clients.get(client)
        return {} if entry is None else {n: r.steps for n, r in entry.runs.items()}

    def counts(self) -> dict[str, int]:
        """Sizes, for the state report and for leak tests."""
        clients = self._clients.values()
        return {
            "clients": len(self._clients),
            "runs": sum(len(c.runs) for c in clients),
            "agents": sum(len(c.nearest) for c in clients),
            "tombstones": sum(len(c.ended) for c in clients),
        }

    def check_integrity(self) -> None:
        """Raise AssertionError unless the index agrees with the runs."""
        for name, client in self._clients.items():
            nearest: dict[str, dict[int, int]] = {}
            for run in client.runs.values():
                for agent, steps in run.steps.items():
                    counts = nearest.setdefault(agent, {})
                    counts[steps] = counts.get(steps, 0) + 1
            shown = shown_client(name)
            assert nearest == client.nearest, f"step index of {shown} is off"
            remaining = Counter(
                max(run.steps.values(), default=0) for run in client.runs.values()
            )
            assert remaining == client.remaining, (
                f"what {shown}'s runs have left is off"
            )
            likely: dict[str, dict[float, int]] = {}
            for run in client.runs.values():
                for agent, value in run.likelihood.items():
                    _count(likely.setdefault(agent, {}), value, +1)
            assert likely == client.likely, f"likelihoods of {shown} are off"
            entries = sum(len(run.steps) for run in client.runs.values())
            assert entries == client.entries, f"entries of {shown} are off"
            assert not client.runs.keys() & client.ended.keys(), shown

    def _set_run(self, client: _Client, update: StepUpdate, now: float) -> None:
        entry, shift = client.entry, client.shift
        run = client.runs.get(update.run)
        if run is None:
            run = client.runs[update.run] = _Run(seq=update.seq, seen=now)
            _count(client.remaining, 0, +1)
            client.started += 1
            if update.steps:
                client.entry = dict(update.steps)
            self._mark_run(client, update.run)
        run.seq = update.seq
        run.seen = now
        if update.steps is not None:
            self._move(client, update.run, run, dict(update.steps))
            self._set_likelihood(client, run, update.likelihood or {})
        self._mark_next_run(client, entry, shift)

    def _end_run(self, client: _Client, name: str, now: float) -> None:
        self._drop_run(client, name)
        client.ended[name] = now
        while len(client.ended) > self.limits.tombstones_per_client:
            client.ended.popitem(last=False)

    def _drop_run(self, client: _Client, name: str) -> None:
        run = client.runs.get(name)
        if run is None:
            return
        shift = client.shift
        self._move(client, name, run, {})
        self._set_likelihood(client, run, {})
        _count(client.remaining, 0, -1)
        del client.runs[name]
        self._mark_run(client, name)
        self._mark_next_run(client, client.entry, shift)

    def _move(
        self, client: _Client, name: str, run: _Run, steps: dict[str, int]
    ) -> None:
        """Replace a run's snapshot. O(agents in the old one and the new one)."""
        old, run.steps = run.steps, steps
        client.entries += len(steps) - len(old)
        agents = _recount(client.nearest, old, steps)
        calls = [a for a in agents if old.get(a) == 0 or steps.get(a) == 0]
        _count(client.remaining, run.remaining, -1)
        run.remaining = max(steps.values(), default=0)
        _count(client.remaining, run.remaining, +1)
        for feed in self._feeds:
            feed.agents.update(dict.fromkeys((client.name, agent) for agent in agents))
            feed.calls.update(
                dict.fromkeys((client.name, name, agent) for agent in calls)
            )

    def _set_likelihood(
        self, client: _Client, run: _Run, likelihood: Mapping[str, float]
    ) -> None:
        old = run.likelihood
        run.likelihood = {a: v for a, v in likelihood.items() if a in run.steps}
        if old == run.likelihood:
            return
        moved = _recount(client.likely, old, run.likelihood)
        for feed in self._feeds:
            feed.agents.update(dict.fromkeys((client.name, agent) for agent in moved))

    def _mark_next_run(
        self, client: _Client, entry: dict[str, int], shift: int | None
    ) -> None:
        """Mark who a next run would reach, if that is no longer as it was."""
        if client.shift == shift and client.entry is entry:
            return
        waiting = [a for a in {**entry, **client.entry} if a not in client.nearest]
        for feed in self._feeds:
            feed.agents.update(dict.fromkeys((client.name, agent) for agent in waiting))

    def _mark_run(self, client: _Client, run: str) -> None:
        for feed in self._feeds:
            feed.runs[client.name, run] = None

    def _mark_client(self, client: _Client) -> None:
        for feed in self._feeds:
            feed.clients[client.name] = None
            feed.agents.update(
                dict.fromkeys((client.name, agent) for agent in client.entry)
            )


_Number = TypeVar("_Number", int, float)


def _count(counts: dict[_Number, int], value: _Number, sign: int) -> None:
    counts[value] = counts.get(value, 0) + sign
    if not counts[value]:
        del counts[value]


def _recount(
    index: dict[str, dict[_Number, int]],
    old: Mapping[str, _Number],
    new: Mapping[str, _Number],
) -> list[str]:
    """Count what one run says of its agents as `new` and no longer as `old`; the agents
    of which it says something else. O(agents in both)."""
    changed = []
    for agent in {**old, **new}:
        before, after = old.get(agent), new.get(agent)
        if before == after:
            continue
        counts = index.setdefault(agent, {})
        if before is not None:
            _count(counts, before, -1)
        if after is not None:
            _count(counts, after, +1)
        if not counts:
            del index[agent]
        changed.append(agent)
    return changed


_NOBODY = _Client(name="", seen=0.0)
"""Stands for a client that is not known yet; never changed."""
