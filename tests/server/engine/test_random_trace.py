"""Anything in any order on the real engine; after each step everything holds.

Requests come, run, are retracted and go away; clients speak in order and out of order;
copies arrive when they please. What is checked after every step: SGLang's
`sanity_check`, KVFlow's `check_integrity`, the conservation of slots, the contents of
every slot that is read or kept, and a plain model of what clients said. At the end
everything is answered and nothing is left behind. (`test_order` checks who is evicted.)
"""

from __future__ import annotations

import atexit
import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from miniature import Miniature
from reference import Said

from kvflow_sdk.wire import FixedMark, StepUpdate

POOL = 96
"""Slots: not quite three prompts, and a request needs up to 78."""
CLIENTS = ("client-one-0123456789", "client-two-0123456789")
AGENTS = ("a", "b", "c")
LEASE = 600.0
WANTED = (
    *("prefetch_tokens", "load_on_demand_tokens", "late_join_tokens"),
    *("skipped_passes", "step_updates_stale", "retractions"),
)
"""What must have happened, or the test would say little."""
RARE = ("awaited_copies",)
"""What a short trace need not meet."""
_clients, _agents, _runs = map(st.sampled_from, (CLIENTS, AGENTS, "xyz"))
_steps = st.dictionaries(_agents, st.integers(0, 3))
_likelihoods = st.none() | st.dictionaries(_agents, st.sampled_from((0.1, 0.5, 0.9)))
_suffixes = st.lists(st.integers(1, 2), max_size=6)
_outputs = st.sampled_from((1, 2, 4, 8, 24))


def prompt_of(client: str, agent: str) -> list[int]:
    """Agent a's is the same for both clients; b and c share a beginning."""
    if agent == "a":
        return list(range(100, 130))
    own = 1000 * (CLIENTS.index(client) + 1) + 100 * AGENTS.index(agent)
    return [*range(200, 212), *range(own, own + 24)]


class Trace(RuleBasedStateMachine):
    build: ClassVar[Callable[..., Any]]
    happened: ClassVar[Counter[str]]
    """The engine's counters, of all traces together."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = contextlib.ExitStack()
        self.harness = self.build(pool=POOL, piece=8, ratio=1.5, max_skips=2)
        # Rather slow, so that requests have reason to wait for copies.
        self.harness.say_speeds(bus=100, prefill=100)
        self.stack.callback(self.harness.cache.release_host_resources)
        self.stack.callback(atexit.unregister, self.harness.cache.shutdown)
        self.loop = Miniature(self.harness)
        self.stack.enter_context(self.loop.in_charge())
        self.said = Said(LEASE)
        self.seq = 0
        self.ended = 0
        self.next_expiry = 0.0

    def teardown(self) -> None:
        with self.stack:
            self.loop.run_dry()
            self.loop.check()
            self.happened.update(self.harness.cache.counters.as_dict())
            self.happened.update(
                retractions=self.loop.retractions, passes=self.loop.passes
            )
            assert all(
                len(req.output_ids) == req.sampling_params.max_new_tokens
                for req in self.loop.finished
                if not getattr(req, "hung_up", False)
            )
            for _ in range(2):
                self.loop.now += 2 * LEASE
                self.loop.step()
            cache = self.harness.cache
            assert set(cache.table.counts().values()) == {0}
            assert len(cache.prompts) == 0
            prefetcher = cache.prefetcher
            assert len(prefetcher.accounts) == len(prefetcher.candidates) == 0
            assert not prefetcher._moved
            assert not prefetcher._pace

    @rule(
        client=_clients,
        agent=_agents,
        run=_runs,
        suffix=_suffixes,
        output=_outputs,
        steps=st.none() | _steps,
        marked=st.booleans(),
    )
    def call(
        self,
        client: str,
        agent: str,
        run: str,
        suffix: list[int],
        output: int,
        steps: dict[str, int] | None,
        marked: bool,
    ) -> None:
        """A request of an agent arrives, with what its client knows."""
        prompt = prompt_of(client, agent)
        mark = FixedMark(tokens=len(prompt)) if marked else None
        update = self.update(client, run, steps, agent=agent, fixed=mark)
        self.loop.submit([*prompt, *suffix, 3], output=output, update=update)

    @rule(client=_clients, run=_runs, order=st.permutations(AGENTS), slow=st.booleans())
    def workflow(self, client: str, run: str, order: list[str], slow: bool) -> None:
        """What clients mostly do: one agent after the other, and saying who is next."""
        for number, agent in enumerate(order):
            steps = {name: step for step, name in enumerate(order[number:])}
            self.call(client, agent, run, [1], 2, steps, marked=True)
            for _ in range(4):
                self.step(1)
                self.loop.advance(self.loop.up, 8)
                self.loop.advance(self.loop.down, 1 if slow else 8)

    @rule(client=_clients, agent=_agents, run=_runs, often=st.integers(0, 3))
    def long_answers(self, client: str, agent: str, run: str, often: int) -> None:
        """One is let in after the other, by an estimate, and both do not fit in the
        end; which takes a queue that is empty."""
        if not often:
            self.loop.run_dry()
        for suffix in (1, 2):
            self.call(client, agent, run, [suffix], 40, None, marked=True)
            self.step(1)

    @rule(client=_clients, agent=_agents, suffix=_suffixes, output=_outputs)
    def untagged_call(
        self, client: str, agent: str, suffix: list[int], output: int
    ) -> None:
        self.loop.submit([*prompt_of(client, agent), *suffix, 3], output=output)

    @rule(
        client=_clients,
        run=_runs,
        steps=_steps,
        likelihood=_likelihoods,
        late=st.integers(0, 4),
    )
    def say(
        self,
        client: str,
        run: str,
        steps: dict[str, int],
        likelihood: dict[str, float] | None,
        late: int,
    ) -> None:
        """Out of band, and perhaps overtaken by what was said later."""
        update = self.update(client, run, steps, late=late, likelihood=likelihood)
        self.harness.cache.apply_update(update)

    @rule(client=_clients, run=_runs)
    def end_run(self, client: str, run: str) -> None:
        self.harness.cache.apply_update(self.update(client, run, None, final=True))
        self.ended += 1

    @rule(passes=st.integers(1, 4))
    def step(self, passes: int) -> None:
        for _ in range(passes):
            self.expire()
            self.loop.step()

    @rule(copies=st.integers(1, 6))
    def loads_arrive(self, copies: int) -> None:
        """Layer by layer: a copy may be half there."""
        self.loop.advance(self.loop.down, copies)

    @rule(copies=st.integers(1, 40))
    def backups_arrive(self, copies: int) -> None:
        self.loop.advance(self.loop.up, copies)

    @precondition(lambda self: not self.loop.idle)
    @rule(number=st.integers(0, 7))
    def hang_up(self, number: int) -> None:
        requests = [*self.loop.waiting, *self.loop.running]
        req = requests[number % len(requests)]
        req.hung_up = True
        self.loop.abort(req)

    @rule(client=_clients, agent=_agents, length=st.integers(1, 40))
    def match(self, client: str, agent: str, length: int) -> None:
        """Touches, and splits where the match ends."""
        self.harness.match(prompt_of(client, agent)[:length])

    @precondition(lambda self: self.harness.cache.loads.active)
    @rule(part=st.integers(1, 7))
    def split_what_is_loading(self, part: int) -> None:
        """A request for a part of a prompt meets it half there."""
        tree = self.harness.cache.tree_core
        loading = [n for n in tree.nodes() if n.kvflow.load and len(n.key) > part]
        if loading:
            path = [list(n.key.token_ids) for n in tree.path_to_root(loading[-1])]
            above = [token for tokens in reversed(path[1:]) for token in tokens]
            self.harness.match([*above, *path[0][:part]])

    @rule(tokens=st.integers(1, 20))
    def evict(self, tokens: int) -> None:
        self.harness.evict(tokens)

    @rule(tokens=st.integers(1, 40))
    def evict_host(self, tokens: int) -> None:
        self.harness.cache.evict_host(tokens)

    @rule(often=st.integers(0, 9))
    def flush(self, often: int) -> None:
        if not often and self.loop.flush():
            assert self.harness.allocator.available_size() == POOL
            assert len(self.harness.cache.prompts) == 0

    @rule(part=st.sampled_from((0.01, 0.1, 0.1, 0.4, 1.2)))
    def time_passes(self, part: float) -> None:
        self.loop.now += part * LEASE
        self.step(1)

    @invariant()
    def everything_holds(self) -> None:
        self.harness.check()
        self.loop.check()

    @invariant()
    def the_table_is_what_was_said(self) -> None:
        table = self.harness.cache.table
        assert table.counts() == self.said.counts()
        for client in CLIENTS:
            for agent in AGENTS:
                said = (
                    self.said.steps(client, agent),
                    self.said.likelihood(client, agent),
                )
                assert (
                    table.steps(client, agent),
                    table.likelihood(client, agent),
                ) == said

    def update(
        self,
        client: str,
        run: str,
        steps: dict[str, int] | None,
        late: int = 0,
        **fields: Any,
    ) -> StepUpdate:
        """What is said now; the model hears it, too."""
        self.seq += 1
        name = f"{run}{self.ended // 4}"
        seq = max(self.seq - late, 0)
        made = StepUpdate(client=client, run=name, seq=seq, steps=steps, **fields)
        self.said.hear(made, self.loop.now)
        return made

    def expire(self) -> None:
        if self.loop.now >= self.next_expiry:
            self.next_expiry = self.loop.now + LEASE / 10
            self.said.expire(self.loop.now)


def trace(builder: Callable[..., Any], examples: int, steps: int) -> Counter[str]:
    happened: Counter[str] = Counter()
    members = {"build": staticmethod(builder), "happened": happened}
    machine = type("Trace", (Trace,), members)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate],
        ),
    )
    return happened


def test_everything_holds_on_random_traces(builder: Callable[..., Any]) -> None:
    happened = trace(builder, examples=40, steps=50)
    assert [name for name in WANTED if not happened[name]] == []


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_everything_holds_for_100_000_steps(builder: Callable[..., Any]) -> None:
    happened = trace(builder, examples=1000, steps=100)
    assert [name for name in (*WANTED, *RARE) if not happened[name]] == []
