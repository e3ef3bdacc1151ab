"""Beginning and end of runs: states that are saved, errors, cancellation, undo."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import BaseGroupChat, RoundRobinGroupChat
from autogen_core import CancellationToken, SingleThreadedAgentRuntime

import kvflow_sdk as kvflow
from kvflow_integrations import autogen as integration
from kvflow_integrations.autogen import attachment
from kvflow_sdk.context import current

from .conftest import Recorder
from .test_teams import model


def first_steps(recorder: Recorder, run: int) -> dict[str, int] | None:
    wanted = recorder.client.runs[run].id
    return next(u.steps for u in recorder.client.updates if u.run == wanted)


async def test_a_saved_state_goes_on_in_another_team(recorder: Recorder) -> None:
    def team() -> Any:
        return recorder.flow("a-b a-c b-x b-d c-d d-e", max_turns=2)

    before = recorder.wrap(team())
    await before.run(task="Go.")
    state = await before.save_state()
    after = recorder.wrap(team())
    await after.load_state(state)
    recorder.seen.clear()
    await after.run()
    assert first_steps(recorder, 1) == {"x": 1, "d": 1, "e": 2}
    assert {agent for agent, _ in recorder.seen[:2]} == {"x", "d"}


async def test_a_barrier_remembers_over_a_saved_state_what_it_received(
    recorder: Recorder,
) -> None:
    def team() -> Any:
        # d waits for b and for y, which runs one step later.
        return recorder.flow("a-b a-x x-y b-d y-d d-e", max_turns=2)

    before = recorder.wrap(team())
    await before.run(task="Go.")
    after = recorder.wrap(team())
    await after.load_state(await before.save_state())
    recorder.seen.clear()
    await after.run()
    assert recorder.seen == [("y", {"y": 0, "d": 1, "e": 2}), ("d", {"d": 0, "e": 1})]


async def test_a_state_of_a_round_robin_team_says_whose_turn_it_is(
    recorder: Recorder,
) -> None:
    def team() -> RoundRobinGroupChat:
        return RoundRobinGroupChat([recorder.agent(n) for n in "abc"], max_turns=1)

    before, after = recorder.wrap(team()), recorder.wrap(team())
    await before.run(task="Go.")
    await after.load_state(await before.save_state())
    await after.run()
    assert first_steps(recorder, 1) == {"b": 1, "c": 2, "a": 3}


async def test_an_error_ends_the_run_and_comes_out(recorder: Recorder) -> None:
    async def fail() -> None:
        raise ValueError("no good")

    flow = recorder.flow("a-b b-c", actions={"b": fail})
    tracked = recorder.wrap(flow)
    with pytest.raises(RuntimeError, match="ValueError: no good"):
        await tracked.run(task="Go.")
    assert recorder.client.runs[0].finished
    assert recorder.client.updates[-1].final
    assert recorder.errors == {}


async def test_cancelling_by_token_ends_the_run(recorder: Recorder) -> None:
    token, started, go = CancellationToken(), asyncio.Event(), asyncio.Event()

    async def block() -> None:
        started.set()
        await asyncio.wait_for(go.wait(), 20)

    tracked = recorder.wrap(recorder.flow("a-b", actions={"a": block}))
    task = asyncio.ensure_future(tracked.run(task="Go.", cancellation_token=token))
    await asyncio.wait_for(started.wait(), 20)
    token.cancel()
    # AutoGen waits for the agents that are at work, wrapped or not.
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert recorder.client.runs[0].finished


async def test_an_abandoned_stream_ends_the_run(recorder: Recorder) -> None:
    tracked = recorder.wrap(recorder.flow("a-b"))
    stream = tracked.run_stream(task="Go.")
    await anext(stream)
    assert current() is None
    await stream.aclose()
    assert recorder.client.runs[0].finished
    assert not tracked._is_running


async def test_a_team_that_runs_already_refuses_as_ever(recorder: Recorder) -> None:
    started, go = asyncio.Event(), asyncio.Event()

    async def block() -> None:
        started.set()
        await asyncio.wait_for(go.wait(), 20)

    tracked = recorder.wrap(recorder.flow("a-b", actions={"a": block}))
    task = asyncio.ensure_future(tracked.run(task="Go."))
    await asyncio.wait_for(started.wait(), 20)
    with pytest.raises(ValueError, match="already running"):
        await tracked.run(task="Go.")
    go.set()
    await task
    assert [agent for agent, _ in recorder.seen] == ["a", "b"]
    assert recorder.seen[1] == ("b", {"b": 0})


async def test_a_runtime_of_the_users_own_is_followed_too(recorder: Recorder) -> None:
    runtime = SingleThreadedAgentRuntime()
    runtime.start()  # before anything of KVFlow is current
    team = RoundRobinGroupChat(
        [recorder.agent("a"), recorder.agent("b")], max_turns=2, runtime=runtime
    )
    await recorder.run(team)
    await runtime.stop()
    assert recorder.seen == [("a", {"a": 0, "b": 1}), ("b", {"b": 0, "a": 1})]


async def test_teams_side_by_side_do_not_mix(recorder: Recorder) -> None:
    teams = [
        recorder.wrap(recorder.flow("a-b b-c"), name=f"n{number}")
        for number in range(3)
    ]
    await asyncio.gather(*(team.run(task="Go.") for team in teams))
    for number in range(3):
        mine = [
            moment for moment in recorder.seen if moment[0].startswith(f"n{number}")
        ]
        assert mine == [
            (f"n{number}|a", {f"n{number}|a": 0, f"n{number}|b": 1, f"n{number}|c": 2}),
            (f"n{number}|b", {f"n{number}|b": 0, f"n{number}|c": 1}),
            (f"n{number}|c", {f"n{number}|c": 0}),
        ]


async def test_unwrapping_leaves_everything_as_it_was(recorder: Recorder) -> None:
    team = RoundRobinGroupChat(
        [AssistantAgent("a", model(recorder, "fine")), recorder.agent("b")], max_turns=2
    )
    objects = [team, *team._participants, team._participants[0]._model_client]
    was = [(type(each), dict(vars(each))) for each in objects]
    hooked = _hooked()
    tracked = kvflow.wrap(team, client=recorder.client)
    assert tracked is not team
    assert isinstance(tracked, RoundRobinGroupChat)
    assert kvflow.wrap(tracked) is tracked
    assert _hooked() != hooked
    assert integration.unwrap(tracked) is team
    assert integration.unwrap(tracked) is team
    assert [(type(each), dict(vars(each))) for each in objects] == was
    assert _hooked() == hooked


async def test_a_run_of_the_wrapped_team_is_one_of_the_original(
    recorder: Recorder,
) -> None:
    team = RoundRobinGroupChat([recorder.agent("a"), recorder.agent("b")], max_turns=1)
    tracked = recorder.wrap(team)
    await tracked.run(task="Go.")
    assert vars(tracked) is vars(team)
    assert "_kvflow" not in vars(team)
    integration.unwrap(tracked)
    # The original goes on where the wrapped one stopped, with nobody noting.
    with pytest.raises(RuntimeError, match="no agent is current"):
        await team.run()
    assert len(recorder.client.runs) == 1


async def test_a_copy_of_a_wrapped_team_is_dumped_as_the_original(
    recorder: Recorder,
) -> None:
    team = RoundRobinGroupChat([AssistantAgent("a", model(recorder, "fine"))])
    tracked = recorder.wrap(team)
    assert tracked.dump_component() == team.dump_component()
    assert copy.copy(tracked).name == team.name


async def test_kvflow_off_leaves_the_team_alone(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    off = kvflow.Client(config=kvflow.Config(disable=True))
    tracked = kvflow.wrap(
        RoundRobinGroupChat(
            [AssistantAgent("a", model(Silent(), "fine"))], max_turns=1
        ),
        client=off,
    )
    result = await tracked.run(task="Go.")
    assert result.messages[-1].to_text() == "fine"
    integration.unwrap(tracked)


class Silent(Recorder):
    def note(self) -> None:
        assert current() is None


def test_other_objects_are_refused() -> None:
    with pytest.raises(kvflow.UnsupportedError, match="AgentChat team or agent"):
        integration.wrap(object())


def _hooked() -> list[Any]:
    import openai

    return [
        vars(openai.AsyncOpenAI)["_prepare_options"],
        *(vars(BaseGroupChat).get(name) for name in ("run_stream",)),
        *(
            getattr(owner, name)
            for owner, name in (
                (attachment.BaseGroupChatManager, "publish_message"),
                (attachment.BaseGroupChatManager, "on_message_impl"),
            )
        ),
    ]
