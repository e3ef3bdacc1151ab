"""MagenticOneGroupChat: the orchestrator's calls, its stalls and its final answer."""

from __future__ import annotations

import json
from typing import Any

from autogen_agentchat.teams import MagenticOneGroupChat

from .conftest import Recorder
from .test_teams import before, model


def ledger(speaker: str, *, done: bool = False, progress: bool = True) -> str:
    def entry(answer: object) -> dict[str, Any]:
        return {"reason": "because", "answer": answer}

    return json.dumps(
        {
            "is_request_satisfied": entry(done),
            "is_progress_being_made": entry(progress),
            "is_in_loop": entry(False),
            "instruction_or_question": entry("go on"),
            "next_speaker": entry(speaker),
        }
    )


async def test_the_orchestrator_is_a_node_in_the_middle(recorder: Recorder) -> None:
    team = MagenticOneGroupChat(
        [recorder.agent("a"), recorder.agent("b")],
        model_client=model(
            recorder,
            *("the facts", "the plan", ledger("b"), ledger("a")),
            *(ledger("a", done=True), "the answer"),
        ),
    )
    center = "MagenticOneGroupChat"
    assert before(team) == {center: 1, "a": 2, "b": 2}
    await recorder.run(team)
    thinks = (center, {center: 0, "a": 1, "b": 1})
    assert recorder.seen == [
        *[thinks] * 3,
        ("b", {"b": 0, center: 1, "a": 2}),
        thinks,
        ("a", {"a": 0, center: 1, "b": 2}),
        *[thinks] * 2,
    ]


async def test_a_stall_makes_it_plan_again(recorder: Recorder) -> None:
    team = MagenticOneGroupChat(
        [recorder.agent("a")],
        model_client=model(
            recorder,
            *("the facts", "the plan", ledger("a", progress=False)),
            *("new facts", "a new plan", ledger("a", done=True), "the answer"),
        ),
        max_stalls=1,
    )
    await recorder.run(team)
    assert [agent for agent, _ in recorder.seen] == ["MagenticOneGroupChat"] * 7
