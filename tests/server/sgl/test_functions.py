"""Functions of SGLang's front-end language on a wrapped endpoint: who calls, and when."""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sglang as sgl
from sglang.lang import interpreter

import kvflow_sdk as kvflow
from kvflow_integrations import sglang_lang
from kvflow_integrations.conformance import Loopback, Seen
from kvflow_sdk.wire import StepUpdate

# SGLang warns from the thread in which a call fails.
pytestmark = pytest.mark.filterwarnings("ignore:Error in stream_executor")

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@sgl.function
def planner(s: Any, question: str) -> None:
    s += f"Plan: {question}" + sgl.gen("plan", max_tokens=2)


@sgl.function
def writer(s: Any, plan: str) -> None:
    s += f"Write: {plan}" + sgl.gen("text", max_tokens=2)


@sgl.function
def marked(s: Any, question: str) -> None:
    with s.var_scope(sglang_lang.FIXED):
        s += "Always the same. "
    s += question + sgl.gen("answer", max_tokens=2)


@sgl.function
def forked(s: Any) -> None:
    s += "Begin."
    forks = s.fork(2)
    forks += " Go on." + sgl.gen("part", max_tokens=2)
    forks.join()
    s += sgl.gen("end", max_tokens=2)


@sgl.function
def chooser(s: Any) -> None:
    s += "Is it so? " + sgl.select("answer", choices=["yes", "no"])


@sgl.function
def boss(s: Any) -> None:
    s += planner.run("why?", backend=s.stream_executor.backend)["plan"]
    s += sgl.gen("order", max_tokens=2)


class Calls(Loopback):
    """What each call said; where a test asks for it, only once it is let go."""

    held: threading.Event | None = None

    @property
    def updates(self) -> list[StepUpdate | None]:
        return [next(iter(c.updates), None) for c in self.at("/generate")]

    @property
    def agents(self) -> list[str | None]:
        return [update and update.agent for update in self.updates]

    def complete(self, request: Seen) -> tuple[int, str]:
        if self.held is not None:
            assert self.held.wait(20)
        return 200, self.text


@pytest.fixture
def server() -> Iterator[Calls]:
    with Calls() as server:
        yield server


@pytest.fixture
def client(server: Calls) -> Iterator[kvflow.Client]:
    with kvflow.Client(server.root) as client:
        yield client


@pytest.fixture
def backend(server: Calls, client: kvflow.Client) -> Iterator[Any]:
    backend = kvflow.wrap(sgl.RuntimeEndpoint(server.root), client=client)
    yield backend
    sglang_lang.unwrap(backend)


def test_every_function_is_an_agent_of_its_name(backend: Any, server: Calls) -> None:
    plan = planner.run("why?", backend=backend)["plan"]
    assert writer.run(plan, backend=backend)["text"] == server.text
    assert server.agents == ["planner", "writer"]


def test_functions_outside_of_a_workflow_are_runs_of_their_own(
    backend: Any, server: Calls
) -> None:
    for _ in range(2):
        assert planner.run("why?", backend=backend)["plan"]
    assert len({update.run for update in server.updates if update}) == 2


def test_an_agent_is_over_before_its_result_is_read(
    backend: Any, client: kvflow.Client
) -> None:
    graph = kvflow.AgentStepGraph.sequence(["planner", "writer"])
    with kvflow.workflow(graph, client=client) as run:
        assert run is not None
        state = planner.run("why?", backend=backend)
        assert state["plan"]
        assert run.snapshot().steps == {"writer": 1}


def test_an_agent_executes_while_its_worker_calls_the_model(
    backend: Any, server: Calls, client: kvflow.Client
) -> None:
    server.held = threading.Event()
    with kvflow.workflow(client=client) as run:
        assert run is not None
        state = planner.run("why?", backend=backend)
        assert run.snapshot().steps == {"planner": 0}
        server.held.set()
        assert state["plan"]
        assert run.snapshot().steps == {}


def test_a_streamed_function_is_the_same_agent(backend: Any, server: Calls) -> None:
    state = forked.run(stream=True, backend=backend)
    assert server.text in "".join(state.text_iter())
    assert set(server.agents) == {"forked"}
    assert len({update.run for update in server.updates if update}) == 1


def test_forks_belong_to_their_function(
    backend: Any, server: Calls, client: kvflow.Client
) -> None:
    with kvflow.workflow(client=client) as run:
        assert run is not None
        assert forked.run(backend=backend)["end"]
        assert run.snapshot().steps == {}
    assert set(server.agents) == {"forked"}
    # And one call more if SGLang has the text before it forks: that is not certain.
    assert len(server.agents) >= 3


def test_a_function_called_by_another_executes_together_with_it(
    backend: Any, server: Calls
) -> None:
    assert boss.run(backend=backend)["order"]
    inner, outer = server.updates
    assert inner is not None
    assert outer is not None
    assert (inner.agent, inner.steps) == ("planner", {"boss": 0, "planner": 0})
    assert (outer.agent, outer.steps) == ("boss", {"boss": 0})


def test_a_batch_belongs_to_the_run_around_it(
    backend: Any, server: Calls, client: kvflow.Client
) -> None:
    with kvflow.workflow(client=client) as run:
        states = planner.run_batch(
            [{"question": "a"}, {"question": "b"}], backend=backend
        )
        assert [state["plan"] for state in states] == [server.text] * 2
    assert run is not None
    assert [update and update.run for update in server.updates] == [run.id] * 2


def test_a_selection_is_a_call_of_its_agent(
    backend: Any, server: Calls, client: kvflow.Client
) -> None:
    # The stage does not answer with log probabilities, so SGLang fails after the call.
    with kvflow.workflow(client=client) as run:
        state = chooser.run(backend=backend)
        assert state.error() is not None
    assert run is not None
    assert server.agents[0] == "chooser"
    assert run.snapshot().steps == {}


def test_a_function_says_where_its_fixed_part_ends(backend: Any, server: Calls) -> None:
    assert marked.run("why?", backend=backend)["answer"]
    (update,) = server.updates
    assert update is not None
    assert update.fixed == kvflow.FixedMark(message=0, chars=len("Always the same. "))


def test_an_error_ends_the_agent_and_comes_out_as_ever(
    backend: Any, server: Calls, client: kvflow.Client
) -> None:
    server.status["/generate"] = [500]
    with kvflow.workflow(client=client) as run:
        assert run is not None
        state = planner.run("why?", backend=backend)
        assert isinstance(state.error(), RuntimeError)
        assert run.snapshot().steps == {}


def test_without_a_thread_an_error_ends_the_agent_too(
    backend: Any, server: Calls, client: kvflow.Client
) -> None:
    server.status["/generate"] = [500]
    with kvflow.workflow(client=client) as run:
        assert run is not None
        with contextlib.suppress(RuntimeError):
            planner.run("why?", backend=backend, use_thread=False)
        assert run.snapshot().steps == {}


def test_names_are_prefixed_where_a_program_has_several_teams(
    server: Calls, client: kvflow.Client
) -> None:
    endpoint = sgl.RuntimeEndpoint(server.root)
    backend = sglang_lang.wrap(endpoint, client=client, name="bonds")
    assert planner.run("why?", backend=backend)["plan"]
    assert sglang_lang.unwrap(backend) is endpoint
    assert server.agents == ["bonds|planner"]


def test_a_plain_endpoint_is_left_alone(backend: Any, server: Calls) -> None:
    plain = sgl.RuntimeEndpoint(server.root)
    assert planner.run("why?", backend=plain)["plan"]
    assert server.agents == [None]


def test_with_kvflow_off_calls_are_plain(server: Calls) -> None:
    off = kvflow.Client(config=kvflow.Config(disable=True))
    backend = kvflow.wrap(sgl.RuntimeEndpoint(server.root), client=off)
    assert planner.run("why?", backend=backend)["plan"] == server.text
    sglang_lang.unwrap(backend)
    assert server.agents == [None]


def test_unwrapping_restores_every_attribute(
    server: Calls, client: kvflow.Client
) -> None:
    endpoint = sgl.RuntimeEndpoint(server.root)

    def everything() -> list[dict[str, Any]]:
        kinds = (interpreter, interpreter.StreamExecutor, interpreter.ProgramState)
        return [dict(vars(endpoint)), *[dict(vars(kind)) for kind in kinds]]

    before = everything()
    backend = kvflow.wrap(endpoint, client=client)
    assert isinstance(backend, sgl.RuntimeEndpoint)
    assert everything() != before
    assert sglang_lang.unwrap(backend) is endpoint
    assert everything() == before


def test_what_is_no_endpoint_is_refused() -> None:
    with pytest.raises(kvflow.UnsupportedError, match="RuntimeEndpoint"):
        sglang_lang.wrap(planner)


def test_the_pipeline_runs_both_experts_before_the_writer(
    backend: Any, server: Calls, client: kvflow.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvflow_sdk.client._default", client)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    pipeline = importlib.import_module("sgl_pipeline")
    sgl.set_default_backend(backend)
    try:
        assert pipeline.answer("Is gold a hedge?") == server.text
    finally:
        sgl.set_default_backend(None)
    steps = {update.agent: update.steps for update in server.updates if update}
    assert next(iter(steps)) == "planner"
    assert steps["planner"] == {
        "planner": 0,
        "economist": 1,
        "analyst": 1,
        "writer": 2,
    }
    assert steps["economist"] == {"economist": 0, "analyst": 0, "writer": 1}
    assert steps["writer"] == {"writer": 0}
