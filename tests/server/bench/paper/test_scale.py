from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from kvflow_server.bench.paper.device import Device, tuned
from kvflow_server.bench.paper.fig5 import FULL, QUICK
from kvflow_server.bench.paper.scale import (
    DIMS,
    Effort,
    Scale,
    Servers,
    device_costs,
    everything_tokens,
    scaled,
    settings_of,
    wanted,
)
from kvflow_server.bench.paper.testbeds import TESTBEDS, Mix, Testbed
from kvflow_server.emulated.costs import Costs, load_costs
from kvflow_server.emulated.platform import DEVICE_ENV

A10G = TESTBEDS["a10g"]
EVERY = [
    pytest.param(testbed, mix, id=f"{testbed.name} {mix}")
    for testbed in TESTBEDS.values()
    for mix in testbed.fig5
]


def test_every_count_is_divided_by_the_same_factor() -> None:
    assert scaled(Mix(8192, 1024, 128), 16) == Mix(512, 64, 8)


def test_a_long_answer_is_cut_and_takes_as_long() -> None:
    assert scaled(Mix(8192, 1024, 1024), 16) == Mix(512, 64, 8)


def test_nothing_is_scaled_to_nothing() -> None:
    assert scaled(Mix(4096, 32, 32), 64) == Mix(64, 1, 1)


def test_short_mixes_run_more_often() -> None:
    effort = Effort(32, (1.0, 1.0, 1.0), runs=(9, 4, 2))
    runs = [effort.runs_of(Mix(4096, out, out)) for out in (32, 256, 1024)]
    assert runs == [9, 4, 2]


@pytest.mark.parametrize("effort", [QUICK, FULL])
def test_one_pool_serves_both_prompt_sizes(effort: Effort) -> None:
    pools = set()
    held = A10G.pool_tokens // effort.factor
    for mix in A10G.fig5:
        servers = Servers(held, 0, DIMS)
        pools.add(settings_of(mix, effort, servers, ("kvflow",)).pool_tokens)
    assert pools == {held}


def test_the_pool_that_never_evicts_holds_all_mixes() -> None:
    mixes = [Mix(4096, 32, 32), Mix(4096, 1024, 1024)]
    effort = Effort(32, (1.0, 1.0, 1.0), runs=(3, 3, 3), settling=2)
    per_run = 10 * (1 + 1) + 10 * (32 + 32)
    assert everything_tokens(mixes, effort) > 2 * 10 * 128 + (3 + 2) * per_run


@pytest.mark.parametrize("effort", [QUICK, FULL], ids=["quick", "full"])
@pytest.mark.parametrize(("testbed", "mix"), EVERY)
def test_prefill_load_and_hit_stand_in_the_testbeds_proportion(
    testbed: Testbed, mix: Mix, effort: Effort
) -> None:
    costs = device_costs(testbed, mix, effort.scale_of(testbed, mix))
    small = scaled(mix, effort.factor)
    prefill = costs.prefill_seconds([(0, small.fixed)])
    load = costs.copy_seconds(small.fixed)
    hit = costs.hit_seconds(small.fixed, small.dynamic, small.output)
    aim = wanted(testbed, mix)
    seconds = effort.scale_of(testbed, mix).seconds
    assert prefill == pytest.approx(testbed.prefill_s(mix.fixed) * seconds)
    assert any(hit == pytest.approx(call, rel=1e-2) for call in effort.call_s)
    assert load / prefill == pytest.approx(aim.load)
    assert hit / prefill == pytest.approx(aim.hit, rel=1e-2)


def test_the_pass_over_a_suffix_is_one_pass_there_and_here() -> None:
    # Not the pass of all tokens that one generated token stands for: stock HiCache
    # would hide a whole load behind it.
    mix = Mix(8192, 32, 32)
    costs = device_costs(A10G, mix, Scale(16, 0.1))
    first = costs.prefill_seconds([(512, 2)])
    assert first == pytest.approx(A10G.costs.prefill_seconds([(8192, 32)]) * 0.1)


def test_a_request_that_stands_for_four_costs_as_much_as_four() -> None:
    mix = Mix(512, 256, 256)
    four, one = (device_costs(A10G, mix, Scale(16, 1.0, thinned=n)) for n in (4, 1))
    assert four.prefill_seconds([(0, 512)]) == pytest.approx(
        one.prefill_seconds([(0, 512)] * 4)
    )
    assert four.decode_seconds(1, 100) == pytest.approx(one.decode_seconds(4, 400))
    assert four.copy_seconds(7) == pytest.approx(one.copy_seconds(28))


def machine(costs: Costs, call_s: float, step_s: float, steps: int) -> float:
    """Seconds of a call on a machine that takes some time of its own."""
    return call_s + steps * (costs.decode_s + step_s)


def test_what_the_machine_itself_takes_comes_off_the_decoding(tmp_path: Path) -> None:
    with ExitStack() as stack:
        costs = device_costs(A10G, Mix(4096, 128, 128), Scale(16, 0.1))
        device = Device(stack, costs)
        file = Path(device.env[DEVICE_ENV])

        def measure() -> float:
            return machine(load_costs(file), 0.01, 0.002, steps=7)

        found = tuned(device, costs, 7, 7 * costs.decode_s, measure)
        assert measure() == pytest.approx(7 * costs.decode_s)
        assert load_costs(file) == found
    assert not file.exists()


def test_decoding_is_never_taken_below_nothing() -> None:
    with ExitStack() as stack:
        costs = device_costs(A10G, Mix(4096, 32, 32), Scale(16, 1e-4))
        device = Device(stack, costs)
        assert tuned(device, costs, 1, 0.001, lambda: 0.5).decode_s == 0
        assert json.loads(Path(device.env[DEVICE_ENV]).read_text())["decode_s"] == 0
