"""Applications as they come: random agent graphs, prompts and manners, until told to stop.

Each thread plays one application after the other. An application makes a client of its
own, runs some workflows and goes; some runs are never said to be over, some calls are
abandoned in mid-answer.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import httpx

from kvflow_sdk.client import Client
from kvflow_sdk.graph import AgentStepGraph, GraphBuilder
from kvflow_sdk.run import Run
from kvflow_sdk.wire import FixedMark, to_envelope

__all__ = ["Applications", "Tally"]

TIMEOUT_S = 120.0
FIRST_TOKEN = 3
"""Lower ids are special tokens."""
MAX_TROUBLES = 8


@dataclass(slots=True)
class Tally:
    """What all applications together have seen; guarded by `lock`."""

    applications: int = 0
    workflows: int = 0
    requests: int = 0
    abandoned: int = 0
    failed: int = 0
    troubles: list[str] = field(default_factory=list)
    """The first failures, in words."""
    latencies: list[float] = field(default_factory=list)
    """Seconds of each answered call."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def failure(self, text: str) -> None:
        with self.lock:
            self.failed += 1
            if len(self.troubles) < MAX_TROUBLES:
                self.troubles.append(text)


class Applications:
    """`count` threads against the server at `url`, from `start` to `stop`."""

    def __init__(self, url: str, count: int, seed: int, vocabulary: int) -> None:
        self.tally = Tally()
        self._url = url
        self._vocabulary = vocabulary
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(
                target=self._play, args=(f"{seed}/{n}",), name=f"soak-{n}", daemon=True
            )
            for n in range(count)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> int:
        """Let everybody end the call that is under way; how many did not come back."""
        self._stop.set()
        deadline = time.monotonic() + TIMEOUT_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return sum(thread.is_alive() for thread in self._threads)

    def _play(self, seed: str) -> None:
        source = random.Random(seed)
        with httpx.Client(
            base_url=self._url, timeout=TIMEOUT_S, trust_env=False
        ) as http:
            while not self._stop.is_set():
                try:
                    self._application(source, http)
                except Exception as error:
                    self.tally.failure(f"{type(error).__name__}: {error}")

    def _application(self, source: random.Random, http: httpx.Client) -> None:
        graph, prompts = _invent(source, self._vocabulary)
        with self.tally.lock:
            self.tally.applications += 1
        with Client(self._url, name="soak") as client:
            for _ in range(source.randint(1, 8)):
                if self._stop.is_set():
                    return
                self._workflow(source, http, client.start_run(graph), prompts)

    def _workflow(
        self,
        source: random.Random,
        http: httpx.Client,
        run: Run,
        prompts: dict[str, list[int]],
    ) -> None:
        for node in _walk(source, run):
            if self._stop.is_set():
                break
            run.start(node)
            fixed = prompts[node]
            update = run.snapshot(agent=node, fixed=FixedMark(tokens=len(fixed)))
            run.told(update, self._url)
            suffix = source.choices(
                range(FIRST_TOKEN, self._vocabulary), k=source.randint(4, 64)
            )
            self._call(source, http, [*fixed, *suffix], to_envelope([update]))
            run.end(node)
            if source.random() < 0.3:
                # A tool; the next agents' prompts may come back meanwhile.
                self._stop.wait(source.random() * 0.2)
        if source.random() < 0.85:
            run.finish()
        with self.tally.lock:
            self.tally.workflows += 1

    def _call(
        self,
        source: random.Random,
        http: httpx.Client,
        prompt: list[int],
        hints: dict[str, Any],
    ) -> None:
        body = {
            "input_ids": prompt,
            "kv_hints": hints,
            "sampling_params": {
                "temperature": 0,
                "max_new_tokens": source.randint(1, 12),
                "ignore_eos": True,
            },
        }
        if source.random() < 0.02:
            with http.stream("POST", "/generate", json=body | {"stream": True}) as half:
                next(half.iter_bytes(), None)
            self._count(abandoned=True)
            return
        start = time.perf_counter()
        reply = http.post("/generate", json=body)
        if reply.status_code == 200:
            self._count(seconds=time.perf_counter() - start)
        else:
            self.tally.failure(f"{reply.status_code}: {reply.text[:200]}")

    def _count(self, *, seconds: float | None = None, abandoned: bool = False) -> None:
        with self.tally.lock:
            self.tally.requests += 1
            self.tally.abandoned += abandoned
            if seconds is not None:
                self.tally.latencies.append(seconds)


def _invent(
    source: random.Random, vocabulary: int
) -> tuple[AgentStepGraph, dict[str, list[int]]]:
    """A chain with shortcuts and loops, sometimes a barrier; and each agent's fixed
    prompt, whose beginning some of them have in common."""
    names = [f"agent-{number}" for number in range(source.randint(2, 7))]
    builder = GraphBuilder().add_entry(names[0])
    for name in names:
        builder.add_node(name)
    for pair in pairwise(names):
        builder.add_edge(*pair, conditional=source.random() < 0.3)
    for _ in range(source.randrange(3)):
        builder.add_edge(*source.choices(names, k=2), conditional=True)
    if len(names) > 3 and source.random() < 0.3:
        builder.add_barrier(names[1:3], names[3])

    def draw(length: int) -> list[int]:
        return source.choices(range(FIRST_TOKEN, vocabulary), k=length)

    house = draw(48)
    prompts = {
        name: (house if source.random() < 0.5 else []) + draw(source.randint(16, 320))
        for name in names
    }
    return builder.build(), prompts


def _walk(source: random.Random, run: Run) -> Iterator[str]:
    """Some way through the run's graph, from its entry."""
    graph = run.graph
    assert graph is not None
    node: str = next(iter(graph.entry))
    for _ in range(source.randint(1, 8)):
        yield node
        groups = graph.feeds(node)
        if not groups:
            return
        node = graph.groups[source.choice(groups)].target
