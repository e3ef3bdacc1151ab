"""Anything in any order on the real tree; after each step every invariant holds.

SGLang's `sanity_check`, KVFlow's `check_integrity`, the conservation of slots, and a
naive reading of the eviction order.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from typing import Any, ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from kvflow_server.policy.priority import eviction_key

POOL = 96
AGENTS = ("a", "b", "c", "d")
_agents = st.sampled_from(AGENTS)
_suffixes = st.lists(st.integers(0, 2), max_size=6)


def prompt_of(agent: str) -> list[int]:
    """Fixed prompts that share a beginning in pairs."""
    index = AGENTS.index(agent)
    shared = [500 + index // 2] * 12
    return [*shared, *range(1000 * (index + 1), 1000 * (index + 1) + 24)]


class Trace(RuleBasedStateMachine):
    """One cache under a random workload of one client with several runs."""

    build: ClassVar[Callable[..., Any] | None] = None

    def __init__(self) -> None:
        super().__init__()
        assert Trace.build is not None
        self.harness: Any = Trace.build(pool=POOL, piece=8)
        self.runs: list[str] = []

    def teardown(self) -> None:
        cache = self.harness.cache
        self.harness.finish_loads()
        self.harness.backup()
        atexit.unregister(cache.shutdown)
        cache.release_host_resources()

    @rule(
        agent=_agents, suffix=_suffixes, run=st.sampled_from("xy"), tagged=st.booleans()
    )
    def call(self, agent: str, suffix: list[int], run: str, tagged: bool) -> None:
        """A request runs, unless its path is being loaded (then it would be skipped)."""
        tokens = [*prompt_of(agent), *suffix]
        walk = self.harness.cache.tree_core.walk(self.harness.key(tokens))
        if any(node.kvflow.load for node in walk):
            return
        fixed = prompt_of(agent)
        tag = self.harness.tag(agent, len(fixed), fixed, run=run) if tagged else None
        self.harness.insert(tokens, tag)

    @rule(agent=_agents, suffix=_suffixes)
    def match(self, agent: str, suffix: list[int]) -> None:
        self.harness.match([*prompt_of(agent)[: 10 + len(suffix)], *suffix])

    @rule(run=st.sampled_from("xy"), steps=st.dictionaries(_agents, st.integers(0, 3)))
    def update(self, run: str, steps: dict[str, int]) -> None:
        self.harness.update(steps, run=run + str(len(self.runs)))

    @rule(run=st.sampled_from("xy"))
    def end_run(self, run: str) -> None:
        self.harness.update(run=run + str(len(self.runs)), final=True)
        self.runs.append(run)

    @rule()
    def plan(self) -> None:
        self.harness.prefetch()

    @rule()
    def backup(self) -> None:
        self.harness.backup()

    @rule()
    def loads_arrive(self) -> None:
        self.harness.finish_loads()

    @rule(agent=_agents)
    def join(self, agent: str) -> None:
        """A batch waits for what its path still lacks."""
        loads = self.harness.cache.loads
        walk = self.harness.cache.tree_core.walk(self.harness.key(prompt_of(agent)))
        loads.join(loads.on_path(list(walk)))
        self.harness.cache.ready_to_load_host_cache()

    @rule(tokens=st.integers(1, 40))
    def evict(self, tokens: int) -> None:
        """The first victim is a smallest key among the leaves, read naively."""
        tree = self.harness.cache.tree_core
        keys = {leaf.id: self.naive_key(leaf) for leaf in tree.evictable_device_leaves}
        smallest = {name for name, key in keys.items() if key == min(keys.values())}
        self.harness.evict(tokens)
        gone = {name for name in keys if not self.on_device(name)}
        assert not keys or gone & smallest, "a larger key went first"

    @rule(tokens=st.integers(1, 40))
    def evict_host(self, tokens: int) -> None:
        self.harness.cache.evict_host(tokens)

    @rule()
    def lease_ends(self) -> None:
        client = "client-0123456789abcdef"
        self.harness.cache.table.expire(1e18)
        self.harness.cache.prompts.drop_client(client)

    @rule()
    def flush(self) -> None:
        self.harness.finish_loads()
        self.harness.backup()
        self.harness.cache.reset()
        self.harness.allocator.clear()

    @invariant()
    def everything_holds(self) -> None:
        cache = self.harness.cache
        cache.sanity_check()
        cache.check_integrity()
        held = cache.evictable_size() + cache.protected_size()
        assert held + self.harness.allocator.available_size() == POOL, "a slot leaked"

    def naive_key(self, node: Any) -> Any:
        """The key from a walk over the subtree instead of the kept handles."""
        below, found = [node], []
        while below:
            step = below.pop()
            below.extend(step.children.values())
            found += [(h.client, h.agent) for h in step.kvflow.ends or ()]
        state = node.kvflow
        return eviction_key(
            self.harness.cache.table,
            found,
            state.owner,
            node.last_access_time,
            use=state.use,
        )

    def on_device(self, node_id: int) -> bool:
        node = self.harness.cache.tree_core.find_node(node_id)
        return node is not None and not node.evicted


def test_invariants_hold_on_random_traces(builder: Callable[..., Any]) -> None:
    Trace.build = staticmethod(builder)
    run_state_machine_as_test(
        Trace, settings=settings(max_examples=40, stateful_step_count=40, deadline=None)
    )
