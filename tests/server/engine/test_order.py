"""The victims of the kept order are those that first principles choose.

A random workload of several clients on the real tree and pools; before every eviction a
naive reading of the whole tree says who must go.
"""

from __future__ import annotations

import atexit
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from kvflow_server.engine.config import Mode
from kvflow_server.policy.backup import Backup
from kvflow_server.policy.priority import EvictionClass, EvictionKey, eviction_key

POOL = 160
CLIENTS = ("one", "two")
AGENTS = ("a", "b", "c")
RUNS = ("r", "s")
_clients, _agents, _runs = map(st.sampled_from, (CLIENTS, AGENTS, RUNS))
_suffixes = st.lists(st.integers(0, 1), max_size=4)


def prompt_of(client: str, agent: str) -> list[int]:
    """Agent a's prompt is the same for both clients; b and c share a beginning."""
    if agent == "a":
        return list(range(100, 112))
    own = 1000 * (CLIENTS.index(client) + 1) + 100 * AGENTS.index(agent)
    return [*range(200, 206), *range(own, own + 8)]


class OrderTrace(RuleBasedStateMachine):
    build: ClassVar[Callable[..., Any]]
    mode: ClassVar[Mode]
    share: ClassVar[float]

    def __init__(self) -> None:
        super().__init__()
        self.harness: Any = self.build(
            pool=POOL, piece=8, mode=self.mode, share=self.share, backup=Backup.ALL
        )
        self.tree = self.harness.cache.tree_core
        self.locks: list[tuple[int, Any]] = []
        self.ended = 0

    def teardown(self) -> None:
        cache = self.harness.cache
        self.harness.backup()
        atexit.unregister(cache.shutdown)
        cache.release_host_resources()

    @rule(
        client=_clients, agent=_agents, run=_runs, suffix=_suffixes, fixed=st.booleans()
    )
    def call(
        self, client: str, agent: str, run: str, suffix: list[int], fixed: bool
    ) -> None:
        prompt = prompt_of(client, agent)
        length = len(prompt) if fixed else 0
        names = {"client": client, "run": self.name(run)}
        tag = self.harness.tag(agent, length, prompt, **names)
        self.harness.insert([*prompt, *suffix], tag)

    @rule(client=_clients, agent=_agents, suffix=_suffixes)
    def untagged_call(self, client: str, agent: str, suffix: list[int]) -> None:
        self.harness.insert([*prompt_of(client, agent), *suffix])

    @rule(client=_clients, agent=_agents, length=st.integers(1, 14))
    def match(self, client: str, agent: str, length: int) -> None:
        """Touches, and splits where the match ends."""
        self.harness.match(prompt_of(client, agent)[:length])

    @rule(
        client=_clients,
        run=_runs,
        steps=st.dictionaries(_agents, st.integers(0, 3)),
    )
    def update(self, client: str, run: str, steps: dict[str, int]) -> None:
        self.harness.update(steps, client=client, run=self.name(run))

    @rule(client=_clients, run=_runs)
    def end_run(self, client: str, run: str) -> None:
        self.harness.update(client=client, run=self.name(run), final=True)
        self.ended += 1

    @rule(client=_clients)
    def lease_ends(self, client: str) -> None:
        """Of one client; the other was heard of in time."""
        table = self.harness.cache.table
        table._clients.get(client, table).seen = -1e9
        for name in table.expire(0.0):
            self.harness.cache.prompts.drop_client(name)

    @rule(client=_clients, agent=_agents)
    def lock(self, client: str, agent: str) -> None:
        """A request runs on the prompt's path."""
        node = self.harness.match(prompt_of(client, agent)).last_device_node
        self.locks.append((node, self.harness.cache.inc_lock_ref(node)))

    @rule()
    def unlock(self) -> None:
        for node, lock in self.locks:
            self.harness.cache.dec_lock_ref(node, lock.to_dec_params())
        self.locks.clear()

    @rule()
    def backup(self) -> None:
        self.harness.backup()

    @rule(victims=st.integers(1, 4))
    def evict(self, victims: int) -> None:
        for _ in range(victims):
            leaves = [n for n in self.nodes() if self.tree._is_device_leaf(n)]
            keys = {node.id: self.key(node) for node in leaves}
            self.demote_excess(leaves, keys)
            before = self.on_device()
            self.harness.evict(1)
            gone = before - self.on_device()
            assert gone == ({min(keys, key=keys.__getitem__)} if keys else set())

    @rule()
    def evict_everything_at_once(self) -> None:
        """One walk over many victims, in which parents become leaves."""
        self.harness.evict(POOL)
        assert not any(self.tree._is_device_leaf(node) for node in self.nodes())

    @rule(victims=st.integers(1, 3))
    def evict_host(self, victims: int) -> None:
        for _ in range(victims):
            leaves = [n for n in self.nodes() if self.tree._is_host_leaf(n)]
            keys = {node.id: self.key(node) for node in leaves}
            self.harness.cache.evict_host(1)
            left = {node.id for node in self.nodes()}
            assert keys.keys() - left == (
                {min(keys, key=keys.__getitem__)} if keys else set()
            )

    @invariant()
    def everything_holds(self) -> None:
        self.harness.check()

    def name(self, run: str) -> str:
        """Run names are not used again once a run has ended."""
        return f"{run}{self.ended}"

    def nodes(self) -> list[Any]:
        return list(self.tree.nodes())

    def on_device(self) -> set[int]:
        return {node.id for node in self.nodes() if not node.evicted}

    def prompts_below(self, node: Any) -> list[tuple[str, str]]:
        below, found = [node], []
        while below:
            step = below.pop()
            below.extend(step.children.values())
            found += [(h.client, h.agent) for h in step.kvflow.ends]
        return found

    def key(self, node: Any) -> EvictionKey:
        return eviction_key(
            self.harness.cache.table,
            self.prompts_below(node),
            node.kvflow.owner,
            node.last_access_time,
            order=self.mode.order,
            use=node.kvflow.use,
        )

    def sole_client(self, node: Any) -> str | None:
        clients = {client for client, _agent in self.prompts_below(node)}
        return clients.pop() if len(clients) == 1 else None

    def demote_excess(self, leaves: list[Any], keys: dict[int, EvictionKey]) -> None:
        """Above a client's share its farthest leaf competes by recency."""
        if self.mode is Mode.STEPS:
            return
        held: Counter[str | None] = Counter()
        for node in self.nodes():
            if not node.evicted:
                held[self.sole_client(node)] += len(node.key)
        for client in CLIENTS:
            own = [leaf for leaf in leaves if self.sole_client(leaf) == client]
            if own and held[client] > self.share * POOL and self.share < 1:
                farthest = min(own, key=lambda leaf: keys[leaf.id])
                as_unknown = EvictionKey(
                    EvictionClass.UNKNOWN, 0, farthest.last_access_time
                )
                keys[farthest.id] = min(keys[farthest.id], as_unknown)


@pytest.mark.parametrize(
    ("mode", "share"),
    [(Mode.PROTECT, 0.1), (Mode.STEPS, 0.1), (Mode.FULL, 1.0), (Mode.FULL, 0.1)],
)
def test_victims_are_those_of_the_naive_reading(
    builder: Callable[..., Any], mode: Mode, share: float
) -> None:
    trace = type(
        "Trace",
        (OrderTrace,),
        {"build": staticmethod(builder), "mode": mode, "share": share},
    )
    run_state_machine_as_test(
        trace, settings=settings(max_examples=20, stateful_step_count=40, deadline=None)
    )
