from __future__ import annotations

import pytest

from kvflow_server.bench.results import (
    Call,
    Spread,
    Workflow,
    compare,
    largest_logprob_gap,
    outputs_identical,
    paired,
    summarise,
)


def workflow(
    seconds: float,
    *,
    output: tuple[int, ...] = (1, 2),
    logprobs: tuple[float, ...] = (-1.0, -2.0),
    host: int = 0,
) -> Workflow:
    call = Call(
        agent="a",
        output=output,
        logprobs=logprobs,
        prompt=100,
        device=60,
        host=host,
        seconds=seconds,
    )
    return Workflow(seconds, (call,))


def test_what_is_neither_on_device_nor_loaded_was_recomputed() -> None:
    (call,) = workflow(1, host=30).calls
    assert call.recomputed == 10


def test_spread_of_an_odd_sample() -> None:
    assert Spread.of([3, 1, 2, 5, 4]) == Spread(3, 2, 4, 1, 5, 5)


def test_spread_of_a_single_value() -> None:
    assert Spread.of([1.5]) == Spread(1.5, 1.5, 1.5, 1.5, 1.5, 1)


def test_ratios_are_taken_pair_by_pair() -> None:
    # The machine slows down by ten for the second pair; the ratio does not see it.
    results = {
        "hicache": [workflow(2), workflow(20), workflow(3)],
        "kvflow": [workflow(1), workflow(10), workflow(1)],
    }
    ratio = paired(results, "hicache", "kvflow")
    assert ratio.median == 2
    assert (ratio.min, ratio.max) == (2, 3)


def test_unpaired_runs_are_an_error() -> None:
    results = {"a": [workflow(1)], "b": [workflow(1), workflow(1)]}
    with pytest.raises(ValueError, match="zip"):
        paired(results, "a", "b")


def test_kvflow_over_ideal_is_above_one_when_kvflow_is_slower() -> None:
    results = {"ideal": [workflow(4)], "kvflow": [workflow(5)]}
    assert compare(results)["kvflow_over_ideal"].median == 1.25


def test_only_the_systems_that_ran_are_compared() -> None:
    results = {"hicache": [workflow(2)], "kvflow": [workflow(1)]}
    assert set(compare(results)) == {"kvflow_over_hicache"}


def test_one_other_token_makes_the_outputs_differ() -> None:
    same = {"a": [workflow(1)], "b": [workflow(2)]}
    assert outputs_identical(same)
    assert not outputs_identical(same | {"c": [workflow(1, output=(1, 3))]})


def test_the_largest_logprob_gap_is_found() -> None:
    results = {
        "a": [workflow(1)],
        "b": [workflow(1, logprobs=(-1.0, -2.25))],
        "c": [workflow(1, logprobs=(-1.125, -2.0))],
    }
    assert largest_logprob_gap(results) == 0.25


def test_a_single_system_has_no_gap() -> None:
    assert largest_logprob_gap({"a": [workflow(1)]}) == 0.0


def test_tokens_are_counted_per_workflow() -> None:
    summary = summarise([workflow(1, host=10), workflow(3, host=20)])
    assert summary["tokens"] == {"device": 60, "host": 15, "recomputed": 25}
    assert summary["workflow_s"]["mean"] == 2
    assert summary["workflow_s"]["runs"] == [1, 3]


def test_each_agent_is_reported_on_its_own() -> None:
    agents = summarise([workflow(1, host=10), workflow(3, host=20)])["agents"]
    assert agents == {"a": {"seconds": 2, "device": 60, "host": 15, "recomputed": 25}}
