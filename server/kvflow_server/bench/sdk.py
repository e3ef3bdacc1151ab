"""What the SDK adds to every LLM call of an application, in milliseconds.

A workflow of N agents in teams of seven, each agent calling once::

    planner ──► worker ×4 ──AND──► writer ──► reviewer ──► the next team, or back
                                     ▲            └──────── to the writer

Every agent's call is made twice, with the messages of an agent's prompt: by
`kvflow.OpenAI` in a `step` of a run, and by the plain `openai.OpenAI` in none; either
comes first by turns. The overhead is the difference of the medians. In it is all that
happens on the caller's thread: the agent's start and end, the header, the look for
drift (which every call here still gets), and what the background thread takes from it.

Both run the whole openai client, down to a transport that sleeps for the model and
answers by itself: no socket's noise is in the figures. Before each call the application
sleeps, too, so nothing is in the CPU's caches that a real call would not find there,
and before a plain one the background thread has come to rest. The step stream goes to a
real server in a process of its own.

`measure_gone` makes the same pairs of calls when that server is gone, over real sockets:
each call fails as it does without KVFlow, and the difference is what it fails later by.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from kvflow_sdk.agent import step, workflow
from kvflow_sdk.client import Client
from kvflow_sdk.config import Config
from kvflow_sdk.graph import START, AgentStepGraph, GraphBuilder
from kvflow_sdk.wire import HEADER

from .results import Spread

__all__ = [
    "SIZES",
    "CallOverhead",
    "GoneOverhead",
    "measure",
    "measure_gone",
    "report",
    "teams",
]

SIZES = {50: 4, 500: 1}
"""Agents, and how many times as many runs: medians of few calls say little."""
TEAM = ("planner", "worker1", "worker2", "worker3", "worker4", "writer", "reviewer")
CALL_S = 0.004
"""Stands for the LLM call. Real ones are longer, and leave the stream more time."""
PAUSE_S = 0.004
"""Between two calls, at most: what the application does meanwhile. As long as it comes,
so that calls meet the background thread at work as often as they happen to."""
PROMPT_CHARS = 4000
"""Of the fixed part; the question behind it is new in each call."""
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
    """Milliseconds per LLM call, less the `CALL_S` that the model takes."""

    agents: int
    edges: int
    tagged: Spread
    """Calls of `kvflow.OpenAI` in an agent, its start and end included."""
    plain: Spread
    """The same calls by the plain client."""
    overhead: float
    """Median of the tagged ones less that of the plain ones."""
    first_run: float
    """The same, in the first run: nothing is known from runs before."""
    pairs: Spread
    """Differences, agent by agent."""
    header_bytes: float
    """The mean size of the header that a call carries."""
    threads_of_runs: int
    """Threads that `OPEN_RUNS` further runs added: those of the stream are not new."""
    sent: int
    """Step snapshots that the background stream delivered meanwhile."""


@dataclass(frozen=True, slots=True)
class GoneOverhead:
    """Milliseconds until a call to a server that is gone has failed, without retries."""

    tagged: Spread
    plain: Spread
    overhead: float
    """Median of the tagged ones less that of the plain ones."""
    pairs: Spread
    errors: tuple[str, ...]
    """What the calls raised, of either client: the same, if all is well."""
    end_ms: float
    """What the end of the client took, with snapshots that nobody takes."""


@dataclass(frozen=True, slots=True)
class _Pair:
    """One agent's call: seconds of either client, and bytes of the header."""

    tagged: float
    plain: float
    header: int


def measure(agents: int, runs: int) -> CallOverhead:
    """Time `runs` workflows of `agents` agents. Raises `ValueError` for too few."""
    if agents < 2 or runs < 1:
        raise ValueError("need at least 2 agents and 1 run")
    graph = teams(agents)
    with _server() as url, Client(url, config=Config()) as client:
        with _Caller(url, client) as caller:
            timed = [_run(graph, caller, number) for number in range(runs)]
        added = _threads_of_runs(graph, client)
        client.flush(10.0)
        sent = client.counters["steps.sent"]
    pairs = [pair for run in timed for pair in run]
    tagged, plain = _spreads(pairs)
    first_tagged, first_plain = _spreads(timed[0])
    return CallOverhead(
        agents=agents,
        edges=sum(len(group.sources) for group in graph.groups),
        tagged=tagged,
        plain=plain,
        overhead=tagged.median - plain.median,
        first_run=first_tagged.median - first_plain.median,
        pairs=Spread.of([(pair.tagged - pair.plain) * 1e3 for pair in pairs]),
        header_bytes=statistics.fmean(pair.header for pair in pairs),
        threads_of_runs=added,
        sent=sent,
    )


def measure_gone(agents: int, runs: int) -> GoneOverhead:
    """Time `runs` workflows of `agents` agents after their server has gone.

    It is known to the SDK, and has taken a first workflow. Raises as `measure`.
    """
    if agents < 2 or runs < 1:
        raise ValueError("need at least 2 agents and 1 run")
    graph = teams(agents)
    client = Client(config=Config())
    with _server() as url, _Caller(url, client) as caller:
        _run(graph, caller, 0)
        client.flush(10.0)
    with _Caller(url, client, fails=True) as caller:
        pairs = [pair for run in range(runs) for pair in _run(graph, caller, run)]
    began = time.perf_counter()
    client.close()
    ended = time.perf_counter()
    tagged, plain = _spreads(pairs)
    return GoneOverhead(
        tagged=tagged,
        plain=plain,
        overhead=tagged.median - plain.median,
        pairs=Spread.of([(pair.tagged - pair.plain) * 1e3 for pair in pairs]),
        errors=tuple(sorted(caller.errors)),
        end_ms=(ended - began) * 1e3,
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


def report(results: list[CallOverhead], gone: GoneOverhead) -> dict[str, Any]:
    """The figures by name, and all of them in full."""
    figures: dict[str, Any] = {}
    for result in results:
        figures[f"call_overhead_ms_{result.agents}"] = result.overhead
        figures[f"first_run_overhead_ms_{result.agents}"] = result.first_run
    figures["gone_overhead_ms"] = gone.overhead
    full = [asdict(result) for result in results]
    return {**figures, "results": full, "gone": asdict(gone)}


class _Caller:
    """Makes the same call with either client, and times it."""

    def __init__(self, url: str, client: Client, *, fails: bool = False) -> None:
        """`fails`: there is nobody at `url`, and calls really go there."""
        import openai

        from kvflow_sdk.openai import OpenAI

        self.client = client
        self.errors: set[str] = set()
        self._fails = fails
        self._transport = _transport()
        self._pauses = random.Random(7)
        settings: dict[str, Any] = {"base_url": url, "api_key": "none"}
        if fails:
            settings["max_retries"] = 0
            self._http = openai.DefaultHttpxClient(trust_env=False)
        else:
            self._http = openai.DefaultHttpxClient(transport=self._transport)
        self._plain = openai.OpenAI(http_client=self._http, **settings)
        self._tagged = OpenAI(http_client=self._http, **settings)

    def __enter__(self) -> _Caller:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._http.close()

    def pair(self, agent: str, question: str, plain_first: bool) -> _Pair:
        prompt = f"You are {agent}. " + "Answer in one word. " * (PROMPT_CHARS // 20)
        request: dict[str, Any] = {
            "model": "default",
            "messages": [
                {"role": "system", "content": prompt},
                {"role": "user", "content": question},
            ],
        }

        def plain() -> float:
            self.client.flush(1.0)
            return self._timed(lambda: self._call(self._plain, request))

        def tagged() -> float:
            return self._timed(lambda: self._in_agent(agent, request))

        before = plain() if plain_first else None
        seconds = tagged()
        header = len(self._transport.header)
        return _Pair(seconds, plain() if before is None else before, header)

    def _in_agent(self, agent: str, request: dict[str, Any]) -> None:
        with step(agent):
            self._call(self._tagged, request)

    def _call(self, client: Any, request: dict[str, Any]) -> None:
        import openai

        if not self._fails:
            client.chat.completions.create(**request)
            return
        try:
            client.chat.completions.create(**request)
        except openai.OpenAIError as error:
            self.errors.add(f"{type(error).__name__}: {error}")

    def _timed(self, call: Callable[[], Any]) -> float:
        time.sleep(self._pauses.uniform(0.0, PAUSE_S))
        began = time.perf_counter()
        call()
        return time.perf_counter() - began - (0.0 if self._fails else CALL_S)


def _transport() -> Any:
    """Answers after `CALL_S`, and says what header it saw."""
    import openai

    # openai 2 stands on httpx, openai 3 on httpx2; a transport has to fit.
    bases = openai.DefaultHttpxClient.__mro__
    roots = [base.__module__.partition(".")[0] for base in bases]
    http = importlib.import_module(next(r for r in roots if r.startswith("httpx")))
    message = {"role": "assistant", "content": "forty-two"}
    answer = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "default",
        "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }
    body = json.dumps(answer).encode()

    class Transport(http.BaseTransport):  # type: ignore[misc, name-defined]
        header = ""

        def handle_request(self, request: Any) -> Any:
            self.header = request.headers.get(HEADER, "")
            time.sleep(CALL_S)
            headers = {"content-type": "application/json"}
            return http.Response(200, headers=headers, content=body)

    return Transport()


def _run(graph: AgentStepGraph, caller: _Caller, number: int) -> list[_Pair]:
    with workflow(graph, client=caller.client):
        return [
            caller.pair(node.name, f"Question {number}.{at}?", at % 2 == 0)
            for at, node in enumerate(graph.nodes)
        ]


def _spreads(pairs: list[_Pair]) -> tuple[Spread, Spread]:
    """Milliseconds of the tagged and of the plain calls."""
    return (
        Spread.of([pair.tagged * 1e3 for pair in pairs]),
        Spread.of([pair.plain * 1e3 for pair in pairs]),
    )


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
