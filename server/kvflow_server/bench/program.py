"""What the SDK does for a program that runs its agents one after the other.

The graph, the run and the step stream are the SDK's own, so a server is told what a
user's program would tell it, and no sooner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from kvflow_sdk.client import Client
from kvflow_sdk.graph import AgentStepGraph
from kvflow_sdk.wire import FixedMark, to_envelope

__all__ = ["Hints", "Program", "SilentProgram", "Step"]

TELL_S = 60.0

Hints = dict[str, Any] | None
"""The ``kv_hints`` of a call."""

Step = Callable[[str], AbstractContextManager[Hints]]
"""Around the call of the named agent."""


class SilentProgram:
    """A program that knows nothing of KVFlow."""

    @contextmanager
    def workflow(self, agents: Sequence[str]) -> Iterator[Step]:
        """Around one run of these agents, one after the other."""
        yield lambda agent: nullcontext()

    def close(self) -> None:
        """The program ends."""


class Program(SilentProgram):
    """A client of the server at `url` that marks the first `fixed` tokens of an agent's
    prompt, where it is named.

    `graph` is what it declares; without one it is the order of its calls. `learn`:
    whether it learns its transitions.
    """

    def __init__(
        self,
        url: str,
        fixed: Mapping[str, int],
        graph: AgentStepGraph | None = None,
        *,
        learn: bool = True,
    ) -> None:
        self._marks = {name: FixedMark(tokens=tokens) for name, tokens in fixed.items()}
        self._client = Client(url, name="bench")
        self._url = url
        self._graph = graph
        self._sequences: dict[tuple[str, ...], AgentStepGraph] = {}
        """By their agents: a program declares its workflow once."""
        if not learn:
            self._client.transitions = None

    @contextmanager
    def workflow(self, agents: Sequence[str]) -> Iterator[Step]:
        run = self._client.start_run(self._graph or self._sequence(agents))

        @contextmanager
        def step(agent: str) -> Iterator[Hints]:
            run.start(agent)
            update = run.snapshot(agent=agent, fixed=self._marks.get(agent))
            run.told(update, self._url)
            yield to_envelope([update])
            run.end(agent)

        try:
            yield step
        finally:
            run.finish()

    def _sequence(self, agents: Sequence[str]) -> AgentStepGraph:
        key = tuple(agents)
        found = self._sequences.get(key)
        if found is None:
            found = self._sequences[key] = AgentStepGraph.sequence(key)
        return found

    def register(self, prompts: Mapping[str, list[int]]) -> None:
        """Let the server compute these before their agents run, in this order; returns
        when it has been told."""
        requests = {agent: {"input_ids": prompt} for agent, prompt in prompts.items()}
        self._client.prewarm(AgentStepGraph.sequence(prompts), requests)
        self._client.flush(TELL_S)

    def close(self) -> None:
        self._client.close()
