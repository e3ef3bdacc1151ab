"""What is evicted first (DESIGN.md, "Priorities in the tree").

One number does not order everything, so the key is (class, -P, last access) and the
smallest key goes first. P is the node's steps-to-execution: the minimum over the
fixed prompts that end in its subtree, so a shared prefix is as near as the nearest
agent below it; among equal steps the likelihood decides, as far as it is known. Class and -P together are a node's `Rank`; recency decides among equals.

`Order` takes the policy apart: how much of it is applied.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, IntEnum
from functools import lru_cache
from typing import NamedTuple

from .steps import StepTable

__all__ = [
    "UNKNOWN",
    "EvictionClass",
    "EvictionKey",
    "Order",
    "Owner",
    "Rank",
    "Use",
    "eviction_key",
    "nearness",
    "prompt_rank",
    "suffix_rank",
]


class Order(Enum):
    """How much of the policy decides. All of them end with least recently used."""

    RECENCY = "recency"
    """Nothing else: SGLang's LRU."""
    STEPS = "steps"
    """The paper's: agents that a live run will reach, farthest first, after all else."""
    CLASSES = "classes"
    """The classes without steps: what is protected is, and nothing is nearer."""
    WORKFLOW = "workflow"
    """Classes, steps, and the steps of runs that are still to come."""


class EvictionClass(IntEnum):
    """First evicted first."""

    ENDED_SUFFIX = 1
    SUFFIX = 2
    UNKNOWN = 3
    SHARED = 4
    """No fixed prompt, but several clients or runs have used it."""
    LIVE_SUFFIX = 5
    RETAINED = 6
    """Fixed prompts that no live run will reach, while their client's lease runs."""
    FIXED = 7


class Rank(NamedTuple):
    """A node's place in the order but for recency; the smallest is evicted first."""

    group: EvictionClass
    nearness: float
    """-P: the larger the steps-to-execution, the earlier the node goes; of equal ones
    the less likely goes first (`nearness`)."""


class EvictionKey(NamedTuple):
    """Compares as a tuple; the smallest is evicted first."""

    group: EvictionClass
    nearness: float
    last_access: float


class Owner(NamedTuple):
    """Who wrote a dynamic suffix last."""

    client: str
    run: str
    agent: str


class Use(IntEnum):
    """Who has used a node that no fixed prompt needs."""

    OWN = 0
    """One run wrote it, and no other has used it."""
    FOREIGN = 1
    """Untagged traffic wrote it before a tagged run used it; so that run's end is not
    its end, and a client cannot demote what others are using."""
    SHARED = 2
    """Tagged requests of two or more clients or runs."""


UNKNOWN = Rank(EvictionClass.UNKNOWN, 0)
_RANKS = {group: Rank(group, 0) for group in EvictionClass}
_UNREACHED = Rank(EvictionClass.RETAINED, -float("inf"))
_LEVELS = 16
"""Likelihoods closer to each other than this many'th count as equal: what hardly differs
is not worth a copy."""


def nearness(steps: int, unlikelihood: float = 0.0) -> float:
    """-P, between agents of equal steps the likelier one a little nearer; never as near
    as one that is a step less away. An unknown likelihood counts as 1."""
    return -steps - round(unlikelihood * _LEVELS) / (_LEVELS + 1)


@lru_cache(maxsize=4096)
def _at(group: EvictionClass, steps: int, unlikelihood: float = 0.0) -> Rank:
    """Thousands of prompts share a few of these."""
    return Rank(group, nearness(steps, unlikelihood))


def prompt_rank(table: StepTable, order: Order, client: str, agent: str) -> Rank:
    """The rank of the fixed prompts of (client, agent)."""
    if order is Order.RECENCY:
        return UNKNOWN
    if order is Order.CLASSES:
        return _RANKS[EvictionClass.FIXED] if table.knows(client) else UNKNOWN
    steps = table.steps(client, agent)
    if steps is not None and order is Order.STEPS:
        return _at(EvictionClass.FIXED, steps)
    if steps is not None:
        likelihood = table.likelihood(client, agent)
        unlikely = 0.0 if likelihood is None else 1.0 - likelihood
        return _at(EvictionClass.FIXED, steps, unlikely)
    if order is Order.STEPS or not table.knows(client):
        return UNKNOWN
    again = table.steps_of_next_run(client, agent)
    return _UNREACHED if again is None else _at(EvictionClass.RETAINED, again)


def suffix_rank(
    table: StepTable, order: Order, owner: Owner | None, use: Use = Use.OWN
) -> Rank:
    """The rank of a node below which no fixed prompt ends."""
    if owner is None or order is Order.RECENCY or order is Order.STEPS:
        return UNKNOWN
    if order is Order.WORKFLOW and table.is_executing(*owner):
        group = EvictionClass.LIVE_SUFFIX
    elif use is Use.SHARED:
        group = EvictionClass.SHARED
    elif use is Use.FOREIGN:
        group = EvictionClass.UNKNOWN
    elif table.run_is_live(owner.client, owner.run):
        group = EvictionClass.SUFFIX
    else:
        group = EvictionClass.ENDED_SUFFIX
    return _RANKS[group]


def eviction_key(
    table: StepTable,
    prompts: Iterable[tuple[str, str]],
    owner: Owner | None,
    last_access: float,
    *,
    order: Order = Order.WORKFLOW,
    use: Use = Use.OWN,
) -> EvictionKey:
    """The key of a node, from first principles: the engine keeps it up to date instead.

    `prompts` are the (client, agent) whose fixed prompt ends in the node's subtree,
    `owner` who wrote the node if none does. With neither the node is unknown to
    KVFlow, and among unknown nodes the order is exactly SGLang's LRU.
    """
    rank = max(
        (prompt_rank(table, order, client, agent) for client, agent in prompts),
        default=None,
    )
    if rank is None:
        rank = suffix_rank(table, order, owner, use)
    return EvictionKey(*rank, last_access)
