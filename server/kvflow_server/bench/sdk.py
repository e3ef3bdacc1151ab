"""What the SDK adds to every LLM call of an application, in milliseconds.

A workflow of N agents in teams of seven, each agent calling once::

    planner ──► worker ×4 ──AND──► writer ──► reviewer ──► the next team, or back
                                     ▲            └──────── to the writer

Timed is the SDK's part alone: the agent starts, its call gets its header, the agent ends. The
calls themselves are short sleeps, in which the step stream sends in the background,
to a server in a process of its own.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from kvflow_sdk.agent import step, workflow
from kvflow_sdk.client import Client, call_headers
from kvflow_sdk.config import Config
from kvflow_sdk.graph import START, AgentStepGraph, GraphBuilder

from .results import Spread

__all__ = ["SIZES", "CallOverhead", "measure", "report", "teams"]

SIZES = (50, 500)
TEAM = ("planner", "worker1", "worker2", "worker3", "worker4", "writer", "reviewer")
CALL_S = 0.002
"""Stands for the LLM call. Real ones are longer, and leave the stream more time."""
OPEN_RUNS = 50
"""Runs that are open at once, to see that none has a thread of its own."""
_SERVER = """
import threading
from kvflow_integrations.conformance.loopback import Loopback
print(Loopback().url, flush=True)
threading.Event().wait()
"""


@dataclass(frozen=True, slots=True)
class CallOverhead:
    """Milliseconds per LLM call, over all calls and over those of the first run."""

    agents: int
    edges: int
    all_runs: Spread
    first_run: Spread
    header_bytes: float
    """The mean size of the header that a call carries."""
    threads_of_runs: int
    """Threads that `OPEN_RUNS` further runs added: those of the stream are not new."""
    sent: int
    """Step snapshots that the background stream delivered meanwhile."""


def measure(agents: int, runs: int) -> CallOverhead:
    """Time `runs` workflows of `agents` agents. Raises `ValueError` for too few."""
    if agents < 2 or runs < 1:
        raise ValueError("need at least 2 agents and 1 run")
    graph = teams(agents)
    names = [node.name for node in graph.nodes]
    with _server() as url, Client(url, config=Config()) as client:
        timed = [_run(graph, names, client, url) for _ in range(runs)]
        added = _threads_of_runs(graph, client)
        client.flush(10.0)
        sent = client.counters["steps.sent"]
    seconds = [one for run in timed for one, _ in run]
    sizes = [size for run in timed for _, size in run]
    return CallOverhead(
        agents=agents,
        edges=sum(len(group.sources) for group in graph.groups),
        all_runs=Spread.of([value * 1e3 for value in seconds]),
        first_run=Spread.of([value * 1e3 for value, _ in timed[0]]),
        header_bytes=statistics.fmean(sizes),
        threads_of_runs=added,
        sent=sent,
    )


def teams(agents: int) -> AgentStepGraph:
    """The graph; its last team may be incomplete. Nodes are in the order they run."""
    builder = GraphBuilder()
    names = [f"{TEAM[i % 7]}-{i // 7}" for i in range(agents)]
    for name in names:
        builder.add_node(name)
    for first in range(0, agents, 7):
        planner, *rest = names[first : first + 7]
        if first:
            builder.add_edge(names[first - 1], planner, conditional=True)
        else:
            builder.add_edge(START, planner)
        workers, after = rest[:4], rest[4:]
        for worker in workers:
            builder.add_edge(planner, worker)
        if after:
            builder.add_barrier(workers, after[0])
        if after[1:]:
            builder.add_edge(after[0], after[1])
            builder.add_edge(after[1], after[0], conditional=True)
    return builder.build()


def report(results: list[CallOverhead]) -> dict[str, Any]:
    """The figures by name, and all of them in full."""
    figures: dict[str, Any] = {}
    for result in results:
        figures[f"call_overhead_ms_{result.agents}"] = result.all_runs.median
        figures[f"first_run_overhead_ms_{result.agents}"] = result.first_run.median
    return {**figures, "results": [asdict(result) for result in results]}


def _run(
    graph: AgentStepGraph, names: list[str], client: Client, url: str
) -> list[tuple[float, int]]:
    """Seconds, and bytes of the header, of every call of one run."""
    timed = []
    with workflow(graph, client=client):
        for name in names:
            began = time.perf_counter()
            agent = step(name)
            agent.__enter__()
            headers = call_headers(url)
            ready = time.perf_counter()
            time.sleep(CALL_S)
            answered = time.perf_counter()
            agent.__exit__(None, None, None)
            spent = (ready - began) + (time.perf_counter() - answered)
            timed.append((spent, sum(map(len, headers.values()))))
    return timed


def _threads_of_runs(graph: AgentStepGraph, client: Client) -> int:
    before = threading.active_count()
    with ExitStack() as stack:
        for _ in range(OPEN_RUNS):
            stack.callback(client.start_run(graph).finish)
        return threading.active_count() - before


@contextmanager
def _server() -> Iterator[str]:
    """The base URL of a server that accepts steps, in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVER],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "KVFLOW_DISABLE": ""},
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()
