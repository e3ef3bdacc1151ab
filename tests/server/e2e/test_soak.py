"""1 000 requests of random workflows from 8 clients under a pool far too small.

The workflows are made up front by the real SDK: random Agent Step Graphs, `Run`s whose
snapshots are sent late, twice, out of order or not at all. The same seed gives the same
scripts whatever the server does with them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from kvflow_sdk import AgentStepGraph, GraphBuilder, Run, wire
from kvflow_sdk.wire import FixedMark, StepUpdate

if TYPE_CHECKING:
    from conftest import Answer, Server

pytestmark = [pytest.mark.sglang, pytest.mark.server]

CLIENTS = 8
CALLS = 125
"""Per client."""
SEED = 2
TOLERATED = CLIENTS * CALLS // 200
"""Answers that may differ because batches of another shape round differently."""
ROUNDING = 1e-3
"""How far apart rounding may bring log-probabilities. Two tokens as likely as that may
change places; one read of KV that is not there yet moves them by 0.1 or more."""
TROUBLE = ("Traceback (most recent call last)", "leak detected", "use-after-free")
VOCAB = 2048
FIRST_TOKEN = 3
LONGEST_PROMPT = 420


@dataclass(frozen=True, slots=True)
class Call:
    """One request on /generate."""

    prompt: list[int]
    output: int
    hints: dict[str, Any] | None
    hang_up: bool = False
    """Go away after the first token."""


@dataclass(frozen=True, slots=True)
class Tell:
    """Snapshots that go out of band in one message."""

    updates: list[StepUpdate]


@dataclass(frozen=True, slots=True)
class Soak:
    """What is left when it is over."""

    calls: int
    differing: list[tuple[Call, Answer, Answer]]
    """What KVFlow answered, and stock."""
    before: dict[str, Any]
    after: dict[str, Any]
    """The state report before and after."""


@pytest.fixture(scope="module")
def soak(fleet: Any) -> Soak:
    server, truth = fleet["kvflow"], fleet["truth"]
    scripts = [script(client, CALLS, SEED) for client in range(CLIENTS)]
    before = server.state()
    answers = play(server, scripts)
    expected = play(truth, [[e for e in s if isinstance(e, Call)] for s in scripts])
    differing = [
        (call, answer, right)
        for (call, answer), (_, right) in zip(answers, expected, strict=True)
        if answer is not None and not answer.agrees_with(right)
    ]
    return Soak(len(answers), differing, before, server.settle())


def play(
    server: Server, scripts: list[list[Call | Tell]]
) -> list[tuple[Call, Answer | None]]:
    """All scripts at once; the answers in the order of the scripts."""
    with ThreadPoolExecutor(len(scripts)) as clients:
        played = clients.map(lambda events: act(server, events), scripts)
        return [pair for pairs in played for pair in pairs]


def act(server: Server, events: list[Call | Tell]) -> list[tuple[Call, Answer | None]]:
    answers: list[tuple[Call, Answer | None]] = []
    for event in events:
        if isinstance(event, Tell):
            assert server.send(*event.updates).status_code == 202
        elif event.hang_up:
            server.hang_up(event.prompt, event.hints)
            answers.append((event, None))
        else:
            answer = server.ask(event.prompt, event.hints, output=event.output)
            answers.append((event, answer))
    return answers


def test_answers_are_those_of_stock_sglang(
    soak: Soak, server: Server, truth: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        print(f"\n{len(soak.differing)} of {soak.calls} answers differed in a batch")
    assert soak.calls == CLIENTS * CALLS
    assert len(soak.differing) <= TOLERATED
    for call, _, _ in soak.differing:
        again = server.ask(call.prompt, call.hints, output=call.output)
        assert again.agrees_with(truth.ask(call.prompt, output=call.output))


def test_what_differs_is_no_more_than_rounding(soak: Soak) -> None:
    assert soak.calls
    for _, answer, right in soak.differing:
        common = [a == b for a, b in zip(answer.tokens, right.tokens, strict=True)]
        end = common.index(False) + 1 if False in common else len(common)
        assert answer.logprobs[:end] == pytest.approx(
            right.logprobs[:end], rel=0, abs=ROUNDING
        )


def test_the_pressure_was_real(soak: Soak) -> None:
    """Or the other tests here would prove little."""
    grown = {
        name: count - soak.before["counters"][name]
        for name, count in soak.after["counters"].items()
    }
    assert grown["tagged_requests"] > soak.calls / 2
    for name in (
        "step_updates",
        "step_updates_stale",
        "load_on_demand_tokens",
        "prefetch_tokens",
        "prefetch_used_tokens",
        "prefetch_unused_tokens",
        "skipped_passes",
    ):
        assert grown[name] > 0, name


def test_nothing_is_lost_or_left_behind(soak: Soak) -> None:
    pool = soak.after["pool"]
    assert pool["loads_in_flight"] == 0
    assert pool["free"] + pool["evictable"] == pool["tokens"]


def test_every_invariant_holds_at_the_end(soak: Soak, server: Server) -> None:
    assert soak.after["config"]["debug"]
    assert soak.after["integrity"] == "ok"
    # SGLang's memory check runs whenever it is idle, and ends the server.
    assert server.http.get("/health_generate").status_code == 200
    assert server.process.alive


def test_the_server_logged_no_error(soak: Soak, server: Server) -> None:
    assert soak.calls
    assert [text for text in TROUBLE if server.log_count(text)] == []


def test_bad_payloads_among_the_good_were_counted(soak: Soak) -> None:
    dropped = [s["dropped_metadata"].get("seq", 0) for s in (soak.before, soak.after)]
    assert dropped[1] > dropped[0]


def script(client: int, calls: int, seed: int) -> list[Call | Tell]:
    """What client number `client` does; `calls` of the events are `Call`s."""
    author = _Author(random.Random(f"{seed}-{client}"), shared=random.Random(seed))
    events: list[Call | Tell] = []
    made = 0
    while made < calls:
        event = next(author.events)
        events.append(event)
        made += isinstance(event, Call)
    return events


def _tokens(source: random.Random, length: int) -> list[int]:
    return [source.randrange(FIRST_TOKEN, VOCAB) for _ in range(length)]


def _graph(source: random.Random, names: list[str]) -> AgentStepGraph:
    """A chain with shortcuts, loops and, sometimes, a barrier."""
    builder = GraphBuilder()
    for name in names:
        builder.add_node(name)
    builder.add_entry(names[0])
    for first, second in pairwise(names):
        builder.add_edge(first, second, conditional=source.random() < 0.3)
    for _ in range(source.randrange(3)):
        builder.add_edge(*source.choices(names, k=2), conditional=True)
    if len(names) > 3 and source.random() < 0.5:
        builder.add_barrier(names[1:3], names[3])
    return builder.build()


@dataclass(slots=True)
class _Walk:
    """A run on its way through the graph."""

    run: Run
    node: str
    left: int
    told: list[StepUpdate] = field(default_factory=list)


class _Author:
    def __init__(self, source: random.Random, shared: random.Random) -> None:
        self._source = source
        self._client = f"soak-{source.getrandbits(128):032x}"
        names = [f"agent-{number}" for number in range(source.randint(3, 6))]
        self._graph = _graph(source, names)
        # Beginnings that all clients have in common, as a house style is.
        common = [_tokens(shared, 64) for _ in range(3)] + [[]]
        self._fixed = {
            name: source.choice(common) + _tokens(source, source.randint(24, 160))
            for name in names
        }
        self._last: dict[str, list[int]] = {}
        self._walks: list[_Walk] = []
        self._late: list[StepUpdate] = []
        self.events = self._events()

    def _events(self) -> Iterator[Call | Tell]:
        while True:
            if not self._walks or (
                len(self._walks) < 2 and self._source.random() < 0.2
            ):
                self._begin()
            walk = self._source.choice(self._walks)
            walk.run.start(walk.node)
            yield from self._tell(walk)
            yield self._call(walk)
            walk.run.end(walk.node)
            self._move(walk)
            yield from self._tell(walk)

    def _begin(self) -> None:
        told: list[StepUpdate] = []
        run_id = f"run-{self._source.getrandbits(64):x}"
        run = Run(self._graph, client=self._client, run_id=run_id, listener=told.append)
        (first,) = self._graph.entry
        walk = _Walk(run, first, left=self._source.randint(1, 8), told=told)
        self._walks.append(walk)

    def _move(self, walk: _Walk) -> None:
        walk.left -= 1
        groups = self._graph.feeds(walk.node)
        if walk.left and groups:
            number = self._source.choice(groups)
            walk.node = self._graph.groups[number].target
            return
        self._walks.remove(walk)
        # One in five never says that it is over: a program that crashed.
        if self._source.random() < 0.8:
            walk.run.finish()

    def _tell(self, walk: _Walk) -> Iterator[Tell]:
        news, walk.told[:] = list(walk.told), []
        sent: list[StepUpdate] = []
        for update in news:
            kind = self._source.random()
            if kind < 0.6:
                sent.append(update)
            elif kind < 0.7:
                sent += [update, update]
            elif kind < 0.9:
                self._late.append(update)
        if self._late and self._source.random() < 0.3:
            self._source.shuffle(self._late)
            sent += self._late
            self._late = []
        if sent:
            yield Tell(sent)

    def _call(self, walk: _Walk) -> Call:
        agent = walk.node
        fixed = self._fixed[agent]
        prompt = fixed + _tokens(self._source, self._source.randint(4, 48))
        last = self._last.get(agent)
        if last and len(last) < LONGEST_PROMPT - 48 and self._source.random() < 0.3:
            # A tool loop: the same conversation, longer.
            prompt = last + _tokens(self._source, self._source.randint(4, 48))
        self._last[agent] = prompt
        return Call(
            prompt=prompt,
            output=self._source.randint(1, 8),
            hints=self._hints(walk, len(fixed)),
            hang_up=self._source.random() < 0.02,
        )

    def _hints(self, walk: _Walk, fixed: int) -> dict[str, Any] | None:
        kind = self._source.random()
        if kind < 0.1:
            return None
        mark = FixedMark(tokens=fixed) if kind < 0.85 else None
        update = walk.run.snapshot(agent=walk.node, fixed=mark)
        envelope = wire.to_envelope([update])
        if kind > 0.97:
            envelope["actions"][0]["payload"]["seq"] = "soon"
        return envelope
