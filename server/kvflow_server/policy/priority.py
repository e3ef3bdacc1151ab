"""What is evicted first (DESIGN.md, "Priorities in the tree").

One number does not order everything, so the key is (class, -P, last access) and the
smallest key goes first. P is the node's steps-to-execution: the minimum over the
fixed prompts that end in its subtree, so a shared prefix is as near as the nearest
agent below it.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from .steps import StepTable

__all__ = ["EvictionClass", "EvictionKey", "Owner", "eviction_key", "prompt_key"]


class EvictionClass(IntEnum):
    """First evicted first. Class 4 (unknown KV that several have used) comes later."""

    ENDED_SUFFIX = 1
    SUFFIX = 2
    UNKNOWN = 3
    LIVE_SUFFIX = 5
    RETAINED = 6
    """Fixed prompts that no live run will reach, while their client's lease runs."""
    FIXED = 7


class EvictionKey(NamedTuple):
    """Compares as a tuple; the smallest is evicted first."""

    group: EvictionClass
    nearness: float
    """-P: the larger the steps-to-execution, the earlier the node goes."""
    last_access: float


class Owner(NamedTuple):
    """Who wrote a dynamic suffix last."""

    client: str
    run: str
    agent: str


_UNREACHED = -float("inf")


def prompt_key(
    table: StepTable, client: str, agent: str, last_access: float
) -> EvictionKey:
    """The key of one fixed prompt of (client, agent)."""
    steps = table.steps(client, agent)
    if steps is not None:
        return EvictionKey(EvictionClass.FIXED, -steps, last_access)
    if not table.knows(client):
        return EvictionKey(EvictionClass.UNKNOWN, 0, last_access)
    again = table.steps_of_next_run(client, agent)
    return EvictionKey(
        EvictionClass.RETAINED, _UNREACHED if again is None else -again, last_access
    )


def eviction_key(
    table: StepTable,
    prompts: Iterable[tuple[str, str]],
    owner: Owner | None,
    last_access: float,
) -> EvictionKey:
    """The key of a node.

    `prompts` are the (client, agent) whose fixed prompt ends in the node's subtree,
    `owner` who wrote the node if none does. With neither the node is unknown to
    KVFlow, and among unknown nodes the order is exactly SGLang's LRU.
    """
    nearest = max(
        (prompt_key(table, client, agent, last_access) for client, agent in prompts),
        default=None,
    )
    if nearest is not None:
        return nearest
    if owner is None:
        return EvictionKey(EvictionClass.UNKNOWN, 0, last_access)
    if not table.run_is_live(owner.client, owner.run):
        group = EvictionClass.ENDED_SUFFIX
    elif table.is_executing(*owner):
        group = EvictionClass.LIVE_SUFFIX
    else:
        group = EvictionClass.SUFFIX
    return EvictionKey(group, 0, last_access)
