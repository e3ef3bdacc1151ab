"""Caps and rates, answered by the HTTP process with their number."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kvflow_sdk.wire import StepUpdate
from kvflow_server.policy.intake import Intake, IntakeLimits
from kvflow_server.policy.steps import StepLimits

LIMITS = StepLimits(
    clients=2, runs_per_client=2, agents_per_client=4, entries_per_client=6, lease_s=100
)


def update(run: str = "run", seq: int = 1, **fields: Any) -> StepUpdate:
    return StepUpdate(**{"client": "a", "run": run, "seq": seq, **fields})


def refusal(intake: Intake, *updates: StepUpdate, now: float = 0.0) -> Any:
    """Of one small message; None if all of it was accepted."""
    return intake.admit(updates, 10, now).refusal


def test_one_client_too_many_is_refused_with_the_number() -> None:
    intake = Intake(LIMITS)
    assert refusal(intake, update(client="a"), update(client="b")) is None
    refused = refusal(intake, update(client="c"))
    assert (refused.field, refused.retry_after_s) == ("client", 10)
    assert "2 clients" in refused.message


def test_a_client_that_is_silent_for_a_lease_makes_room() -> None:
    intake = Intake(LIMITS)
    refusal(intake, update(client="a"), update(client="b"), now=0.0)
    refusal(intake, update(client="b", seq=2), now=60.0)
    assert refusal(intake, update(client="c"), now=90.0) is not None
    assert refusal(intake, update(client="c"), now=120.0) is None


def test_one_run_too_many_is_refused_with_the_number() -> None:
    intake = Intake(LIMITS)
    refused = refusal(intake, update("1"), update("2"), update("3"))
    assert refused.field == "run"
    assert "2 live runs" in refused.message


def test_the_end_of_a_run_is_accepted_beside_a_run_that_is_one_too_many() -> None:
    intake = Intake(LIMITS)
    refusal(intake, update("1"), update("2"))
    late, end = update("3"), update("1", seq=2, final=True)
    admission = intake.admit([late, end], 10, 0.0)
    assert admission.accepted == [end]
    assert admission.refusal is not None
    assert refusal(intake, late) is None


def test_too_many_agents_are_refused_with_the_number() -> None:
    intake = Intake(LIMITS)
    crowd = {f"agent-{number}": 1 for number in range(5)}
    refused = refusal(intake, update(steps=crowd))
    assert refused.field == "steps"
    assert "4 agents" in refused.message


def test_too_many_entries_of_parallel_runs_are_refused_with_the_number() -> None:
    intake = Intake(LIMITS)
    team = {f"agent-{number}": 1 for number in range(4)}
    assert refusal(intake, update("1", steps=team)) is None
    refused = refusal(intake, update("2", steps=team))
    assert refused.field == "steps"
    assert "6 entries" in refused.message
    # The snapshot of a run replaces its last one and needs no room of its own.
    assert refusal(intake, update("1", seq=2, steps=team)) is None


def test_a_repeated_snapshot_is_accepted_whatever_the_caps_say() -> None:
    intake = Intake(LIMITS)
    refusal(intake, update("1"), update("2"))
    assert refusal(intake, update("1")) is None


def test_in_band_updates_count_too() -> None:
    intake = Intake(LIMITS)
    intake.note([update("1"), update("2")], 0.0)
    assert refusal(intake, update("3")).field == "run"


def test_a_client_over_its_rate_is_told_the_rate_and_when_to_come_back() -> None:
    intake = Intake(LIMITS, IntakeLimits(bytes_per_s=100, burst_bytes=1000))
    assert intake.admit([update()], 1500, 0.0).refusal is None
    refused = intake.admit([update(seq=2)], 10, 1.0)
    assert refused.accepted == []
    assert refused.refusal is not None
    assert "100 bytes" in refused.refusal.message
    assert refused.refusal.retry_after_s == 4
    assert intake.admit([update(seq=2)], 10, 5.1).refusal is None


def test_one_clients_rate_is_not_anothers() -> None:
    intake = Intake(LIMITS, IntakeLimits(bytes_per_s=100, burst_bytes=1000))
    intake.admit([update(client="a")], 2000, 0.0)
    assert refusal(intake, update(client="b")) is None


_MESSAGES = st.lists(
    st.builds(
        StepUpdate,
        client=st.sampled_from("abc"),
        run=st.sampled_from("rst"),
        seq=st.integers(0, 3),
        steps=st.none() | st.dictionaries(st.sampled_from("uvwxyz"), st.integers(0, 3)),
        final=st.booleans(),
    ),
    min_size=1,
    max_size=4,
)


@given(st.lists(st.tuples(_MESSAGES, st.floats(0, 60)), max_size=12))
def test_no_cap_is_ever_exceeded(
    messages: list[tuple[list[StepUpdate], float]],
) -> None:
    intake = Intake(LIMITS)
    now = 0.0
    for updates, pause in messages:
        now += pause
        admission = intake.admit(updates, 10, now)
        assert (admission.refusal is None) == (admission.accepted == updates)
        intake.table.check_integrity()
        clients = list(intake.table.clients())
        assert len(clients) <= LIMITS.clients
        for client in clients:
            runs = intake.table.runs(client)
            assert len(runs) <= LIMITS.runs_per_client
            named = [agent for steps in runs.values() for agent in steps]
            assert len(set(named)) <= LIMITS.agents_per_client
            assert len(named) <= LIMITS.entries_per_client
        assert intake._rates.keys() <= set(clients)
