"""Workflows whose way is not a single sequence: branches, and agents chosen at run time.

The program knows its graph, as a LangGraph program does, and not which way it will take.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from kvflow_sdk.graph import AgentStepGraph, GraphBuilder
from kvflow_server.bench.workload import Workload

__all__ = ["COURSES", "Course", "CourseWorkload", "branches", "dynamic"]

LIKELY, RARE = 0.85, 0.05
"""Of a dynamic agent's successors: one is taken so often, two now and then."""


@dataclass(frozen=True, slots=True)
class Course:
    """Which agents there are, who may follow whom, and which way each run takes."""

    name: str
    about: str
    agents: int
    successors: tuple[tuple[tuple[int, float], ...], ...]
    """By agent: who may follow, and how often. The runs go by it; the program's graph
    says only that they may."""
    entries: tuple[int, ...]
    calls: int
    """Of one run."""
    paired: bool = False
    """Agents 2i and 2i + 1 share the first half of their fixed prompts."""

    def graph(self) -> AgentStepGraph:
        names = [f"agent-{number}" for number in range(self.agents)]
        builder = GraphBuilder()
        for name in names:
            builder.add_node(name)
        builder.add_entry(*(names[entry] for entry in self.entries), conditional=True)
        for source, targets in zip(names, self.successors, strict=True):
            for target, _ in targets:
                builder.add_edge(source, names[target], conditional=True)
        return builder.build()

    def path(self, run: int) -> list[int]:
        """The agents of this run, in order: the same for every system."""
        draw = random.Random(f"{self.name}/{run}")
        way = [draw.choice(self.entries)]
        while len(way) < self.calls:
            targets = self.successors[way[-1]]
            weights = [weight for _, weight in targets]
            way += draw.choices([target for target, _ in targets], weights)
        return way


def branches(stages: int = 10) -> Course:
    """The camera-ready's branches = 2: each stage picks one of two agents at random,
    which share part of their prefix (here half; the paper does not say)."""
    pairs = [(2 * stage, 2 * stage + 1) for stage in range(stages)]
    successors = [
        ((after[0], 0.5), (after[1], 0.5)) for _, after in pairwise(pairs) for _ in "ab"
    ]
    last: list[tuple[tuple[int, float], ...]] = [(), ()]
    return Course(
        "branches",
        f"{stages} stages, each picks one of two agents with half a prefix in common",
        agents=2 * stages,
        successors=(*successors, *last),
        entries=pairs[0],
        calls=stages,
        paired=True,
    )


def dynamic(agents: int = 10, calls: int = 12, seed: int = 0) -> Course:
    """Agents chosen at run time: each has one usual successor and three rare ones."""
    draw = random.Random(f"dynamic/{seed}")
    order = list(range(agents))
    draw.shuffle(order)
    usual = dict(zip(order, [*order[1:], order[0]], strict=True))
    successors = []
    for agent in range(agents):
        others = [other for other in order if other not in (agent, usual[agent])]
        rare = draw.sample(others, 3)
        successors.append(((usual[agent], LIKELY), *((n, RARE) for n in rare)))
    return Course(
        "dynamic",
        f"{agents} agents, each chosen at run time: one usual successor, three rare ones",
        agents=agents,
        successors=tuple(successors),
        entries=(order[0],),
        calls=calls,
    )


COURSES = {course.name: course for course in (branches(), dynamic())}


@dataclass(frozen=True, slots=True, kw_only=True)
class CourseWorkload(Workload):
    """The prompts of a course, and its way."""

    course: Course

    @property
    def graph(self) -> AgentStepGraph | None:
        return self.course.graph()

    def order(self, run: int) -> Sequence[int]:
        return self.course.path(run)

    def fixed(self, agent: int) -> list[int]:
        if not self.course.paired:
            return self._tokens(self.settings.fixed, "fixed", agent)
        half = self.settings.fixed // 2
        own = self._tokens(self.settings.fixed - half, "fixed", agent)
        return self._tokens(half, "shared", agent // 2) + own
