from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from kvflow_server.bench.admission import (
    FIXED_TOKENS,
    MixResult,
    build_report,
    mixes,
    show,
)
from kvflow_server.bench.report import write_json
from kvflow_server.bench.results import Call
from kvflow_server.emulated.tiny import TinyDims


def call(seconds: float, output: int = 7) -> Call:
    return Call(
        agent="a",
        output=(output,),
        logprobs=(-0.5,),
        prompt=100,
        device=0,
        host=90,
        seconds=seconds,
    )


CHOSEN = mixes(15, 0.1, TinyDims(), 0)


def result(*ours: Call, stock: tuple[float, ...] = (2.0, 4.0)) -> MixResult:
    return MixResult(CHOSEN[0], tuple(map(call, stock)), ours)


def test_every_mix_asks_for_the_same_pool_and_misses_it_every_time() -> None:
    assert {settings.pool_tokens for settings in CHOSEN} == {int(0.47 * FIXED_TOKENS)}
    for settings in CHOSEN:
        assert settings.agents * settings.fixed == FIXED_TOKENS
        assert settings.runs * settings.agents >= 15
        room = settings.pool_tokens - settings.call_tokens
        assert room < (settings.agents - 1) * settings.fixed, "a prompt could stay"


def test_there_are_mixes_with_long_answers() -> None:
    assert sum(settings.output > settings.dynamic for settings in CHOSEN) == 2


def test_one_mix_can_be_chosen_by_its_name() -> None:
    (one,) = mixes(15, 0.1, TinyDims(), 0, "512/64/128")
    assert (one.fixed, one.dynamic, one.output) == (512, 64, 128)


def test_a_mix_that_is_none_is_refused_with_those_that_are() -> None:
    with pytest.raises(ValueError, match=r"--mix: one of 1024/32/16, .*, not 7"):
        mixes(15, 0.1, TinyDims(), 0, "7")


def test_ratios_are_taken_pair_by_pair() -> None:
    assert result(call(1.0), call(6.0)).ratio.median == 1.0
    assert result(call(1.0), call(6.0)).ratio.max == 1.5


def test_one_other_token_makes_the_outputs_differ() -> None:
    assert result(call(1.0), call(1.0)).outputs_identical
    assert not result(call(1.0), call(1.0, output=8)).outputs_identical


def test_the_json_has_the_worst_mix_and_every_one_of_them(tmp_path: Path) -> None:
    results = [result(call(2.0), call(4.0)), result(call(2.2), call(4.4))]
    write_json(build_report(results), tmp_path / "admission.json")
    report = json.loads((tmp_path / "admission.json").read_text())
    assert report["ratio"]["worst_mix"] == pytest.approx(1.1)
    assert [mix["ratio"]["median"] for mix in report["mixes"]] == [
        1.0,
        pytest.approx(1.1),
    ]
    assert report["mixes"][0]["systems"]["hicache"]["host_tokens"] == 90
    assert report["outputs_identical"] is True


def test_the_table_names_mixes_and_says_that_it_is_emulated() -> None:
    console = Console(record=True, width=120)
    show(console, [result(call(2.0), call(4.0))])
    text = console.export_text()
    for word in ("1024/32/16", "1.000", "identical", "EMULATED"):
        assert word in text


def test_no_pairs_are_refused_by_their_option() -> None:
    with pytest.raises(ValueError, match="--pairs"):
        mixes(0, 0.1, TinyDims(), 0)
