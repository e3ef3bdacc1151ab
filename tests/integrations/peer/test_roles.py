"""Prompts of the members, and how their words are understood."""

from __future__ import annotations

import pytest

import kvflow_sdk as kvflow
from kvflow_integrations.peer import PEER, Review, Role, Task
from kvflow_integrations.peer.roles import read_plan, read_review


def test_the_fixed_part_ends_inside_the_user_message() -> None:
    role = Role("You plan. ", "Question: {question}", system="Be brief.")
    prompt = role.prompt(Task("why?"))
    assert prompt.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "You plan. Question: why?"},
    ]
    assert prompt.fixed == kvflow.FixedMark(message=1, chars=len("You plan. "))


def test_a_request_is_filled_in_with_everything_known() -> None:
    role = Role("", "{plan}|{findings}|{draft}|{advice}|{round}")
    task = Task("q", plan=("a", "b"), findings=("c",), draft="{d}", advice="e")
    assert role.prompt(task).messages[0]["content"] == "a\nb|c|{d}|e|1"


def test_a_field_that_does_not_exist_is_refused_where_it_is_written() -> None:
    with pytest.raises(ValueError, match=r"\{topic\}.*question"):
        Role("", "{topic}")


def test_every_call_of_the_model_has_its_agent_and_its_mark() -> None:
    calls: list[tuple[kvflow.Call | None, kvflow.Prompt]] = []

    def llm(prompt: kvflow.Prompt) -> str:
        calls.append((kvflow.current(), prompt))
        return "1. one\n2. two"

    role = Role("Instructions.", " {question}")
    PEER(role, role, role, role, llm=llm, threshold=1).run("why?")
    assert [call and call.agent for call, _ in calls] == [
        "planner",
        "executor",
        "executor",
        "expresser",
        "reviewer",
    ]
    assert all(call and call.fixed == prompt.fixed for call, prompt in calls)


async def test_an_async_model_is_called_with_its_mark() -> None:
    marks: list[kvflow.FixedMark | None] = []

    async def llm(prompt: kvflow.Prompt) -> str:
        call = kvflow.current()
        assert call is not None
        marks.append(call.fixed)
        return "said"

    assert (await PEER(expresser=Role("Write."), llm=llm).arun("why?")).text == "said"
    assert marks == [kvflow.FixedMark(message=0, chars=len("Write."))]


@pytest.mark.parametrize(
    ("said", "plan"),
    [
        ("1. one\n2) two\n\n- three", ("one", "two", "three")),
        ("  (1) one\n* two", ("one", "two")),
        ("2024 was good", ("2024 was good",)),
        (["one", " two "], ("one", "two")),
        ("", ()),
    ],
)
def test_a_plan_is_read_from_lines_and_lists(
    said: object, plan: tuple[str, ...]
) -> None:
    assert read_plan(said, 10) == plan


@pytest.mark.parametrize(
    ("said", "score"),
    [
        ("Score: 55. Name 2 figures.", 55),
        ("In 2024, I give 70", 70),
        ("score of the text: 80/100", 80),
        ("Score: 400", 0),
        ("Good.", 0),
        (85, 85),
        (Review(3), 3),
    ],
)
def test_a_score_is_read_from_words_and_numbers(said: object, score: int) -> None:
    assert read_review(said).score == score


def test_advice_is_the_whole_review() -> None:
    assert read_review(" Score: 55. Name the year. ").advice == (
        "Score: 55. Name the year."
    )
