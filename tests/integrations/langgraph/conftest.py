"""A recorder: real graphs, and what their runs said at each moment."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import END, START, StateGraph

import kvflow_sdk as kvflow
from kvflow_integrations import langgraph as integration
from kvflow_sdk.client import Client
from kvflow_sdk.config import Config
from kvflow_sdk.context import current
from kvflow_sdk.graph import AgentStepGraph
from kvflow_sdk.run import Run
from kvflow_sdk.wire import StepUpdate

Steps = dict[str, int] | None
Edges = dict[str, str]


class State(TypedDict):
    log: Annotated[list[str], operator.add]


class RecordingClient(Client):
    """A client without servers that keeps every snapshot."""

    def __init__(self) -> None:
        super().__init__(config=Config())
        self.updates: list[StepUpdate] = []
        self.runs: list[Run] = []

    def start_run(self, graph: AgentStepGraph | None = None) -> Run:
        run = Run(
            graph,
            client=self.id,
            listener=self.updates.append,
            transitions=self.transitions,
        )
        self.runs.append(run)
        return self.runs[-1]

    @property
    def steps(self) -> list[Steps]:
        return [update.steps for update in self.updates]


class Recorder:
    """Makes graphs whose nodes note the steps that hold while they execute."""

    def __init__(self) -> None:
        self.client = RecordingClient()
        self.seen: list[tuple[str, Steps]] = []
        self.wrapped: list[Any] = []

    def note(self) -> None:
        """Remember who executes here, and the steps at this moment."""
        call = current()
        assert call is not None, "no agent is current inside a node"
        self.seen.append((call.agent, call.run.snapshot().steps))

    def node(self, name: str, action: Callable[[], object] | None = None) -> Any:
        def run(state: State) -> dict[str, list[str]]:
            if action is not None:
                action()
            self.note()
            return {"log": [name]}

        return run

    def graph(
        self,
        edges: Edges,
        *,
        joins: Edges | None = None,
        deferred: str = "",
        actions: dict[str, Callable[[], object]] | None = None,
    ) -> StateGraph[State]:
        """A graph of one-letter nodes: {"a": "bc"} are the edges a→b and a→c.

        ``START`` leads to a, ``END`` is "."; a join {"bc": "d"} waits for both.
        """
        builder = StateGraph(State)
        joins = joins or {}
        names = set("".join([*edges, *edges.values(), *joins, *joins.values()]))
        for name in sorted((names | {"a"}) - {"."}):
            action = (actions or {}).get(name)
            builder.add_node(name, self.node(name, action), defer=name in deferred)
        builder.add_edge(START, "a")
        for source, targets in edges.items():
            for target in targets:
                builder.add_edge(source, END if target == "." else target)
        for sources, target in joins.items():
            builder.add_edge(list(sources), target)
        return builder

    def wrap(self, compiled: Any, **settings: Any) -> Any:
        self.wrapped.append(kvflow.wrap(compiled, client=self.client, **settings))
        return self.wrapped[-1]

    def run(self, builder: StateGraph[State], **config: Any) -> Any:
        """Invoke the graph, wrapped, on an empty log."""
        return self.wrap(builder.compile()).invoke({"log": []}, config or None)


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    recorder = Recorder()
    yield recorder
    for app in recorder.wrapped:
        integration.unwrap(app)
