"""Bad metadata out of band is refused with an error that names the field."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from kvflow_sdk import wire

if TYPE_CHECKING:
    from conftest import Caller, Server

pytestmark = [pytest.mark.sglang, pytest.mark.server]

CROWD = {f"agent-{number}": number for number in range(10_000)}


def post(server: Server, body: object) -> tuple[int, dict[str, Any]]:
    """The status and the error of an out-of-band message that is refused."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = server.http.post(
        wire.STEPS_PATH, content=raw, headers={"content-type": "application/json"}
    )
    error: dict[str, Any] = response.json()["error"]
    return response.status_code, error


def message(caller: Caller, **wrong: Any) -> dict[str, Any]:
    envelope = wire.to_envelope([caller.update({"planner": 0})])
    envelope["actions"][0]["payload"] |= wrong
    return envelope


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"client": 7}, "client"),
        ({"client": "c" * 257}, "client"),
        ({"run": ""}, "run"),
        ({"seq": -1}, "seq"),
        ({"seq": 10**30}, "seq"),
        ({"steps": {"planner": -1}}, "steps['planner']"),
        ({"steps": {"planner": 10**30}}, "steps['planner']"),
        ({"steps": {"planner": 1.5}}, "steps['planner']"),
        ({"steps": {"計画者": -1}}, "steps['計画者']"),
        ({"likelihood": {"planner": 1.5}}, "likelihood['planner']"),
        ({"fixed": {"chars": 3}}, "fixed.message"),
        ({"fixed": {"tokens": -3}}, "fixed.tokens"),
        ({"final": "yes"}, "final"),
    ],
)
def test_a_bad_payload_is_a_400_that_names_the_field(
    server: Server, caller: Caller, wrong: dict[str, Any], field: str
) -> None:
    status, error = post(server, message(caller, **wrong))
    assert (status, error["field"]) == (400, field)
    assert field in error["message"]
    assert not server.client(caller.id)


def test_one_bad_run_refuses_the_whole_message(server: Server, caller: Caller) -> None:
    envelope = message(caller)
    envelope["actions"].append(message(caller, seq=-1)["actions"][0])
    assert post(server, envelope)[1]["field"] == "seq"
    assert not server.client(caller.id)


@pytest.mark.parametrize("level", ["protocol_version", "action_version"])
def test_an_unknown_version_is_a_400_that_names_both(
    server: Server, caller: Caller, level: str
) -> None:
    envelope = message(caller)
    (envelope if level == "protocol_version" else envelope["actions"][0])[level] = "2"
    status, error = post(server, envelope)
    assert (status, error["field"]) == (400, level)
    assert "'2'" in error["message"]
    assert "'1'" in error["message"]


def test_too_many_agents_are_a_413_that_says_how_many_are_accepted(
    server: Server, caller: Caller
) -> None:
    status, error = post(server, message(caller, steps=CROWD))
    assert (status, error["field"]) == (413, "steps")
    assert "10000" in error["message"]
    assert str(wire.MAX_AGENTS) in error["message"]


def test_too_many_runs_are_a_413_that_says_how_many_are_accepted(
    server: Server, caller: Caller
) -> None:
    envelope = message(caller)
    envelope["actions"] *= wire.MAX_RUNS_PER_MESSAGE + 1
    status, error = post(server, envelope)
    assert (status, error["field"]) == (413, "actions")
    assert str(wire.MAX_RUNS_PER_MESSAGE) in error["message"]


def test_a_body_over_the_bound_is_a_413(server: Server, caller: Caller) -> None:
    filler = "x" * wire.MAX_INFLATED_BYTES
    status, error = post(server, message(caller, filler=filler))
    assert (status, error["field"]) == (413, "body")
    assert str(wire.MAX_INFLATED_BYTES) in error["message"]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"a": 1e999}', b'"\\ud800"']
)
def test_what_is_not_json_is_a_400(server: Server, body: bytes) -> None:
    status, error = post(server, body)
    assert (status, error["field"]) == (400, "body")


@pytest.mark.parametrize("body", [[], 7, "text", None])
def test_what_is_not_an_object_is_a_400(server: Server, body: object) -> None:
    status, error = post(server, body)
    assert (status, error["field"]) == (400, "body")


def test_a_message_without_anything_for_kvflow_is_a_400(
    server: Server, caller: Caller
) -> None:
    envelope = message(caller)
    envelope["actions"][0]["action_type"] = "other.thing"
    status, error = post(server, envelope)
    assert (status, error["field"]) == (400, "actions")


def test_no_refusal_disturbs_the_server(server: Server, caller: Caller) -> None:
    post(server, b"[" * 100_000)
    assert server.send(caller.update({"planner": 0})).status_code == 202
    assert server.agents(caller.id)["planner"]["steps"] == 0
    assert server.state()["integrity"] == "ok"
