"""The tests that every adapter has to pass; see `Conformance`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Any, ClassVar

import pytest

from kvflow_sdk.config import Config
from kvflow_sdk.context import current
from kvflow_sdk.wire import HEADER

from .harness import Harness, Mode, Program, WatchedClient
from .loopback import GENERATE_PATH
from .scenarios import Scenario
from .stage import Heard, Stage

__all__ = ["Conformance", "play"]


class Conformance:
    """Subclass it in a test module, with a `harness`; pytest does the rest::

        class TestMyFramework(Conformance):
            harness = MyHarness()

    The tests against a real server ask for the fixture `kvflow_url`: the base URL of a
    KVFlow server. It is yours to provide.
    """

    harness: ClassVar[Harness]
    __test__ = False

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        cls.__test__ = True

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "scenario" in metafunc.fixturenames:
            every = self.harness.scenarios()
            metafunc.parametrize("scenario", every, ids=[each.name for each in every])
        if "mode" in metafunc.fixturenames:
            modes = self.harness.modes
            if metafunc.function.__name__.startswith("test_an_abandoned"):
                modes = [m for m in modes if m in (Mode.STREAM, Mode.ASTREAM)]
            metafunc.parametrize("mode", modes, ids=[mode.value for mode in modes])

    @property
    def mode(self) -> Mode:
        return self.harness.modes[0]

    @property
    def first(self) -> Scenario:
        """A scenario for what is no matter of topology."""
        return self.harness.scenarios()[0]

    def test_the_compiled_graph_has_the_triggers_that_were_declared(
        self, scenario: Scenario
    ) -> None:
        with self._staged(scenario) as (_, _, program):
            if program.graph is None:
                return
            found = {
                (group.target, group.sources, group.conditional)
                for group in program.graph.groups
                if group.target not in self.harness.ignored
            }
        name = self.harness.agent
        assert found == {
            (
                name(group.target),
                frozenset(
                    source if source.startswith("__") else name(source)
                    for source in group.sources
                ),
                group.conditional,
            )
            for group in scenario.groups
        }

    def test_the_steps_of_every_moment_are_reported(
        self, scenario: Scenario, mode: Mode
    ) -> None:
        with self._staged(scenario) as (stage, client, program):
            play(program, mode)
            self._agrees(scenario, stage.heard)
            (run,) = client.runs
            assert {heard.update.run for heard in stage.heard if heard.update} == {
                run.id
            }
            # Two threads may deliver in either order; the numbers say which is newer.
            reports = sorted(client.reports[run.id], key=lambda report: report.seq)
            assert self._shown(reports[0].steps) == dict(self._named(scenario.before))
            assert [report.final for report in reports].index(True) == len(reports) - 1
            assert len({report.seq for report in reports}) == len(reports)

    def test_a_real_server_knows_the_steps_of_every_moment(
        self, scenario: Scenario, kvflow_url: str
    ) -> None:
        with self._staged(scenario, behind=kvflow_url) as (stage, client, program):
            play(program, self.mode)
            self._agrees(scenario, stage.heard)
            for heard in stage.heard:
                assert heard.update is not None
                assert heard.known == heard.update.steps
            assert client.flush(30)
            known = stage.client(client.id)
        # Without instructions of its own, a prompt's fixed part is learnt over calls.
        agents = {
            self.harness.agent(heard.agent)
            for heard in stage.heard
            if _has_instructions(heard.body)
        }
        assert known["runs"] == {}, "the server still knows a run that is over"
        assert agents <= known["agents"].keys()

    def test_the_plain_program_makes_the_same_calls(self, scenario: Scenario) -> None:
        with self._staged(scenario) as (stage, _, program):
            play(program, self.mode)
            tracked = stage.heard
        with Stage(scenario) as stage:
            play(self.harness.build(scenario, stage.url, None), self.mode)
            assert _bodies(stage.heard) == _bodies(tracked)
            assert all(HEADER not in seen.headers for seen in stage.seen)

    def test_after_unwrapping_calls_are_plain(self) -> None:
        with self._staged(self.first) as (stage, client, program):
            play(program, self.mode)
            count = len(stage.heard)
            stage._turns.clear()
            play(program.unwrap(), self.mode)
            assert all(heard.update for heard in stage.heard[:count])
            assert not any(heard.update for heard in stage.heard[count:])
            assert len(stage.heard) == 2 * count
            assert len(client.runs) == 1

    def test_nothing_is_current_outside_of_the_agents(self, mode: Mode) -> None:
        with self._staged(self.first) as (_, _, program):
            play(program, mode)  # which looks between the chunks
            assert current() is None

    def test_an_error_in_an_agent_comes_out_as_from_the_plain_program(
        self, mode: Mode
    ) -> None:
        last = self.first.moments[1].agents[0]
        with self._staged(self.first) as (stage, client, program):
            stage.refused = {last}
            ours = _failure(program, mode)
            calls = len(stage.heard)
        with Stage(self.first) as stage:
            stage.refused = {last}
            plain = _failure(self.harness.build(self.first, stage.url, None), mode)
            assert len(stage.heard) == calls
        assert (type(ours), str(ours)) == (type(plain), str(plain))
        _is_over(client)

    def test_a_call_that_is_tried_again_is_tagged_again(self) -> None:
        agent = self.first.moments[1].agents[0]
        with self._staged(self.first) as (stage, _, program):
            stage.failing = {agent: 1}
            play(program, self.mode)
            first, second = (h.update for h in stage.heard if h.agent == agent)
        assert first is not None
        assert second is not None
        assert (first.agent, first.steps) == (second.agent, second.steps)

    def test_a_cancelled_run_is_over(self) -> None:
        if Mode.ASYNC not in self.harness.modes:
            return
        agent = self.first.moments[1].agents[0]

        async def cancel(stage: Stage, program: Program) -> None:
            task = asyncio.ensure_future(program.arun())
            await asyncio.to_thread(stage.wait_for, agent)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            stage.release()

        with self._staged(self.first) as (stage, client, program):
            stage.held = {agent}
            asyncio.run(cancel(stage, program))
            _is_over(client)

    def test_an_abandoned_stream_is_over(self, mode: Mode) -> None:
        with self._staged(self.first) as (_, client, program):
            _abandon(program, mode)
            _is_over(client)

    def test_two_runs_at_once_do_not_mix(self) -> None:
        scenario = self.first
        with self._staged(scenario, copies=2) as (stage, client, program):
            # Both are in the same agent before either may go on.
            agent = scenario.moments[1].agents[0]
            stage.held = {agent}
            failures: list[BaseException] = []
            threads = [
                threading.Thread(target=_quietly, args=(program, self.mode, failures))
                for _ in range(2)
            ]
            for thread in threads:
                thread.start()
            stage.wait_for(agent, 2 * scenario.moments[1].agents.count(agent))
            stage.release()
            for thread in threads:
                thread.join()
            assert failures == []
            assert len(client.runs) == 2
            for run in client.runs:
                mine = [h for h in stage.heard if h.update and h.update.run == run.id]
                self._agrees(scenario, mine)

    def test_a_server_whose_kvflow_routes_hang_delays_nothing(self) -> None:
        with self._staged(self.first) as (stage, _, program):
            # Comes to its end though nothing sent out of band is ever answered.
            stage.hold = threading.Event()
            play(program, self.mode)
            self._agrees(self.first, stage.heard)

    def test_with_the_server_gone_it_fails_as_the_plain_program_does(self) -> None:
        with Stage(self.first) as stage:
            url = stage.url
        with WatchedClient(url) as client:
            client.config = Config(flush=0.0)
            program = self.harness.build(self.first, url, client)
            ours = _failure(program, self.mode)
            program.unwrap()
        plain = _failure(self.harness.build(self.first, url, None), self.mode)
        assert (type(ours), str(ours)) == (type(plain), str(plain))

    def test_a_server_that_hangs_up_is_called_as_often_as_by_the_plain_program(
        self,
    ) -> None:
        with self._staged(self.first) as (stage, client, program):
            stage.hangs_up = True
            ours, tries = _failure(program, self.mode), _tries(stage)
            program.unwrap()
            _is_over(client)
            plain = _failure(self.harness.build(self.first, stage.url, None), self.mode)
            assert tries > 1
            assert _tries(stage) == 2 * tries
        assert (type(ours), str(ours)) == (type(plain), str(plain))

    @contextmanager
    def _staged(
        self, scenario: Scenario, *, copies: int = 1, behind: str | None = None
    ) -> Iterator[tuple[Stage, WatchedClient, Program]]:
        key = self.harness.server_key
        with Stage(scenario, copies=copies, behind=behind, key=key) as stage:
            client = WatchedClient(stage.url)
            program = self.harness.build(scenario, stage.url, client)
            try:
                yield stage, client, program
            finally:
                if stage.hold is not None:
                    stage.hold.set()
                program.unwrap()
                client.close()

    def _agrees(self, scenario: Scenario, calls: Sequence[Heard]) -> None:
        """Every call said what the scenario says of its moment."""
        left = list(calls)
        for number, moment in enumerate(scenario.moments):
            now, left = left[: len(moment.agents)], left[len(moment.agents) :]
            assert sorted(heard.agent for heard in now) == list(moment.agents)
            for heard in now:
                where = f"moment {number}, the call of {heard.agent}"
                assert heard.update is not None, f"{where} is not tagged"
                assert heard.update.agent == self.harness.agent(heard.agent), where
                wanted = dict(self._named(moment.steps))
                assert self._shown(heard.update.steps) == wanted, where
        assert [heard.agent for heard in left] == [], "more calls than moments"

    def _named(self, steps: Any) -> Iterator[tuple[str, int]]:
        for name, value in steps.items():
            yield self.harness.agent(name), value

    def _shown(self, steps: dict[str, int] | None) -> dict[str, int]:
        found = (steps or {}).items()
        return {n: value for n, value in found if n not in self.harness.ignored}


def play(program: Program, mode: Mode) -> None:
    """Run `program` once; between what it streams no agent may be current."""
    if mode is Mode.SYNC:
        program.run()
    elif mode is Mode.ASYNC:
        asyncio.run(_arun(program))
    elif mode is Mode.STREAM:
        for _ in program.stream():
            assert current() is None
    else:
        asyncio.run(_drain(program))


async def _arun(program: Program) -> None:
    await program.arun()


async def _drain(program: Program) -> None:
    async for _ in program.astream():
        assert current() is None


def _abandon(program: Program, mode: Mode) -> None:
    if mode is Mode.STREAM:
        chunks: Any = program.stream()
        next(chunks)
        chunks.close()
        return

    async def first_only() -> None:
        some: Any = program.astream()
        async with aclosing(some):
            await anext(some)

    asyncio.run(first_only())


def _failure(program: Program, mode: Mode) -> BaseException:
    try:
        play(program, mode)
    except Exception as error:
        return error
    raise AssertionError("the program did not fail")


def _tries(stage: Stage) -> int:
    return len(stage.at("/completions")) + len(stage.at(GENERATE_PATH))


def _quietly(program: Program, mode: Mode, failures: list[BaseException]) -> None:
    try:
        play(program, mode)
    except BaseException as error:
        failures.append(error)


def _is_over(client: WatchedClient) -> None:
    (run,) = client.runs
    assert run.finished
    assert client.reports[run.id][-1].final


def _has_instructions(body: Any) -> bool:
    messages = body.get("messages") or [{}]
    return messages[0].get("role") in ("system", "developer")


def _bodies(calls: Sequence[Heard]) -> list[str]:
    """The calls in some order; parallel answers reach a shared history in either."""
    found = []
    for heard in calls:
        rest = {name: part for name, part in heard.body.items() if name != "messages"}
        messages = sorted(map(repr, heard.body.get("messages", ())))
        found.append(repr((heard.agent, messages, rest)))
    return sorted(found)
