from __future__ import annotations

import pytest

from kvflow_server.bench.paper.belady import belady_s, least_loaded
from kvflow_server.bench.paper.testbeds import TESTBEDS, Mix, Testbed


@pytest.fixture(params=TESTBEDS)
def testbed(request: pytest.FixtureRequest) -> Testbed:
    return TESTBEDS[request.param]


def test_each_testbed_has_the_papers_six_mixes(testbed: Testbed) -> None:
    assert [mix.fixed for mix in testbed.fig5] == [4096] * 3 + [8192] * 3


def test_loading_a_prompt_is_far_cheaper_than_computing_it(testbed: Testbed) -> None:
    assert testbed.load_s(4096) < testbed.prefill_s(4096) / 3


def test_prefill_grows_faster_than_the_prompt(testbed: Testbed) -> None:
    assert testbed.prefill_s(8192) > 2 * testbed.prefill_s(4096)


def test_decoding_is_most_of_a_long_call(testbed: Testbed) -> None:
    mix = Mix(4096, 1024, 1024)
    step = testbed.costs.decode_seconds(1, 4096 + 1024 + 512)
    assert testbed.hit_s(mix) == pytest.approx(1024 * step, rel=0.05)


def test_a_prompt_of_the_a10g_loads_in_half_a_second() -> None:
    assert TESTBEDS["a10g"].load_s(8192) == pytest.approx(0.537, abs=0.001)


def test_a_pool_for_all_loads_nothing() -> None:
    assert least_loaded(10, 10) == 0


def test_a_pool_for_one_loads_everybody() -> None:
    assert least_loaded(10, 1) == 10
    assert least_loaded(10, 0.5) == 10


@pytest.mark.parametrize("held", range(1, 7))
def test_the_bound_is_what_farthest_next_use_misses(held: int) -> None:
    agents, rounds = 7, 600
    assert least_loaded(agents, held) == pytest.approx(
        _misses(agents, held, rounds) / rounds, rel=0.02
    )


def test_the_bound_in_time_is_the_busier_of_device_and_bus() -> None:
    assert belady_s(ideal_s=5.0, load_s=0.1, agents=10, held=1) == 5.0
    assert belady_s(ideal_s=5.0, load_s=0.8, agents=10, held=1) == 8.0


def _misses(agents: int, held: int, rounds: int) -> int:
    """Of Belady's rule, played out on the cycle."""
    cached: set[int] = set()
    misses = 0
    for now in range(agents * rounds):
        agent = now % agents
        if agent in cached:
            continue
        misses += 1
        if len(cached) == held:
            cached.remove(max(cached, key=lambda other: (other - agent) % agents))
        cached.add(agent)
    return misses
