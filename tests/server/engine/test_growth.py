"""KVFlow's own state is bounded: a server that runs for months holds no more than one
that has warmed up, whatever its clients call their runs and agents.
"""

from __future__ import annotations

import atexit
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from miniature import Miniature

from kvflow_sdk.wire import FixedMark, StepUpdate
from kvflow_server.policy.backup import BackupLimits
from kvflow_server.policy.steps import StepLimits

CONTAINERS = (dict, list, set, frozenset, deque, tuple, Counter, OrderedDict)
LIMITS = StepLimits(
    clients=8, runs_per_client=8, agents_per_client=16, tombstones_per_client=8
)
WARM, LATER = 60, 240
"""Workflows."""
SLACK = 128
"""Entries that a bounded container may still gain; a leak gains two a workflow."""


@pytest.fixture
def loop(builder: Callable[..., Any]) -> Iterator[Miniature]:
    harness = builder(
        pool=96,
        piece=8,
        ratio=1.5,
        agents_accounted=16,
        steps=LIMITS,
        backup_limits=BackupLimits(beginnings=32, agents=16),
    )
    loop = Miniature(harness)
    with loop.in_charge():
        yield loop
        loop.run_dry()
    atexit.unregister(harness.cache.shutdown)
    harness.cache.release_host_resources()


def sizes(root: Any) -> Counter[str]:
    """Path -> entries of every container that KVFlow's own objects hold; SGLang's are
    left alone, and what hangs on tree nodes goes with them."""
    found: Counter[str] = Counter()
    seen: set[int] = set()
    todo: list[tuple[str, Any]] = [("cache", root)]
    while todo:
        path, value = todo.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, CONTAINERS):
            found[path] += len(value)
            inner = value.values() if isinstance(value, dict) else value
            todo += [(f"{path}[]", item) for item in inner]
        elif type(value).__module__.startswith("kvflow_server"):
            todo += [(f"{path}.{name}", item) for name, item in members(value)]
    return found


def members(value: Any) -> list[tuple[str, Any]]:
    slots = [
        name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())
    ]
    named = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    named.update(getattr(value, "__dict__", {}))
    # The pools, the tree and the requests are SGLang's.
    return [(n, v) for n, v in named.items() if not n.startswith(("_node_arena", "__"))]


def work(loop: Miniature, first: int, last: int, *, clients: int) -> None:
    """Workflows of two agents whose names, like their runs', are never used again."""
    for number in range(first, last):
        client = f"client-{number % clients:04d}-0123456789"
        for step, agent in enumerate(("plan", "write")):
            name = f"{agent}-{number}"
            prompt = [100 + number % 5] * 6 + [500 + step] * 14
            update = StepUpdate(
                client=client,
                run=f"run-{number}",
                seq=step,
                agent=name,
                steps={name: 0, f"write-{number}": 1 - step},
                fixed=FixedMark(tokens=len(prompt)),
                final=False,
            )
            loop.submit([*prompt, 3 + number % 90], output=2, update=update)
            loop.run_dry()
        if number % 3:
            end = StepUpdate(client=client, run=f"run-{number}", seq=9, final=True)
            loop.cache.apply_update(end)
        loop.now += 7.0
        loop.step()


@pytest.mark.parametrize("clients", [2, 1000], ids=["the same", "ever new"])
def test_state_does_not_grow_with_the_number_of_workflows(
    loop: Miniature, clients: int
) -> None:
    work(loop, 0, WARM, clients=clients)
    warm = sizes(loop.cache)
    work(loop, WARM, LATER, clients=clients)
    grown = {
        path: (warm[path], size)
        for path, size in sizes(loop.cache).items()
        if size > warm[path] + SLACK
    }
    assert grown == {}
