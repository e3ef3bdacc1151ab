"""The state report is JSON whatever was measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any


def test_copies_too_fast_to_measure_leave_the_state_readable(
    make_harness: Callable[..., Any],
) -> None:
    from kvflow_server.engine.state import describe

    cache = make_harness().cache
    for _ in range(20):
        # Begun and ended between two ticks of the clock: its rate has no bound.
        cache.speeds.bus.took_at_least(512, 0.0)
    assert cache.speeds.bus.value == float("inf")
    report = json.loads(json.dumps(describe(cache), allow_nan=False))
    assert report["bus_bytes_per_s"] is None
