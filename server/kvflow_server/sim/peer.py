"""PEER with the token counts of the paper's Figure 7 (PAPER.md gives its quantiles)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise

from kvflow_sdk.graph import AgentStepGraph

from .tree import Spans
from .workload import Ask, Plan, Stage

__all__ = ["AGENTS", "dynamic_tokens", "fixed_tokens", "output_tokens", "peer"]

AGENTS = ("planner", "executor", "expresser", "reviewer")


def peer(client: str, seed: int) -> tuple[Plan, AgentStepGraph]:
    """Plan, execute, express, review; each agent's fixed prompt is the client's own."""
    lengths = random.Random(f"{seed}/{client}/fixed")
    prompts: dict[str, Spans] = {
        agent: (((client, agent), 0, fixed_tokens(lengths)),) for agent in AGENTS
    }

    def plan(draw: random.Random) -> Iterator[Stage]:
        for agent in AGENTS:
            yield (
                Ask(agent, prompts[agent], dynamic_tokens(draw), output_tokens(draw)),
            )

    return plan, AgentStepGraph.sequence(AGENTS)


def fixed_tokens(draw: random.Random) -> int:
    """Near normal: mean 399, a tenth below 298 and above 501, from 191 to 700."""
    return round(min(700, max(191, draw.gauss(399, 79))))


def dynamic_tokens(draw: random.Random) -> int:
    """17 to 399, with its tenth, quarter and half at 135, 265 and 334; a third is cut
    off just below 400."""
    knots = ((0.0, 17), (0.1, 135), (0.25, 265), (0.5, 334), (0.66, 391), (1.0, 399))
    share = draw.random()
    for (low, start), (high, end) in pairwise(knots):
        if share <= high:
            return round(start + (end - start) * (share - low) / (high - low))
    return knots[-1][1]


def output_tokens(draw: random.Random) -> int:
    """128, the limit, four times of five; else something shorter."""
    return 128 if draw.random() < 0.81 else draw.randint(3, 125)
