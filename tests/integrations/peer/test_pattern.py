"""Who is called, in which order, with what; and the steps at each moment."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

import kvflow_sdk as kvflow
from kvflow_integrations.peer import PEER, Answer, Progress, Role, Task

TeamOf = Callable[..., Any]


@pytest.mark.parametrize(
    ("jump_step", "order"),
    [
        ("planner", "PEEXRPEEXR"),
        ("executor", "PEEXREEXR"),
        ("expresser", "PEEXRXR"),
        ("reviewer", "PEEXRR"),
    ],
)
def test_a_bad_text_goes_back_to_the_jump_step(
    team_of: TeamOf, jump_step: str, order: str
) -> None:
    team = team_of(scores=[10, 90], jump_step=jump_step)
    answer = team.peer.run("why?")
    assert team.order == order
    assert (answer.score, answer.rounds) == (90, 2)


def test_a_good_text_ends_the_run(team_of: TeamOf) -> None:
    team = team_of(scores=[60])
    assert team.peer.run("why?") == Answer(
        text="text 1",
        score=60,
        rounds=1,
        plan=("first", "second"),
        findings=("first settled", "second settled"),
    )


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_retries_are_used_up(team_of: TeamOf, retries: int) -> None:
    team = team_of(scores=[0] * 5, retries=retries)
    answer = team.peer.run("why?")
    assert (answer.rounds, answer.score) == (retries + 1, 0)
    assert team.order == "PEEXR" + "XR" * retries


def test_threshold_decides_what_is_good(team_of: TeamOf) -> None:
    assert team_of(scores=[79, 80], threshold=80).peer.run("why?").rounds == 2


def test_members_learn_what_the_others_said(team_of: TeamOf) -> None:
    team = team_of(scores=[10, 90])
    team.peer.run("why?")
    last = team.tasks[-1]
    assert last.findings == ("first settled", "second settled")
    assert (last.draft, last.advice, last.round) == ("text 2", "advice 1", 2)


def test_without_a_reviewer_one_round_is_enough() -> None:
    peer = PEER(lambda t: ["a"], lambda t: t.subtask, lambda t: t.findings[0])
    assert peer.run("why?") == Answer("a", None, 1, ("a",), ("a",))


def test_without_a_planner_the_question_is_executed() -> None:
    peer = PEER(executor=lambda task: task.subtask.upper())
    assert peer.run("why?").text == "WHY?"


def test_a_plan_is_cut_to_the_limit(team_of: TeamOf) -> None:
    team = team_of(max_subtasks=1)
    assert team.peer.run("why?").plan == ("first",)
    assert team.order == "PEXR"


def test_executors_run_at_the_same_time() -> None:
    both = threading.Barrier(2, timeout=20)
    peer = PEER(lambda t: ["a", "b"], lambda t: f"{both.wait() >= 0} {t.subtask}")
    assert peer.run("why?").findings == ("True a", "True b")


def test_workers_bound_how_many_run_at_the_same_time() -> None:
    lock, running, most = threading.Lock(), 0, 0

    def execute(task: Task) -> str:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        with lock:
            running -= 1
        return ""

    PEER(lambda t: "abcdef", execute, workers=1).run("why?")
    assert most == 1


def test_steps_while_each_member_executes(team_of: TeamOf) -> None:
    team = team_of()
    team.peer.run("why?")
    assert team.steps == {
        "planner": {"planner": 0, "executor": 1, "expresser": 2, "reviewer": 3},
        "executor": {"executor": 0, "expresser": 1, "reviewer": 2},
        "expresser": {"expresser": 0, "reviewer": 1},
        "reviewer": {"reviewer": 0, "expresser": 1},
    }


def test_steps_lead_back_to_the_jump_step(team_of: TeamOf) -> None:
    team = team_of(jump_step="planner")
    team.peer.run("why?")
    assert team.steps["executor"] == {
        "executor": 0,
        "expresser": 1,
        "reviewer": 2,
        "planner": 3,
    }
    assert team.steps["reviewer"] == {
        "reviewer": 0,
        "planner": 1,
        "executor": 2,
        "expresser": 3,
    }


def test_without_retries_nothing_leads_back(team_of: TeamOf) -> None:
    team = team_of(retries=0)
    team.peer.run("why?")
    assert team.steps["reviewer"] == {"reviewer": 0}


def test_executor_executes_until_its_last_sub_task_is_done() -> None:
    first_is_over = threading.Event()
    seen: list[dict[str, int] | None] = []

    def execute(task: Task) -> str:
        if task.subtask == "b":
            assert first_is_over.wait(20)
            call = kvflow.current()
            assert call is not None
            seen.append(call.run.snapshot().steps)
        return ""

    def plan(task: Task) -> list[str]:
        return ["a", "b"]

    peer = PEER(plan, execute, lambda task: "")
    original = peer._ask

    def ask(role: str, task: Task) -> object:
        try:
            return original(role, task)
        finally:
            if task.subtask == "a":
                first_is_over.set()

    peer._ask = ask  # type: ignore[method-assign]
    peer.run("why?")
    assert seen == [{"executor": 0, "expresser": 1}]


def test_all_calls_of_one_question_are_one_run(team_of: TeamOf) -> None:
    team = team_of(scores=[10, 90])
    team.peer.run("why?")
    runs = {call.run for call in team.calls if call is not None}
    assert len(runs) == 1
    assert runs.pop().finished


def test_two_questions_at_once_are_two_runs(team_of: TeamOf) -> None:
    team = team_of(scores=[90, 90])

    async def both() -> list[Answer]:
        return await asyncio.gather(team.peer.arun("a"), team.peer.arun("b"))

    asyncio.run(both())
    runs = {call.run.id for call in team.calls if call is not None}
    assert len(runs) == 2
    for name, steps in team.seen:
        assert steps[name] == 0
        assert list(steps.values()).count(0) == 1


def test_names_are_prefixed_when_a_program_has_several_teams(team_of: TeamOf) -> None:
    team = team_of(name="bonds")
    team.peer.run("why?")
    assert set(team.steps) == {f"bonds|{role}" for role in team.peer.members}


def test_error_of_a_member_comes_through_and_ends_the_run() -> None:
    calls = []

    def execute(task: Task) -> str:
        calls.append(kvflow.current())
        raise KeyError(task.subtask)

    with pytest.raises(KeyError, match="'a'"):
        PEER(lambda task: ["a", "b"], execute).run("why?")
    assert calls[0] is not None
    assert calls[0].run.finished


def test_stream_gives_what_each_member_said_as_it_comes(team_of: TeamOf) -> None:
    team = team_of()
    stream = team.peer.stream("why?")
    assert next(stream) == Progress("planner", (["first", "second"],), 1)
    assert team.order == "P"
    assert kvflow.current() is None
    *_, answer = stream
    assert isinstance(answer, Answer)


def test_stream_that_is_dropped_ends_its_run(team_of: TeamOf) -> None:
    team = team_of()
    stream = team.peer.stream("why?")
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert team.calls[0] is not None
    assert team.calls[0].run.finished


def test_async_members_run_at_the_same_time() -> None:
    async def main() -> Answer:
        both = asyncio.Barrier(2)

        async def execute(task: Task) -> str:
            await both.wait()
            call = kvflow.current()
            assert call is not None
            return f"{task.subtask} of {call.agent}"

        peer = PEER(lambda task: ["a", "b"], execute)
        return await peer.arun("why?")

    answer = asyncio.run(asyncio.wait_for(main(), 20))
    assert answer.findings == ("a of executor", "b of executor")


def test_async_run_that_is_cancelled_ends() -> None:
    calls: list[kvflow.Call | None] = []

    async def main() -> None:
        executing = asyncio.Event()

        async def execute(task: Task) -> str:
            calls.append(kvflow.current())
            executing.set()
            await asyncio.Event().wait()
            raise AssertionError

        task = asyncio.create_task(PEER(lambda t: ["a", "b"], execute).arun("why?"))
        await executing.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert calls[0] is not None
    assert calls[0].run.finished


def test_one_async_executor_that_fails_takes_the_others_along() -> None:
    ended = []

    async def execute(task: Task) -> str:
        if task.subtask == "b":
            raise KeyError("b")
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(task.subtask)
        return ""

    with pytest.raises(KeyError, match="b"):
        asyncio.run(PEER(lambda t: ["a", "b"], execute).arun("why?"))
    assert ended == ["a"]


def test_async_member_in_a_sync_run_says_what_to_use() -> None:
    async def plan(task: Task) -> str:
        return ""

    with pytest.raises(TypeError, match="arun"):
        PEER(plan).run("why?")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"planner": Role("plan")}, "llm"),
        ({}, "at least one"),
        ({"reviewer": len, "jump_step": "writer"}, "jump_step"),
        ({"planner": len, "workers": 0}, "workers"),
    ],
)
def test_a_team_that_cannot_work_is_refused(
    settings: dict[str, object], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        PEER(**settings)  # type: ignore[arg-type]


def test_with_kvflow_off_the_team_works_alike(team_of: TeamOf) -> None:
    off = kvflow.Client(config=kvflow.Config(disable=True))
    team = team_of(scores=[10, 90], client=off)
    assert team.peer.run("why?").text == "text 2"
    assert team.calls == [None] * 7
