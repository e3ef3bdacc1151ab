from __future__ import annotations

import pytest

from kvflow_sdk.distance import Frontier, steps_to_execution
from kvflow_server.bench.sdk import measure, measure_gone, report, teams


def test_the_teams_follow_each_other() -> None:
    steps = steps_to_execution(teams(14), Frontier(started=False))
    assert steps["planner-0"] == 1
    assert steps["worker4-0"] == 2
    assert steps["writer-0"] == 3
    assert steps["reviewer-0"] == 4
    assert steps["planner-1"] == 5
    assert len(steps) == 14


def test_every_call_is_timed_and_tagged_and_no_run_has_a_thread() -> None:
    result = measure(9, runs=2)
    assert result.tagged.n == result.plain.n == result.pairs.n == 18
    assert result.overhead == result.tagged.median - result.plain.median
    assert result.plain.min > 0
    assert result.header_bytes > 100
    assert result.threads_of_runs == 0
    assert result.sent > 0


def test_calls_to_a_server_that_is_gone_fail_alike() -> None:
    gone = measure_gone(9, runs=2)
    assert gone.tagged.n == gone.plain.n == gone.pairs.n == 18
    assert gone.overhead == gone.tagged.median - gone.plain.median
    assert gone.errors == ("APIConnectionError: Connection error.",)


def test_the_report_names_a_figure_per_size() -> None:
    result, gone = measure(9, runs=1), measure_gone(9, runs=1)
    found = report([result], gone)
    assert found["gone_overhead_ms"] == gone.overhead
    assert found["call_overhead_ms_9"] == result.overhead
    assert found["results"][0]["agents"] == 9


def test_nothing_to_measure_is_refused() -> None:
    with pytest.raises(ValueError, match="at least"):
        measure(1, runs=1)
    with pytest.raises(ValueError, match="at least"):
        measure_gone(9, runs=0)
