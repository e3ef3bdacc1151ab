"""Python is warned of drift: once for each agent, in this process only."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest

import kvflow_sdk as kvflow
from kvflow_integrations.conformance.loopback import Loopback
from kvflow_sdk.drift.watch import CALLS, LOOKS, DriftWatch

HEAD = "You plan the work of a team of analysts. " * 12
Said = list[warnings.WarningMessage]


def body(system: str, user: str = "Go on.") -> dict[str, Any]:
    return {
        "messages": [
            {"role": "system", "content": system},
            {"role": "user", "content": user},
        ]
    }


def watched(*bodies: dict[str, Any], agent: str = "planner") -> Said:
    watch = DriftWatch()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for each in bodies:
            thread = watch.see(agent, each)
            if thread is not None:
                thread.join()
    return said


def test_a_time_at_the_head_is_warned_of_once_with_what_to_do() -> None:
    bodies = [body(f"It is 12:30:0{second}. {HEAD}") for second in range(6)]
    (said,) = watched(*bodies)
    assert said.category is kvflow.DriftWarning
    text = str(said.message)
    assert "'planner'" in text
    assert "timestamp" in text
    assert "12:30:01" in text
    assert "end of the prompt" in text


@pytest.mark.parametrize(
    "bodies",
    [
        [body(HEAD, f"question {n} " * 40) for n in range(6)],
        [body(HEAD)] * 6,
        [body(f"{n} short") for n in range(6)],
        [{"messages": []}, {}, {"input": "x"}],
    ],
    ids=["other questions", "the same", "short", "nothing"],
)
def test_a_prompt_that_stays_or_ends_differently_is_fine(
    bodies: list[dict[str, Any]],
) -> None:
    assert watched(*bodies) == []


def test_an_agent_is_looked_at_a_few_times_and_then_left_alone() -> None:
    watch = DriftWatch()
    other = [f"{number} {chr(97 + number) * 600}" for number in range(CALLS)]
    looks = [watch.see("a", body(text)) for text in other]
    assert sum(thread is not None for thread in looks) == LOOKS
    late = [watch.see("a", body(f"It is 12:30:0{n}. {HEAD}")) for n in range(3)]
    assert late == [None] * 3


def test_a_call_through_an_openai_client_is_looked_at(
    server: Loopback, wait_for_warning: Callable[[Said], None]
) -> None:
    ask = kvflow.OpenAI(base_url=f"{server.url}/v1", api_key="k")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for second in range(4):
            with kvflow.step("planner"):
                system = f"It is 12:30:0{second}. {HEAD}"
                ask.chat.completions.create(model="m", **body(system))
        wait_for_warning(said)
    assert [entry.category for entry in said] == [kvflow.DriftWarning]


@pytest.fixture
def wait_for_warning() -> Callable[[Said], None]:
    """Until the thread that looks has said something; the time limit is the bound."""

    def wait(said: Said) -> None:
        while not said:
            time.sleep(0.01)

    return wait
