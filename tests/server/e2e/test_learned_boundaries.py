"""Clients that mark nothing: the server learns where the fixed prompt ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kvflow_sdk import wire

if TYPE_CHECKING:
    from conftest import Caller, Server

pytestmark = [pytest.mark.sglang, pytest.mark.server]


def unmarked(caller: Caller) -> dict[str, Any]:
    """A call of the agent `planner` without a mark, as ``kv_hints``."""
    return wire.to_envelope([caller.update({"planner": 0}, agent="planner")])


def planner(server: Server, caller: Caller) -> dict[str, Any]:
    found: dict[str, Any] = server.agents(caller.id)["planner"]
    return found


def drift(server: Server, caller: Caller) -> list[dict[str, Any]]:
    found = server.http.get(wire.DRIFT_PATH).raise_for_status().json()["agents"]
    shown = wire.shown_client(caller.id)
    return [entry for entry in found if entry["client"] == shown]


def test_the_third_unmarked_call_has_a_boundary(server: Server, caller: Caller) -> None:
    fixed = caller.prompt(100)
    for _ in range(3):
        server.ask(fixed + caller.prompt(20), unmarked(caller))
    agent = planner(server, caller)
    assert agent["learned"]["boundaries"] == [100]
    assert agent["learned"]["found_after_calls"] == 3
    assert [prompt["tokens"] for prompt in agent["prompts"]] == [100]
    assert drift(server, caller) == []


def test_what_the_calls_teach_replaces_the_assumption(
    server: Server, caller: Caller
) -> None:
    system, fixed = caller.text(12), caller.text(30)
    for _ in range(4):
        body = {
            "model": "any",
            "messages": [
                {"role": "system", "content": system},
                {"role": "user", "content": f"{fixed} {caller.text(8)}"},
            ],
            "max_tokens": 1,
        }
        update = caller.update({"planner": 0}, agent="planner")
        headers = {wire.HEADER: wire.to_header(update)}
        server.json("/v1/chat/completions", body, headers)
    agent = planner(server, caller)
    (learned,) = agent["learned"]["boundaries"]
    first, last = (prompt["tokens"] for prompt in agent["prompts"])
    assert first < last == learned


def test_a_prompt_that_parts_at_its_head_is_in_the_drift_report(
    server: Server, caller: Caller
) -> None:
    fixed = caller.prompt(120)
    for _ in range(4):
        server.ask(caller.prompt(5) + fixed, unmarked(caller))
    (entry,) = drift(server, caller)
    assert entry["agent"] == "planner"
    assert entry["calls"] == 3
    assert entry["token"] < 5
    assert entry["expected"] == 125
    assert planner(server, caller)["prompts"] == []
