"""When the garbage collector is frozen; each test thaws it again."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from kvflow_server.engine.collector import FrozenCollector


@pytest.fixture(autouse=True)
def _thaw() -> Iterator[None]:
    gc.collect()
    yield
    gc.unfreeze()


class Knot:
    """Garbage that only a collection frees."""

    def __init__(self) -> None:
        self.me = self


def test_it_freezes_at_the_first_pass_and_after_every_stride() -> None:
    collector = FrozenCollector(stride=10)
    frozen = [collector.after_pass(born, idle=True) for born in (5, 6, 14, 15, 16, 25)]
    assert frozen == [True, False, False, True, False, True]
    assert gc.get_freeze_count() > 0


def test_what_is_garbage_is_freed_and_not_frozen() -> None:
    collector = FrozenCollector(stride=10)
    collector.after_pass(0, idle=True)
    Knot()
    collector.after_pass(10, idle=True)
    gc.unfreeze()
    assert not [o for o in gc.get_objects() if type(o) is Knot]


def test_while_requests_leave_cycles_behind_only_an_idle_scheduler_freezes() -> None:
    collector = FrozenCollector(stride=10)
    collector.after_pass(0, idle=False)
    knots = [Knot() for _ in range(200)]
    del knots
    before = gc.get_freeze_count()
    assert not collector.after_pass(10, idle=False)
    assert not collector.after_pass(20, idle=False)
    assert gc.get_freeze_count() == before
    assert collector.after_pass(21, idle=True)
    assert collector.after_pass(31, idle=False), "clean again"
