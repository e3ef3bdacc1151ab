"""Agents in plain Python: which run they belong to, and how long they execute."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

import kvflow_sdk as kvflow
from kvflow_sdk.errors import WireError


def here() -> kvflow.Call:
    call = kvflow.current()
    assert call is not None
    return call


def executing(run: kvflow.Run) -> set[str]:
    steps = run.snapshot().steps or {}
    return {name for name, value in steps.items() if value == 0}


@kvflow.agent("planner")
def plan() -> kvflow.Call:
    return here()


@kvflow.agent("executor")
def execute() -> kvflow.Call:
    return here()


def test_agent_executes_while_its_function_runs() -> None:
    @kvflow.agent("planner")
    def work() -> set[str]:
        return executing(here().run)

    assert work() == {"planner"}
    assert kvflow.current() is None


def test_decorated_function_takes_and_returns_what_it_did() -> None:
    @kvflow.agent("adder")
    def add(a: int, *, b: int = 1) -> int:
        return a + b

    assert add(2, b=5) == 7


def test_decorated_method_gets_its_object() -> None:
    class Team:
        @kvflow.agent("planner")
        def plan(self) -> tuple[Team, str]:
            return self, here().agent

    team = Team()
    assert team.plan() == (team, "planner")


def test_exception_of_an_agent_comes_through_and_ends_it() -> None:
    runs = []

    @kvflow.agent("planner")
    def fail() -> None:
        runs.append(here().run)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail()
    assert runs[0].finished
    assert kvflow.current() is None


def test_outermost_agents_are_runs_of_their_own() -> None:
    first, second = plan().run, plan().run
    assert first.id != second.id
    assert first.finished
    assert second.finished


def test_agents_in_a_workflow_belong_to_its_run() -> None:
    with kvflow.workflow() as run:
        calls = [plan(), execute()]
        assert run is not None
        assert not run.finished
    assert [call.run for call in calls] == [run, run]
    assert run.finished


def test_workflow_with_a_graph_counts_the_steps() -> None:
    graph = kvflow.AgentStepGraph.sequence(["planner", "executor", "reviewer"])
    with kvflow.workflow(graph) as run:
        assert run is not None
        assert run.snapshot().steps == {"planner": 1, "executor": 2, "reviewer": 3}
        with kvflow.step("planner"):
            assert run.snapshot().steps == {"planner": 0, "executor": 1, "reviewer": 2}
        with kvflow.step("executor"):
            assert run.snapshot().steps == {"executor": 0, "reviewer": 1}


def test_nested_agents_are_both_executing() -> None:
    @kvflow.agent("boss")
    def boss() -> tuple[set[str], kvflow.Run, kvflow.Run]:
        with kvflow.step("worker") as call:
            assert call is not None
            return executing(call.run), call.run, kvflow.current().run

    names, mine, inner = boss()
    assert names == {"boss", "worker"}
    assert mine is inner


def test_outer_agent_goes_on_after_the_inner_one() -> None:
    with kvflow.step("boss") as outer:
        assert outer is not None
        with kvflow.step("worker"):
            pass
        assert kvflow.current() == outer
        assert executing(outer.run) == {"boss"}


def test_agent_twice_at_once_executes_until_both_end() -> None:
    with kvflow.workflow() as run:
        assert run is not None
        with kvflow.step("a"):
            with kvflow.step("a"):
                pass
            assert executing(run) == {"a"}
        assert executing(run) == set()


def test_parallel_async_agents_share_the_run() -> None:
    @kvflow.agent("worker")
    async def work() -> kvflow.Call:
        await asyncio.sleep(0)
        return here()

    async def main() -> tuple[kvflow.Run | None, list[kvflow.Call]]:
        async with kvflow.workflow() as run:
            return run, await asyncio.gather(work(), work(), work())

    run, calls = asyncio.run(main())
    assert [call.run for call in calls] == [run] * 3


def test_concurrent_workflows_stay_apart() -> None:
    async def one() -> tuple[kvflow.Run | None, kvflow.Run]:
        async with kvflow.workflow() as run:
            await asyncio.sleep(0)
            return run, plan().run

    async def main() -> list[tuple[kvflow.Run | None, kvflow.Run]]:
        return await asyncio.gather(one(), one())

    (first, mine), (second, yours) = asyncio.run(main())
    assert first is mine
    assert second is yours
    assert first is not second


def test_generator_agent_executes_until_it_is_exhausted() -> None:
    @kvflow.agent("writer")
    def write() -> Iterator[kvflow.Call]:
        yield here()
        yield here()

    with kvflow.workflow() as run:
        assert run is not None
        words = write()
        assert executing(run) == set()
        assert next(words).agent == "writer"
        assert kvflow.current() is None
        assert executing(run) == {"writer"}
        assert len(list(words)) == 1
        assert executing(run) == set()


def test_generator_agent_that_is_closed_early_ends() -> None:
    @kvflow.agent("writer")
    def write() -> Iterator[kvflow.Call]:
        while True:
            yield here()

    words = write()
    run = next(words).run
    assert executing(run) == {"writer"}
    words.close()  # type: ignore[attr-defined]
    assert run.finished


def test_async_generator_agent_that_is_closed_early_ends() -> None:
    @kvflow.agent("writer")
    async def write() -> AsyncIterator[kvflow.Call]:
        while True:
            yield here()

    async def main() -> kvflow.Run:
        words = write()
        run = (await anext(words)).run
        await words.aclose()  # type: ignore[attr-defined]
        return run

    assert asyncio.run(main()).finished


def test_workflow_decorates_a_function() -> None:
    @kvflow.workflow()
    def answer() -> list[kvflow.Run]:
        return [plan().run, execute().run]

    first, second = answer()
    assert first is second
    assert first.finished
    assert answer()[0] is not first


def test_mark_reaches_the_call() -> None:
    mark = kvflow.FixedMark(message=1, chars=812)

    @kvflow.agent("planner", fixed=mark)
    def work() -> kvflow.Call:
        return here()

    assert work().fixed == mark


@pytest.mark.parametrize("name", ["", "x" * 257])
def test_name_that_cannot_be_sent_is_refused_where_it_is_given(name: str) -> None:
    with pytest.raises(WireError, match="agent"):
        kvflow.agent(name)


def test_agent_without_a_name_says_how_to_write_it() -> None:
    with pytest.raises(TypeError, match=r"kvflow\.agent\("):
        kvflow.agent(plan)  # type: ignore[arg-type]


def test_mark_that_cannot_be_sent_is_refused_where_it_is_given() -> None:
    with pytest.raises(WireError, match=r"fixed\.chars"):
        kvflow.step("planner", fixed=kvflow.FixedMark(message=0, chars=-1))


def test_disabled_client_leaves_functions_alone() -> None:
    off = kvflow.Client(config=kvflow.Config(disable=True))

    @kvflow.agent("planner", client=off)
    def work() -> kvflow.Call | None:
        return kvflow.current()

    with kvflow.workflow(client=off) as run:
        assert run is None
        assert work() is None


def test_unusable_configuration_never_fails_an_agent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from kvflow_sdk import client

    monkeypatch.setattr(client, "_default", None)
    monkeypatch.setenv("KVFLOW_SERVER", "not a url")
    with pytest.raises(kvflow.ConfigError):
        kvflow.default_client()
    with kvflow.step("planner") as call:
        assert call is None


def test_agents_of_an_explicit_client_carry_its_id() -> None:
    with kvflow.Client(name="mine") as client, kvflow.workflow(client=client):
        assert plan().run.client == client.id
        assert client.id.startswith("mine-")
