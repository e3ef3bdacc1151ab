"""A fault at every place where SGLang enters KVFlow's code: requests are answered right.

Each is put into a scheduler in small that serves workflows, with every slot that is read
or kept checked. It strikes always, or now and then, before or after the work is done; so
what it leaves half done is met as well.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from miniature import Miniature

from kvflow_sdk.wire import FixedMark, StepUpdate
from kvflow_server.engine.config import Recording
from kvflow_server.engine.recording import Recorder

Make = Callable[..., Any]
Strikes = Callable[[int], str]
POOL = 96
OUTPUT = 8
CLIENT = "client-one-0123456789"
AGENTS = tuple("abcdef")
"""Their prompts together are more than host memory holds."""
ENGINE = "kvflow_server.engine"
POLICY = "kvflow_server.policy"

CACHE = (
    *("_identify", "_boundary", "cuts", "label_path", "path_of", "missing_on_device"),
    *("_forget_earlier_end", "expire_when_due", "forget_clients"),
)
ENTRIES = (
    *(f"{ENGINE}.cache:KVFlowCache.{name}" for name in CACHE),
    *(f"{ENGINE}.{name}" for name in (
        "cache:digest", "cache:in_pieces", "cache:note_update",
        "scheduling:note_admission", "scheduling:note_skip", "scheduling:publish_when_due",
        "scheduling:read_request_hints", "scheduling:verdict_on", "scheduling:_agents",
        "scheduling:_decode_reserve",
        "tree:KVFlowTreeCore.missing_boundaries", "tree:KVFlowTreeCore.walk",
        "order:TreeOrder.rekey", "order:TreeOrder.charge", "order:TreeOrder.rank_of",
        "order:TreeOrder.entry_of", "order:TreeOrder.attach", "order:TreeOrder.detach",
        "order:TreeOrder.rerank", "order:TreeOrder.note_use",
        "order:TreeOrder.next_victim", "order:TreeOrder.displaceable",
        "index:Writers.assign", "node:NodeState.inherit",
        "loads:LoadTracker.on_path", "loads:LoadTracker.join", "loads:LoadTracker.reap",
        "loads:LoadTracker.take_join", "loads:LoadTracker.start",
        "loads:LoadTracker._settle", "loads:LoadTracker.await_oldest",
        "prefetching:Prefetcher.run", "prefetching:Prefetcher.note_use",
        "prefetching:Prefetcher._evicted", "prefetching:Prefetcher._start_demand",
        "prompts:PromptRegistry.record", "prompts:PromptRegistry.settle",
        "prompts:PromptRegistry._forget", "speeds:Speeds.load_started",
        "speeds:Speeds.loads_seen", "speeds:Speeds.backup_arrived",
        "speeds:Speeds.pass_ended", "prewarming:Prewarmer.withdraw",
        "collector:FrozenCollector.after_pass",
    )),
    *(f"{POLICY}.{name}" for name in (
        "victims:VictimOrder.add", "victims:VictimOrder.remove",
        "victims:VictimOrder.first", "victims:Protection.change",
        "steps:StepTable.apply", "backup:SuffixBackup.hits",
    )),
)  # fmt: skip
FLUSH = (
    f"{ENGINE}.prompts:PromptRegistry.clear",
    f"{ENGINE}.loads:LoadTracker.clear",
    f"{ENGINE}.speeds:Speeds.clear",
    f"{ENGINE}.prefetching:Prefetcher.clear",
    f"{ENGINE}.cache:KVFlowCache.drain_loads",
)


class BrokenError(Exception):
    """Nobody foresaw it."""


ALWAYS: Strikes = lambda call: "before"  # noqa: E731
NOW_AND_THEN: Strikes = lambda call: ("before", "", "after", "")[call % 4]  # noqa: E731


@pytest.fixture
def strike(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Strikes], list[int]]:
    """Let a function fail; the calls that did are in the list."""

    def put(entry: str, strikes: Strikes) -> list[int]:
        module, _, path = entry.partition(":")
        holder, _, name = path.rpartition(".")
        owner = pkgutil.resolve_name(f"{module}:{holder}" if holder else module)
        real, calls, struck = getattr(owner, name), itertools.count(), []

        def failing(*args: Any, **kwargs: Any) -> Any:
            call = next(calls)
            when = strikes(call)
            if when:
                struck.append(call)
            if when == "before":
                raise BrokenError
            result = real(*args, **kwargs)
            if when == "after":
                raise BrokenError
            return result

        monkeypatch.setattr(owner, name, failing)
        return struck

    return put


@pytest.fixture
def scheduler(make_harness: Make) -> Iterator[Callable[[], Miniature]]:
    """Makes a scheduler, as in production: not in debug mode."""
    with contextlib.ExitStack() as stack:

        def make() -> Miniature:
            harness = make_harness(pool=POOL, piece=8, ratio=1.5, max_skips=2)
            # Rather slow, so that requests have reason to wait for copies.
            harness.say_speeds(bus=100, prefill=100)
            harness.cache.guard.strict = False
            harness.cache.config = dataclasses.replace(
                harness.cache.config, debug=False
            )
            harness.cache.tree_core.ledger = None
            made = Miniature(harness)
            stack.enter_context(made.in_charge())
            return made

        yield make


def prompt_of(agent: str) -> list[int]:
    """All but a's share a beginning."""
    own = 1000 + 100 * AGENTS.index(agent)
    return [*range(200, 212 if agent != "a" else 200), *range(own, own + 24)]


class Client:
    """Asks what workflows ask, and remembers it."""

    def __init__(self, loop: Miniature) -> None:
        self.loop = loop
        self.asked: list[Any] = []
        self._seq = itertools.count(1)

    def update(self, run: str, steps: dict[str, int], agent: str | None) -> StepUpdate:
        mark = FixedMark(tokens=len(prompt_of(agent))) if agent else None
        return StepUpdate(
            client=CLIENT,
            run=run,
            seq=next(self._seq),
            steps=steps,
            agent=agent,
            fixed=mark,
        )

    def call(self, run: str, agent: str, suffix: int) -> None:
        steps = {name: n for n, name in enumerate(AGENTS[AGENTS.index(agent) :])}
        tokens = [*prompt_of(agent), *range(suffix), len(self.asked)]
        update = self.update(run, steps, agent)
        self.asked.append(self.loop.submit(tokens, output=OUTPUT, update=update))

    def passes(self, count: int, loads: int) -> None:
        for _ in range(count):
            self.loop.now += 0.1
            self.loop.step()
            self.loop.check()
            self.loop.advance(self.loop.up, 8)
            self.loop.advance(self.loop.down, loads)

    def workflows(self, count: int) -> None:
        """Two at a time, that meet in the pool."""
        for number in range(count):
            for agent in AGENTS:
                self.call(f"x{number}", agent, 3)
                self.call(f"y{number}", agent, 1 + number)
                self.passes(5, loads=1 + number)
            self.loop.run_dry()

    def lone_calls(self) -> None:
        """Each comes while its prompt is on the way, and nothing else is there to do."""
        for agent in AGENTS:
            self.call("lone", agent, 1)
            self.loop.run_dry()
            self.loop.harness.evict(POOL)
            self.loop.cache.apply_update(self.update("lone", {agent: 1}, None))
            self.passes(1, loads=0)
            self.call("lone", agent, 2)
            self.loop.run_dry()

    def assert_answered(self) -> None:
        """All of it, with the tokens that their KV says, and no slot lost."""
        self.loop.run_dry()
        assert all(len(req.output_ids) == OUTPUT for req in self.asked)
        self.loop.check()
        self.loop.cache.sanity_check()


@pytest.mark.parametrize(
    "strikes",
    [
        pytest.param(ALWAYS, id="always", marks=pytest.mark.full),
        pytest.param(NOW_AND_THEN, id="often"),
    ],
)
@pytest.mark.parametrize("entry", ENTRIES)
def test_a_fault_anywhere_costs_no_answer(
    scheduler: Any, strike: Any, entry: str, strikes: Strikes
) -> None:
    struck = strike(entry, strikes)
    client = Client(scheduler())
    client.workflows(2)
    client.lone_calls()
    client.assert_answered()
    assert struck, "it never came there"
    assert client.loop.cache.counters.internal_errors


@pytest.mark.parametrize("strikes", [ALWAYS, NOW_AND_THEN], ids=["always", "often"])
@pytest.mark.parametrize("name", ["note_call", "after_pass"])
def test_a_fault_of_the_recorder_costs_no_answer(
    scheduler: Any, strike: Any, name: str, strikes: Strikes, tmp_path: Path
) -> None:
    loop = scheduler()
    recorder = Recorder(Recording(str(tmp_path / "trace.jsonl"), 1 << 20))
    loop.cache.recorder = recorder
    struck = strike(f"{ENGINE}.recording:Recorder.{name}", strikes)
    client = Client(loop)
    client.workflows(1)
    client.assert_answered()
    recorder.close()
    assert struck, "it never came there"
    assert loop.cache.counters.internal_errors == len(struck)


@pytest.mark.parametrize("entry", FLUSH)
def test_a_fault_while_flushing_leaves_an_empty_cache(
    scheduler: Any, strike: Any, entry: str
) -> None:
    client = Client(scheduler())
    client.workflows(1)
    struck = strike(entry, ALWAYS)
    assert client.loop.flush()
    assert client.loop.allocator.available_size() == POOL
    client.workflows(1)
    client.assert_answered()
    assert struck, "it never came there"
    assert client.loop.cache.counters.internal_errors
