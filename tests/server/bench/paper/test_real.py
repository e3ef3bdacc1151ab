"""The way of a GPU, run on what there is: the same servers, flags and turns.

Without a GPU `kvflow serve` takes the emulated accelerator by itself; nobody asks for it.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kvflow_server.bench.paper import fig5, fig6, real, real_crowds
from kvflow_server.bench.paper.real_model import model_dims, shape_only
from kvflow_server.bench.paper.report import build_report
from kvflow_server.bench.paper.report6 import build_report6
from kvflow_server.bench.paper.scale import DIMS, Servers
from kvflow_server.bench.paper.testbeds import (
    CROWDED,
    TESTBEDS,
    Crowd,
    Mix,
    Model,
    Paper,
)
from kvflow_server.bench.report import make_console
from kvflow_server.bench.systems import SYSTEMS, server_args

SMALL = Model(
    name="small",
    layers=2,
    hidden=128,
    body_parameters=4e5,
    head_parameters=5e5,
    kv_bytes=1024,
    heads=4,
    kv_heads=2,
    intermediate=256,
    vocab=4096,
)
"""Its vocabulary is larger than the tokenizer's, as on a GPU."""
PRINTED = Paper(1.0, 1.0)


@pytest.mark.parametrize("name", TESTBEDS)
def test_the_shape_is_that_of_the_testbeds_model(name: str) -> None:
    model = TESTBEDS[name].model
    dims = model_dims(model)
    head = dims.hidden // dims.heads
    attention = 2 * dims.hidden * head * (dims.heads + dims.kv_heads)
    layer = attention + 3 * dims.hidden * dims.intermediate
    assert dims.layers * layer == pytest.approx(model.body_parameters, rel=0.01)
    assert dims.vocab * dims.hidden == pytest.approx(model.head_parameters, rel=0.01)
    assert dims.kv_bytes_per_token == 2 * model.kv_bytes, "counted in float32"


def test_a_shape_has_no_weights() -> None:
    files = {path.name: path for path in shape_only(model_dims(SMALL)).iterdir()}
    assert not [name for name in files if "safetensors" in name]
    config = json.loads(files["config.json"].read_text())
    assert config["num_key_value_heads"] == 2
    assert config["dtype"] == "bfloat16"


def test_only_an_emulated_bus_is_asked_for_by_its_rate() -> None:
    for rate in (None, 1.0):
        sizes = Servers(2304, 9000, DIMS, pcie_gbps=rate)
        args = server_args(SYSTEMS["kvflow"], sizes, "model")
        assert ("--emulated" in args) is (rate is not None)
        assert ("--emulated-pcie-gbps" in args) is (rate is not None)


def test_nothing_is_made_smaller() -> None:
    mix = Mix(8192, 1024, 1024)
    assert real.FULL.small(mix) == mix
    for crowded in CROWDED.values():
        for crowd, paper in crowded.fig6.items():
            one = fig6.CrowdRun(crowded, crowd, paper, real_crowds.QUICK)
            assert (one.small, one.concurrency) == (crowd.mix, crowd.concurrency)
            assert one.servers().pcie_gbps is None
            assert one.servers().pool_tokens == crowded.testbed.pool_tokens


def test_the_last_come_first_in_the_next_turn() -> None:
    assert real.in_turn("abc", 0) == ["a", "b", "c"]
    assert real.in_turn("abc", 1) == ["c", "b", "a"]


@pytest.mark.full
@pytest.mark.timeout(900)  # eight servers start one after the other
def test_a_small_figure_5_one_server_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mix = Mix(64, 8, 8)
    small = replace(TESTBEDS["a10g"], model=SMALL, pool_tokens=400, fig5={mix: PRINTED})
    monkeypatch.setitem(fig5.TESTBEDS, "a10g", small)
    effort = replace(real.QUICK, runs=(2, 2, 2))
    kept: list[int] = []
    results = real.measure(
        effort, make_console(), ("a10g",), keep=lambda done: kept.append(len(done))
    )
    report = build_report(results, effort, hardware="what there is")
    assert kept == [1, 1]
    assert not report["emulated"]
    assert "what there is" in report["note"]
    found = report["mixes"]["a10g"][str(mix)]
    assert {len(runs) for runs in found["runs"].values()} == {2}
    assert found["tokens"]["recompute"]["recomputed"] > 500
    assert found["tokens"]["ideal"]["recomputed"] < 100
    assert found["outputs_identical"] is None
    assert found["counters"]["kvflow"]["prefetch_used_tokens"] > 0
    assert found["counters"]["ideal"] == {}


@pytest.mark.full
@pytest.mark.timeout(900)  # six servers start one after the other
def test_a_small_crowd_one_server_at_a_time() -> None:
    crowd = Crowd(Mix(64, 8, 8), 3)
    small = replace(TESTBEDS["a10g"], model=SMALL, pool_tokens=800)
    crowded = replace(CROWDED["h100"], testbed=small, fig6={crowd: PRINTED})
    run = fig6.CrowdRun(crowded, crowd, PRINTED, real_crowds.QUICK)
    systems = ("ideal", "recompute", "kvflow")
    with fig6.progress_bar(make_console()) as progress:
        results = list(real_crowds.run_crowds([run], progress, systems))
    report = build_report6(results, real_crowds.QUICK, hardware="what there is")
    found = report["crowds"]["a10g"][str(crowd)]
    assert found["concurrency"] == 3
    assert {name: len(own) for name, own in found["blocks"].items()} == dict.fromkeys(
        systems, 2
    )
    assert found["latency"]["kvflow"]["n"] == 6
    assert found["tokens"]["kvflow"]["device"] > found["tokens"]["recompute"]["device"]
