"""A workflow whose agents are chosen at run time, mostly the next and sometimes another."""

from __future__ import annotations

import random
from collections.abc import Sequence

from kvflow_sdk.graph import AgentStepGraph, GraphBuilder

__all__ = ["RARE", "everyone", "wander"]

RARE = 0.1
"""How often it goes on to another agent than the next."""


def wander(agents: int, draw: random.Random) -> list[int]:
    """As many calls as there are agents; the first agent begins."""
    calls = [0]
    while len(calls) < agents:
        at = calls[-1]
        following = (at + 1) % agents
        others = [n for n in range(agents) if n not in (at, following)]
        rare = bool(others) and draw.random() < RARE
        calls.append(draw.choice(others) if rare else following)
    return calls


def everyone(names: Sequence[str]) -> AgentStepGraph:
    """What such a program can declare: after each agent any other may come."""
    builder = GraphBuilder()
    for name in names:
        builder.add_node(name)
    builder.add_entry(names[0])
    for name in names:
        for other in names:
            if other != name:
                builder.add_edge(name, other, conditional=True)
    return builder.build()
