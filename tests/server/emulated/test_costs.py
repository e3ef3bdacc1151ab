"""Machines: what they take, and what is wrong with a bad description of one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvflow_server.bench.paper.testbeds import TESTBEDS
from kvflow_server.emulated.costs import Costs, load_costs
from kvflow_server.sim.profiles import PROFILES


@pytest.mark.parametrize("testbed", TESTBEDS.values(), ids=str)
@pytest.mark.parametrize("tokens", [4096, 8192])
def test_a_profile_takes_what_its_testbed_takes(testbed, tokens: int) -> None:  # type: ignore[no-untyped-def]
    costs = testbed.costs
    assert costs.prefill_seconds([(0, tokens)]) == pytest.approx(
        testbed.prefill_s(tokens)
    )
    copy = costs.copy_seconds(tokens) - costs.bus_latency_s
    assert copy == pytest.approx(testbed.load_s(tokens))


def test_the_papers_second_figure_is_met() -> None:
    costs = PROFILES["h100-llama3-8b"].costs
    assert costs.prefill_seconds([(0, 4096)]) == pytest.approx(0.0643, rel=0.01)
    assert costs.prefill_seconds([(0, 128)]) == pytest.approx(0.0130, rel=0.01)
    assert costs.copy_seconds(4096) == pytest.approx(0.00939, rel=0.05)
    assert costs.copy_seconds(128) == pytest.approx(0.00046, rel=0.05)


def test_a_small_batch_takes_one_pass_over_the_weights() -> None:
    costs = PROFILES["a10g"].costs
    assert costs.prefill_seconds([(4096, 1)]) == costs.prefill_least_s


def _written(path: Path, **changes: object) -> Path:
    values = PROFILES["a10g"].costs.to_dict() | changes
    path.write_text(json.dumps({k: v for k, v in values.items() if v is not None}))
    return path


def test_a_machine_is_read_back_from_json(tmp_path: Path) -> None:
    assert load_costs(_written(tmp_path / "m.json")) == PROFILES["a10g"].costs


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"layers": 0}, "layers: above 0, not 0"),
        ({"decode_s": -1.0}, "decode_s: at least 0"),
        ({"speed": 3}, "an object with some of bus_bytes_per_s"),
        ({"kv_bytes": None}, "kv_bytes"),
    ],
)
def test_what_is_wrong_with_a_machine_is_said(
    tmp_path: Path, changes: dict[str, object], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        load_costs(_written(tmp_path / "m.json", **changes))


def test_an_unknown_cost_is_refused() -> None:
    costs: Costs = PROFILES["a10g"].costs
    with pytest.raises(ValueError, match="'bus' is no cost, use"):
        costs.changed(bus=3)
