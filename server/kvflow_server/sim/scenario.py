"""What is simulated: how many programs with how many agents, of which lengths."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

from kvflow_sdk.graph import AgentStepGraph, GraphBuilder
from kvflow_sdk.likelihood import Transitions
from kvflow_server.bench.wander import everyone, wander

from .peer import peer
from .server import Server
from .tree import Spans
from .workload import Ask, Plan, Program, Stage, Workflow, sequential

__all__ = ["Scenario"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Programs that run the same workflow again and again, side by side; each has
    prompts of its own. Lengths in tokens."""

    agents: int = 10
    """Of a workflow, one after the other."""
    fixed: int = 4096
    dynamic: int = 32
    output: int = 32
    workflows: int = 1
    """Programs at the same time."""
    runs: int = 10
    """Of each program, measured."""
    warm_runs: int = 2
    """Of each program, before those."""
    branches: int = 1
    """Agents of which each stage picks one; they share half of their fixed prompts."""
    dynamic_graph: bool = False
    """Who comes next is chosen at run time: mostly the next agent, sometimes another,
    by transitions that nobody declares."""
    peer: bool = False
    """Four agents with the lengths of the paper's Figure 7; `agents`, `fixed`,
    `dynamic` and `output` are then the means."""
    learn: bool = True
    """Dynamic graphs: the SDK learns the transitions; else it knows who may follow and
    not how likely."""
    jitter_s: float = 0.0
    """What a program adds to the time between its calls, in the mean (exponential).
    Without any, programs that start together stay in step, as none do in life."""
    stagger_s: float = 0.0
    """Over which the programs' starts are spread."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("agents", "fixed", "output", "workflows", "runs", "branches"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: at least 1, not {getattr(self, name)}")
        for name in ("dynamic", "warm_runs", "jitter_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: at least 0, not {getattr(self, name)}")
        if (self.branches > 1) + self.dynamic_graph + self.peer > 1:
            raise ValueError("branches, dynamic_graph, peer: one of them")

    @property
    def call_tokens(self) -> int:
        return self.fixed + self.dynamic + self.output

    @property
    def prompt_tokens(self) -> int:
        """All fixed prompts."""
        own = self.fixed // 2 if self.branches > 1 else self.fixed
        shared = self.fixed - own
        return self.workflows * self.agents * (shared + self.branches * own)

    @property
    def everything_tokens(self) -> int:
        """A pool of so many never evicts."""
        calls = self.workflows * self.agents * (self.runs + self.warm_runs + 1)
        return self.prompt_tokens + calls * (self.dynamic + self.output) + self.fixed

    def start(
        self, server: Server, hints: bool, measured: Callable[[Workflow], None]
    ) -> None:
        """Start the programs; `measured` gets each run that counts."""

        def note(number: int, workflow: Workflow) -> None:
            if number >= self.warm_runs:
                measured(workflow)

        for number in range(self.workflows):
            name = f"client-{number}"
            plan, graph = self._workflow(name)
            learns = self.dynamic_graph and self.learn
            Program(
                name,
                plan,
                graph,
                runs=self.runs + self.warm_runs,
                seed=self.seed,
                hints=hints,
                jitter_s=self.jitter_s,
                transitions=Transitions() if learns else None,
                on_end=note,
            ).start(server, at=self.stagger_s * number / self.workflows)

    def _workflow(self, client: str) -> tuple[Plan, AgentStepGraph]:
        if self.branches > 1:
            return self._branching(client)
        if self.dynamic_graph:
            return self._wandering(client)
        if self.peer:
            return peer(client, self.seed)
        return sequential(client, self.agents, self.fixed, self.dynamic, self.output)

    def _ask(self, agent: str, fixed: Spans) -> Ask:
        return Ask(agent, fixed, self.dynamic, self.output)

    def _branching(self, client: str) -> tuple[Plan, AgentStepGraph]:
        """Each stage picks one of its agents, of which the graph knows them all."""
        shared = self.fixed // 2
        builder = GraphBuilder()
        stages: list[list[Ask]] = []
        for stage in range(self.agents):
            asks = []
            for branch in range(self.branches):
                name = f"agent-{stage}-{branch}"
                own = ((client, stage, branch), shared, self.fixed)
                prefix: Spans = (((client, stage), 0, shared),) if shared else ()
                asks.append(self._ask(name, (*prefix, own)))
                builder.add_node(name)
                if not stages:
                    builder.add_entry(name, conditional=True)
                for before in stages[-1] if stages else ():
                    builder.add_edge(before.agent, name, conditional=True)
            stages.append(asks)

        def plan(draw: random.Random) -> Iterator[Stage]:
            return ((draw.choice(asks),) for asks in stages)

        return plan, builder.build()

    def _wandering(self, client: str) -> tuple[Plan, AgentStepGraph]:
        """A process that goes on to the next agent nine times of ten, and to one of the
        others else; a run is as many calls as there are agents."""
        asks = [
            self._ask(f"agent-{n}", (((client, n), 0, self.fixed),))
            for n in range(self.agents)
        ]

        def plan(draw: random.Random) -> Iterator[Stage]:
            return ((asks[n],) for n in wander(self.agents, draw))

        return plan, everyone([ask.agent for ask in asks])

    def to_dict(self) -> dict[str, object]:
        return asdict(self) | {"prompt_tokens": self.prompt_tokens}
