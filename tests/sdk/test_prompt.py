"""Marks: they say where the fixed part ends and never touch the text."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvflow_sdk as kvflow
from kvflow_sdk.errors import WireError


@given(st.text(), st.lists(st.text(), max_size=3))
def test_split_joins_the_text_and_marks_where_the_fixed_part_ends(
    fixed: str, rest: list[str]
) -> None:
    prompt = kvflow.split(fixed, *rest)
    (message,) = prompt.messages
    assert message == {"role": "user", "content": fixed + "".join(rest)}
    assert prompt.fixed.message == 0
    assert message["content"][: prompt.fixed.chars] == fixed


def test_split_counts_the_messages_in_front() -> None:
    system = {"role": "system", "content": "You plan."}
    prompt = kvflow.split("Plan for: ", "lunch", before=[system])
    assert [m["role"] for m in prompt.messages] == ["system", "user"]
    assert prompt.fixed == kvflow.FixedMark(message=1, chars=10)


def test_split_offsets_are_code_points() -> None:
    assert kvflow.split("规划🧭", "x").fixed.chars == 3


def test_split_leaves_the_messages_in_front_as_they_were() -> None:
    system = {"role": "system", "content": "You plan."}
    kvflow.split("a", before=[system]).messages[0]["content"] = "changed"
    assert system["content"] == "You plan."


def test_mark_holds_for_the_calls_inside_the_block() -> None:
    mark = kvflow.FixedMark(message=0, chars=5)
    with kvflow.step("planner") as call:
        with kvflow.fixed(mark):
            inside = kvflow.current()
        assert kvflow.current() == call
    assert inside is not None
    assert inside.fixed == mark
    assert inside.agent == "planner"


def test_mark_works_with_async_with() -> None:
    mark = kvflow.FixedMark(tokens=64)

    async def main() -> kvflow.Call | None:
        async with kvflow.step("planner"), kvflow.fixed(mark):
            return kvflow.current()

    call = asyncio.run(main())
    assert call is not None
    assert call.fixed == mark


def test_mark_can_be_taken_back() -> None:
    mark = kvflow.FixedMark(message=0, chars=5)
    with kvflow.step("planner", fixed=mark), kvflow.fixed(None):
        call = kvflow.current()
    assert call is not None
    assert call.fixed is None


def test_mark_outside_of_an_agent_does_nothing() -> None:
    with kvflow.fixed(kvflow.FixedMark(message=0, chars=5)):
        assert kvflow.current() is None


@pytest.mark.parametrize(
    "mark",
    [
        kvflow.FixedMark(),
        kvflow.FixedMark(message=0),
        kvflow.FixedMark(message=-1, chars=3),
        kvflow.FixedMark(message=0, chars=3, tokens=3),
    ],
)
def test_mark_that_says_nothing_clear_is_refused(mark: kvflow.FixedMark) -> None:
    with pytest.raises(WireError, match="fixed"):
        kvflow.fixed(mark)
