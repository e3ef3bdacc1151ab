"""Registered prompts are computed before their agents run, while nobody waits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import httpx
import pytest

import kvflow_sdk as kvflow
from kvflow_sdk import wire
from kvflow_sdk.prewarm import PREWARM_PATH
from kvflow_sdk.wire import FixedMark

if TYPE_CHECKING:
    from conftest import Caller, Serve, Server

pytestmark = [pytest.mark.sglang, pytest.mark.server, pytest.mark.full]
TOOLS = [
    {
        "type": "function",
        "function": {"name": "search", "parameters": {"type": "object"}},
    }
]


@pytest.fixture(scope="module")
def warm(serve: Serve) -> Iterator[Server]:
    env = {"KVFLOW_PREWARM_TOKENS": "900"}
    with serve("--kvflow-prewarm", env=env) as server:
        yield server


def ask(server: Server, caller: Caller, **fields: Any) -> httpx.Response:
    body = {"client": caller.id, "steps": {"planner": 1, "writer": 2}} | fields
    return server.http.post(PREWARM_PATH, json=body)


def when_done(server: Server) -> dict[str, Any]:
    """The state once no prompt waits; the test's time limit is the bound."""
    while True:
        state = server.state()
        if not state["prewarm"]["waiting"]:
            return state


def fixed_hits(server: Server) -> dict[str, int]:
    counters = server.state()["counters"]
    return {
        tier: counters[f"fixed_{tier}_tokens"]
        for tier in ("device", "host", "recomputed")
    }


def test_the_first_call_of_a_registered_agent_computes_nothing_fixed(
    warm: Server, truth: Server, caller: Caller
) -> None:
    prompt = caller.prompt(300)
    before = when_done(warm)["counters"]
    answer = ask(warm, caller, agent="planner", request={"input_ids": prompt})
    assert (answer.status_code, answer.json()) == (202, {"tokens": 300})
    after = when_done(warm)["counters"]
    assert after["prewarm_tokens"] - before["prewarm_tokens"] == 300
    assert after["tagged_requests"] == before["tagged_requests"]
    agent = warm.agents(caller.id)["planner"]
    assert [known["tokens"] for known in agent["prompts"]] == [300]
    assert agent["steps_of_next_run"] == 1
    hits = fixed_hits(warm)
    call = [*prompt, *caller.prompt(20)]
    update = caller.update(
        {"planner": 0}, agent="planner", fixed=FixedMark(tokens=len(prompt))
    )
    found = warm.ask(call, wire.to_envelope([update]))
    assert found.agrees_with(truth.ask(call))
    assert fixed_hits(warm) == hits | {"device": hits["device"] + 300}
    # The real call's boundary is the very same one.
    prompts = warm.agents(caller.id)["planner"]["prompts"]
    assert [known["tokens"] for known in prompts] == [300]


def test_a_chat_is_rendered_and_tokenized_as_the_call_will_be(
    warm: Server, caller: Caller
) -> None:
    system, shown = caller.text(20), caller.text(10)
    prompt = kvflow.split(shown, " one", before=[{"role": "system", "content": system}])
    with kvflow.Client(warm.url) as client:
        request = {"messages": prompt.messages, "tools": TOOLS, "fixed": prompt.fixed}
        kvflow.register(None, {"planner": request}, client=client)
        assert client.flush(30)
        assert client.counters["prompts.sent"] == 1
        when_done(warm)
        hits = fixed_hits(warm)
        with kvflow.workflow(client=client), kvflow.step("planner") as call:
            assert call is not None
            update = call.run.snapshot(agent="planner", fixed=prompt.fixed)
        body = {
            "model": "any",
            "messages": [
                prompt.messages[0],
                {"role": "user", "content": f"{shown} another"},
            ],
            "tools": TOOLS,
            "max_tokens": 1,
        }
        warm.json("/v1/chat/completions", body, {wire.HEADER: wire.to_header(update)})
        found = fixed_hits(warm)
        assert found["recomputed"] == hits["recomputed"]
        assert found["device"] + found["host"] > hits["device"] + hits["host"]


def test_nothing_is_computed_ahead_while_a_request_runs(
    warm: Server, caller: Caller
) -> None:
    before = when_done(warm)["counters"]["prewarm_tokens"]
    begun = threading.Event()

    def long_call() -> None:
        body = {
            "input_ids": caller.prompt(50),
            "stream": True,
            "sampling_params": {"max_new_tokens": 120, "ignore_eos": True},
        }
        with warm.http.stream("POST", "/generate", json=body) as response:
            for _ in response.iter_bytes():
                begun.set()

    thread = threading.Thread(target=long_call)
    thread.start()
    assert begun.wait(60)
    ask(warm, caller, agent="writer", request={"input_ids": caller.prompt(200)})
    seen = []
    while thread.is_alive():
        seen.append(warm.state()["counters"]["prewarm_tokens"])
    thread.join()
    # The last reading may be from after the call's end.
    assert len(seen) > 1
    assert set(seen[:-1]) == {before}
    assert when_done(warm)["counters"]["prewarm_tokens"] == before + 200


def test_a_flush_is_not_refused_for_a_piece_and_takes_what_was_computed(
    warm: Server, caller: Caller
) -> None:
    prompt = caller.prompt(400)
    ask(warm, caller, agent="writer", request={"input_ids": prompt})
    warm.http.post("/flush_cache").raise_for_status()
    assert when_done(warm)["integrity"] == "ok"
    ask(warm, caller, agent="writer", request={"input_ids": prompt})
    when_done(warm)
    (known,) = warm.agents(caller.id)["writer"]["prompts"]
    assert known["tokens"] == 400


def test_more_than_the_budget_is_refused_and_counted(
    warm: Server, caller: Caller
) -> None:
    before = when_done(warm)
    for agent in ("planner", "writer"):
        ask(warm, caller, agent=agent, request={"input_ids": caller.prompt(500)})
    after = when_done(warm)
    counted = after["counters"]["prewarm_refused"]
    assert counted == before["counters"]["prewarm_refused"] + 1
    assert warm.log_count("KVFLOW_PREWARM_TOKENS") == 1


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"request": {"messages": [{"role": "user", "content": "hi"}]}}, "fixed"),
        ({"request": {"messages": [{"role": "nobody"}]}}, "request"),
        ({"request": {"input_ids": [1, "2"]}}, "request"),
        ({"request": {"input_ids": [1 << 40]}}, "request"),
        ({"request": {"text": "a", "lora_path": "x"}}, "request"),
        ({"request": {"text": "abc"}, "fixed": {"message": 0, "chars": 9}}, "fixed"),
    ],
)
def test_what_cannot_be_computed_ahead_is_refused_with_the_field(
    warm: Server, caller: Caller, fields: dict[str, Any], field: str
) -> None:
    answer = ask(warm, caller, agent="planner", **fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["field"] == field


def test_it_is_off_unless_the_server_was_started_with_it(
    server: Server, caller: Caller
) -> None:
    answer = ask(server, caller, agent="a", request={"input_ids": caller.prompt(50)})
    assert answer.status_code == 403
    assert "--kvflow-prewarm" in answer.json()["error"]["message"]
    capabilities = server.http.get(wire.CAPABILITIES_PATH).json()
    assert capabilities["prewarm"] is False
