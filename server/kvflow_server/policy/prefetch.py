"""The prefetch planner: for whom to copy to the device next, and how much.

While an agent executes, the fixed prompts of those that run next come back from host
memory, nearest and likeliest first, in pieces small enough that an on-demand load
never waits long behind one (PAPER.md, "Prefetch"). Everything is decided piece by
piece, so that a run that ends or turns elsewhere cancels what was not sent yet.

The parts: `CandidateIndex` keeps who is within the horizon, `Room` says whether a piece
fits, `PrefetchAccounts` who has earned it; `estimates` whether it would come in time.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from .steps import StepTable

__all__ = [
    "Candidate",
    "CandidateIndex",
    "Credit",
    "PrefetchAccounts",
    "PrefetchLimits",
    "Room",
    "Usage",
]


@dataclass(frozen=True, slots=True)
class PrefetchLimits:
    """Bounds of the planner."""

    horizon: int = 1
    """Agents at most this many steps away are fetched."""
    idle_horizon: int = 2
    """The same while nothing else is on the bus."""
    lull_s: float = 0.1
    """So long after the device has had something to do nobody beyond the horizon is fetched
    for: answers have just been sent, and the calls that follow come next."""
    max_inflight: int = 2
    """Copies to the device that may be in flight at once, on-demand loads included."""
    piece_tokens: int = 512
    """Fixed prompts are cut at multiples of this; a piece is one node."""
    credit_window: int = 32
    credit_floor: float = 0.5
    """A client whose share of used prefetches is lower is throttled."""
    agents_accounted: int = 1024
    """Agents of one client whose prefetches are accounted for, the latest."""

    def cuts(self, boundary: int, length: int, page_size: int = 1) -> list[int]:
        """Where nodes must end in a prompt of `length` tokens whose fixed part ends at
        `boundary`, ascending, whole pages; no piece much smaller than the others."""
        piece = max(self.piece_tokens, page_size) // page_size * page_size
        cuts = range(piece, boundary - piece // 2, piece)
        return [cut for cut in [*cuts, boundary] if 0 < cut <= length]

    @property
    def reach(self) -> int:
        """Steps beyond which nobody is ever fetched for."""
        return max(self.horizon, self.idle_horizon)


class Candidate(NamedTuple):
    """An agent worth fetching for; the smallest comes first."""

    retained: bool
    """Wanted by a run that is still to come: only when no live run wants anything."""
    steps: int
    unlikelihood: float
    """1 - likelihood; an unknown likelihood counts as 1."""
    since: int
    """Among equals, who has waited longest."""
    client: str
    agent: str


class CandidateIndex:
    """The agents within reach whose fixed prompt is not wholly on the device.

    Told when a prompt loses its place (`miss`) or is found whole (`found`); follows the
    StepTable's own feed of changes. So planning costs what is wanted and missing, not
    what is known.
    """

    def __init__(
        self, table: StepTable, limits: PrefetchLimits, *, next_run: bool = True
    ) -> None:
        self._table = table
        self._next_run = next_run
        """Whether runs that are still to come are foreseen."""
        self._reach = limits.reach
        self._changes = table.watch()
        self._missing: dict[str, dict[str, None]] = {}
        """client -> its agents whose prompts are not wholly on the device."""
        self._ranked: dict[tuple[str, str], Candidate] = {}
        self._order: list[Candidate] = []
        self._arrivals = 0
        self.version = 0
        """Grows with every change; equal versions mean the same candidates."""

    def miss(self, client: str, agent: str) -> None:
        """A part of a prompt of (client, agent) has left the device."""
        agents = self._missing.setdefault(client, {})
        if agent not in agents:
            agents[agent] = None
            self._rank(client, agent)

    def found(self, client: str, agent: str) -> None:
        """All prompts of (client, agent) are on the device, or gone."""
        agents = self._missing.get(client, {})
        if agent in agents:
            del agents[agent]
            if not agents:
                del self._missing[client]
            self._place((client, agent), None)

    def drop(self, client: str) -> None:
        """The client's lease has ended."""
        for agent in list(self._missing.get(client, ())):
            self.found(client, agent)

    def clear(self) -> None:
        self._missing.clear()
        self._ranked.clear()
        self._order.clear()
        self.version += 1

    def take_in(self) -> Iterable[tuple[str, str]]:
        """Follow what the table was told since; the (client, run) that began, ended or
        went a step on."""
        for client, agent in self._changes.agents:
            if agent in self._missing.get(client, ()):
                self._rank(client, agent)
        moved = dict.fromkeys((c, run) for c, run, _ in self._changes.calls)
        moved.update(self._changes.runs)
        self._changes.clear()
        return moved

    def missing(self) -> Iterator[tuple[str, str]]:
        """Every (client, agent) that `miss` was told of, within reach or not."""
        for client, agents in self._missing.items():
            for agent in agents:
                yield client, agent

    def in_order(self) -> list[Candidate]:
        """Nearest and likeliest first; as of the last `take_in`."""
        return list(self._order)

    def __len__(self) -> int:
        return len(self._order)

    def _rank(self, client: str, agent: str) -> None:
        steps = self._table.steps(client, agent)
        retained = steps is None
        if steps is None and self._next_run:
            steps = self._table.steps_of_next_run(client, agent)
        if steps is None or steps > self._reach:
            self._place((client, agent), None)
            return
        likelihood = self._table.likelihood(client, agent)
        unlikely = 0.0 if likelihood is None else 1.0 - likelihood
        before = self._ranked.get((client, agent))
        if before is not None and before[:3] == (retained, steps, unlikely):
            return
        self._arrivals += 1
        self._place(
            (client, agent),
            Candidate(retained, steps, unlikely, self._arrivals, client, agent),
        )

    def _place(self, owner: tuple[str, str], candidate: Candidate | None) -> None:
        before = self._ranked.pop(owner, None)
        if before is not None:
            del self._order[bisect_left(self._order, before)]
        if candidate is not None:
            self._ranked[owner] = candidate
            insort(self._order, candidate)
        self.version += before is not candidate


@dataclass(frozen=True, slots=True)
class Room:
    """What the device's pool can take in, in tokens."""

    free: int
    """Slots that hold nothing."""
    unlocked: int
    """Slots that eviction could free, whatever they hold."""
    reserve: int
    """What running requests may still write."""

    def takes(self, tokens: int, displaceable: Callable[[int], int]) -> bool:
        """Whether a prefetch of `tokens` fits.

        `displaceable(enough)`: tokens that are evicted before what the prefetch brings
        in, counted up to `enough`. Asked only if the free slots do not do.
        """
        if self.free + self.unlocked - tokens < self.reserve:
            return False
        short = tokens - self.free
        return short <= 0 or displaceable(short) >= short


@dataclass(slots=True)
class Credit:
    """Whether a client's prefetches are used; counts pieces."""

    window: deque[bool] = field(default_factory=deque)

    def record(self, used: bool, limits: PrefetchLimits) -> None:
        self.window.append(used)
        while len(self.window) > limits.credit_window:
            self.window.popleft()

    def allows(self, limits: PrefetchLimits) -> bool:
        """A full window below the floor stops prefetching for the client."""
        if len(self.window) < limits.credit_window:
            return True
        return sum(self.window) >= limits.credit_floor * len(self.window)


@dataclass(slots=True)
class Usage:
    """What became of the tokens prefetched for one agent; the rest is still there."""

    issued: int = 0
    used: int = 0
    unused: int = 0
    """Evicted before any request used them."""


@dataclass(slots=True)
class _Account:
    credit: Credit = field(default_factory=Credit)
    agents: OrderedDict[str, Usage] = field(default_factory=OrderedDict)
    withheld: dict[str, None] = field(default_factory=dict)
    """Agents that were not fetched for while the client was throttled."""


class PrefetchAccounts:
    """What each client's prefetches came to, by agent, and who is throttled."""

    def __init__(self, limits: PrefetchLimits) -> None:
        self._limits = limits
        self._accounts: dict[str, _Account] = {}

    def issued(self, client: str, agent: str, tokens: int) -> None:
        agents = self._accounts.setdefault(client, _Account()).agents
        agents.setdefault(agent, Usage()).issued += tokens
        agents.move_to_end(agent)
        if len(agents) > self._limits.agents_accounted:
            agents.popitem(last=False)

    def settled(self, client: str, agent: str, tokens: int, *, used: bool) -> None:
        """A prefetched piece was used, or left the device without."""
        account = self._accounts.get(client)
        if account is None:
            return
        account.credit.record(used, self._limits)
        usage = account.agents.get(agent)
        if usage is not None and used:
            usage.used += tokens
        elif usage is not None:
            usage.unused += tokens

    def allows(self, client: str, agent: str) -> bool:
        """Whether to prefetch; if not, remembers that it was wanted."""
        account = self._accounts.get(client)
        if account is None or account.credit.allows(self._limits):
            return True
        account.withheld[agent] = None
        if len(account.withheld) > self._limits.agents_accounted:
            # The oldest: an agent that never comes again must not keep others out.
            del account.withheld[next(iter(account.withheld))]
        return False

    def missed(self, client: str, agent: str) -> None:
        """A call had to load on demand. Where the prefetch was withheld it would have
        been used: so a throttled client earns its credit back."""
        account = self._accounts.get(client)
        if account is not None and agent in account.withheld:
            del account.withheld[agent]
            account.credit.record(True, self._limits)

    def drop(self, client: str) -> None:
        self._accounts.pop(client, None)

    def of(self, client: str) -> Mapping[str, Usage]:
        account = self._accounts.get(client)
        return account.agents if account is not None else {}

    def throttled(self, client: str) -> bool:
        account = self._accounts.get(client)
        return account is not None and not account.credit.allows(self._limits)

    def __len__(self) -> int:
        return len(self._accounts)
