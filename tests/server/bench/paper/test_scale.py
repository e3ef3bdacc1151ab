from __future__ import annotations

import pytest

from kvflow_server.bench.paper.calibrate import START_DIMS
from kvflow_server.bench.paper.fig5 import FULL, QUICK
from kvflow_server.bench.paper.scale import (
    Effort,
    Servers,
    Speed,
    bus_gbps,
    everything_tokens,
    fit,
    scaled,
    settings_of,
    wanted,
)
from kvflow_server.bench.paper.testbeds import TESTBEDS, Mix
from kvflow_server.emulated.tiny import TinyDims

A10G = TESTBEDS["a10g"]


def test_every_count_is_divided_by_the_same_factor() -> None:
    assert scaled(Mix(8192, 128, 1024), 16) == Mix(512, 8, 64)


def test_nothing_is_scaled_to_nothing() -> None:
    assert scaled(Mix(4096, 32, 32), 64) == Mix(64, 1, 1)


def test_short_mixes_run_more_often() -> None:
    effort = Effort(32, runs=(9, 4, 2))
    runs = [effort.runs_of(Mix(4096, out, out)) for out in (32, 256, 1024)]
    assert runs == [9, 4, 2]


@pytest.mark.parametrize("effort", [QUICK, FULL])
@pytest.mark.parametrize("testbed", TESTBEDS.values(), ids=list(TESTBEDS))
def test_one_pool_serves_both_prompt_sizes(testbed: object, effort: Effort) -> None:
    pools = set()
    for mix in A10G.fig5:
        servers = Servers(A10G.pool_tokens // effort.factor, 0, 1.0, TinyDims(), 1.0)
        pools.add(settings_of(mix, effort, servers, ("kvflow",)).pool_tokens)
    assert pools == {A10G.pool_tokens // effort.factor}


def test_the_pool_that_never_evicts_holds_all_mixes() -> None:
    mixes = [Mix(4096, 32, 32), Mix(4096, 1024, 1024)]
    effort = Effort(32, runs=(3, 3, 3), settling=2)
    per_run = 10 * (1 + 1) + 10 * (32 + 32)
    assert everything_tokens(mixes, effort) > 2 * 10 * 128 + (3 + 2) * per_run


def perfect(seconds: float, effort: Effort) -> Speed:
    """A machine in exact proportion to the A10G, but for suffixes."""
    step = A10G.step_s * seconds * effort.factor
    sizes = (4096, 8192)
    return Speed({n: A10G.prefill_s(n) * seconds for n in sizes}, step, step)


def test_a_machine_in_proportion_fits() -> None:
    seconds, dear = fit(A10G, QUICK, perfect(0.04, QUICK))
    assert seconds == pytest.approx(0.04)
    assert dear == pytest.approx(1, abs=0.02)


def test_slow_decoding_is_told() -> None:
    speed = perfect(0.04, QUICK)
    slow = Speed(speed.prefill, 2 * speed.first, 2 * speed.step)
    assert fit(A10G, QUICK, slow)[1] == pytest.approx(2, abs=0.04)


@pytest.mark.parametrize("name", TESTBEDS)
def test_the_bus_loads_in_proportion_to_prefill(name: str) -> None:
    testbed, dims, seconds = TESTBEDS[name], START_DIMS[name], 0.04
    gbps = bus_gbps(testbed, QUICK, dims, seconds)
    load = 256 * dims.kv_bytes_per_token / gbps / 1e9
    prefill = testbed.prefill_s(8192) * seconds
    assert load / prefill == pytest.approx(wanted(testbed, Mix(8192, 32, 32)).load)
