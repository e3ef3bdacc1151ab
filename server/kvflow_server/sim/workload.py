"""Programs that run agent workflows: what they ask, and what they tell.

A workflow is a sequence of *stages*; the calls of a stage run side by side, and the next
one begins when all of them are answered. The graph, the run and the snapshots are the
SDK's own, so a server hears what a user's program would tell it, and no sooner.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from kvflow_sdk.graph import AgentStepGraph
from kvflow_sdk.likelihood import Transitions
from kvflow_sdk.run import Run
from kvflow_sdk.wire import FixedMark

from .requests import Answer, Call
from .server import Server
from .tree import Spans, tokens_in

__all__ = ["Ask", "Plan", "Program", "Stage", "Workflow", "chain", "sequential"]


@dataclass(frozen=True, slots=True)
class Ask:
    """One call of an agent; lengths in tokens."""

    agent: str
    fixed: Spans
    """Its fixed prompt."""
    dynamic: int
    """New tokens after it."""
    output: int


Stage: TypeAlias = tuple[Ask, ...]
Plan: TypeAlias = Callable[[random.Random], Iterable[Stage]]
"""The stages of one run."""


@dataclass(slots=True)
class Workflow:
    """One run that has ended; the tokens are those of its prompts."""

    start: float
    end: float
    calls: int = 0
    device: int = 0
    """Found on the device."""
    host: int = 0
    """Loaded from host memory on demand."""
    recomputed: int = 0

    @property
    def seconds(self) -> float:
        return self.end - self.start

    def add(self, answer: Answer) -> None:
        self.calls += 1
        self.device += answer.device
        self.host += answer.host
        self.recomputed += answer.recomputed


class Program:
    """One client that runs its workflow again and again."""

    def __init__(
        self,
        name: str,
        plan: Plan,
        graph: AgentStepGraph | None,
        *,
        runs: int,
        seed: int = 0,
        hints: bool = True,
        jitter_s: float = 0.0,
        transitions: Transitions | None = None,
        on_end: Callable[[int, Workflow], None] = lambda number, workflow: None,
    ) -> None:
        """`graph` None: learnt from the runs, if `transitions` are given. `jitter_s`: in
        the mean, what the program adds to the time between two calls. `on_end` is told
        of each run that has ended, by its number."""
        self._name = name
        self._plan = plan
        self._graph = graph
        self._runs = runs
        self._random = random.Random(f"{seed}/{name}")
        self._hints = hints
        self._jitter_s = jitter_s
        self._pauses = random.Random(f"{seed}/{name}/pauses")
        self._transitions = transitions
        self._on_end = on_end

    def start(self, server: Server, at: float = 0.0) -> None:
        """Begin the first run at `at`, seconds."""
        server.at(at, partial(self._begin, server, 0))

    def _begin(self, server: Server, number: int) -> None:
        run = None
        if self._hints:
            run = Run(
                self._graph,
                client=self._name,
                run_id=f"{self._name}/{number}",
                listener=server.cache.apply_update,
                transitions=self._transitions,
            )
        stages = iter(self._plan(self._random))
        _Execution(self, server, number, run, stages).next_stage()

    def ended(self, server: Server, number: int, workflow: Workflow) -> None:
        """A run is over; the next one begins at once."""
        self._on_end(number, workflow)
        if number + 1 < self._runs:
            self._begin(server, number + 1)

    def pause(self, server: Server) -> float:
        """Seconds from an answer until the next call is there."""
        jitter = self._jitter_s
        return server.costs.call_s + (
            self._pauses.expovariate(1 / jitter) if jitter else 0
        )

    @property
    def name(self) -> str:
        return self._name


class _Execution:
    """One run of a program's workflow."""

    def __init__(
        self,
        program: Program,
        server: Server,
        number: int,
        run: Run | None,
        stages: Iterator[Stage],
    ) -> None:
        self._program = program
        self._server = server
        self._number = number
        self._run = run
        self._stages = stages
        self._left = 0
        self._calls = 0
        self._workflow = Workflow(server.now, server.now)

    def next_stage(self) -> None:
        stage = next(self._stages, None)
        if stage is None:
            if self._run is not None:
                self._run.finish()
            self._workflow.end = self._server.now
            self._program.ended(self._server, self._number, self._workflow)
            return
        self._left = len(stage)
        for ask in stage:
            if self._run is not None:
                self._run.start(ask.agent)
        for ask in stage:
            self._server.submit(self._call(ask))

    def _call(self, ask: Ask) -> Call:
        fixed = tokens_in(ask.fixed)
        new = (self._program.name, self._number, self._calls)
        self._calls += 1
        spans = (*ask.fixed, (new, 0, ask.dynamic)) if ask.dynamic else ask.fixed
        update = None
        if self._run is not None:
            update = self._run.snapshot(agent=ask.agent, fixed=FixedMark(tokens=fixed))
        return Call(
            spans=spans,
            prompt=fixed + ask.dynamic,
            output=ask.output,
            answered=partial(self._answered, ask.agent),
            update=update,
            fixed=fixed,
        )

    def _answered(self, agent: str, answer: Answer) -> None:
        self._workflow.add(answer)
        server, program = self._server, self._program
        server.at(server.now + program.pause(server), partial(self._goes_on, agent))

    def _goes_on(self, agent: str) -> None:
        if self._run is not None:
            self._run.end(agent)
        self._left -= 1
        if not self._left:
            self.next_stage()


def sequential(
    client: str, agents: int, fixed: int, dynamic: int, output: int
) -> tuple[Plan, AgentStepGraph]:
    """Agents one after the other, each with a fixed prompt of its own."""
    asks = [
        Ask(f"agent-{n}", (((client, n), 0, fixed),), dynamic, output)
        for n in range(agents)
    ]
    return chain(asks), AgentStepGraph.sequence(ask.agent for ask in asks)


def chain(asks: Iterable[Ask]) -> Plan:
    """The same calls in every run, one after the other."""
    stages = [(ask,) for ask in asks]
    return lambda _: stages
