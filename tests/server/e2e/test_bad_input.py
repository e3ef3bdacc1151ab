"""Bad metadata in band: the call is served as without it, and the server tells."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest

from kvflow_sdk import wire
from kvflow_sdk.wire import FixedMark, StepUpdate

if TYPE_CHECKING:
    from conftest import Caller, Server

pytestmark = [pytest.mark.sglang, pytest.mark.server]

CHAT = "/v1/chat/completions"
FAR = 10**6
CROWD = {f"agent-{number}": number for number in range(10_000)}

PAYLOADS: Mapping[str, tuple[dict[str, Any], str]] = {
    "no client": ({"client": None}, "client"),
    "client without a name": ({"client": ""}, "client"),
    "run is a number": ({"run": 7}, "run"),
    "negative seq": ({"seq": -1}, "seq"),
    "steps is a list": ({"steps": [1, 2]}, "steps"),
    "negative steps": ({"steps": {"planner": -1}}, "steps"),
    "huge steps": ({"steps": {"planner": 10**15}}, "steps"),
    "steps beyond 64 bits": ({"steps": {"planner": 10**30}}, "steps"),
    "10 000 agents": ({"steps": CROWD}, "steps"),
    "likelihood above 1": ({"likelihood": {"planner": 2.0}}, "likelihood"),
    "agent with a long name": ({"agent": "a" * 257}, "agent"),
    "mark without characters": ({"fixed": {"message": 0}}, "fixed.message"),
    "mark before the prompt": ({"fixed": {"tokens": -5}}, "fixed.tokens"),
}
"""What is wrong: (fields laid over a good payload, the reason it is counted by)."""


def packed(text: bytes) -> str:
    return base64.urlsafe_b64encode(zlib.compress(text, 9)).decode()


HEADERS = {
    "garbage": b"%%% this is not KVFlow %%%",
    "not ASCII": "planér".encode("latin-1"),
    "no zlib stream": base64.urlsafe_b64encode(b"plain text"),
    "cut short": packed(b"{}" * 500)[:16].encode(),
    "not JSON": packed(b"{").encode(),
    "nested too deep": packed(b"[" * 100_000).encode(),
    "over 8 KB": b"A" * 10_000,
    "a zip bomb": packed(b"\0" * 4_000_000).encode(),
}

NOTHING_LEARNED = {"boundaries": [], "found_after_calls": None, "drift": None}
NO_PREFETCH = {"issued": 0, "used": 0, "unused": 0}
MARKS_PAST_THE_END = {
    "characters": FixedMark(message=1, chars=FAR),
    "message": FixedMark(message=9, chars=0),
}


def envelope(caller: Caller, **wrong: Any) -> dict[str, Any]:
    """A good one, but for the fields of its payload that `wrong` replaces."""
    update = caller.update({"planner": 0}, agent="planner")
    hints = wire.to_envelope([update])
    hints["actions"][0]["payload"] |= wrong
    return hints


def conversation(caller: Caller) -> dict[str, Any]:
    messages = [("system", caller.text(20)), ("user", caller.text(5))]
    return {
        "model": "any",
        "messages": [{"role": role, "content": text} for role, text in messages],
        "max_tokens": 4,
        "temperature": 0,
        "logprobs": True,
    }


@pytest.mark.parametrize("case", PAYLOADS)
def test_a_bad_payload_on_generate_is_dropped_and_counted(
    server: Server, truth: Server, caller: Caller, case: str
) -> None:
    wrong, reason = PAYLOADS[case]
    before = server.dropped(reason)
    prompt = caller.prompt(40)
    answer = server.ask(prompt, envelope(caller, **wrong))
    assert answer.agrees_with(truth.ask(prompt))
    assert server.dropped(reason) == before + 1
    assert not server.client(caller.id)


@pytest.mark.parametrize(
    ("level", "field"),
    [("protocol_version", "protocol_version"), ("action_version", "action_version")],
)
def test_an_unknown_version_on_generate_is_dropped_and_counted(
    server: Server, truth: Server, caller: Caller, level: str, field: str
) -> None:
    before = server.dropped(field)
    hints = envelope(caller)
    (hints if level == "protocol_version" else hints["actions"][0])[level] = "2.0"
    prompt = caller.prompt(40)
    assert server.ask(prompt, hints).agrees_with(truth.ask(prompt))
    assert server.dropped(field) == before + 1


def test_a_newer_minor_version_and_unknown_fields_are_accepted(
    server: Server, caller: Caller
) -> None:
    hints = envelope(caller, mood="good")
    hints["protocol_version"] = "1.7"
    server.ask(caller.prompt(40), hints)
    assert server.agents(caller.id)["planner"]["steps"] == 0


@pytest.mark.parametrize(
    "hints",
    ["text", 7, {"protocol_version": "1"}, {"protocol_version": 1, "actions": 2}],
)
def test_a_malformed_envelope_is_sglangs_own_400(
    server: Server, truth: Server, caller: Caller, hints: object
) -> None:
    body = {"input_ids": caller.prompt(10), "kv_hints": hints}
    statuses = [
        w.http.post("/generate", json=body).status_code for w in (server, truth)
    ]
    assert statuses == [400, 400]


def test_what_is_dropped_again_and_again_is_logged_once(
    server: Server, caller: Caller
) -> None:
    told = "the call is served without it: run:"
    for _ in range(3):
        server.ask(caller.prompt(10), envelope(caller, run=7))
    assert server.dropped("run") >= 3
    assert server.log_count(told) == 1


@pytest.mark.parametrize("case", HEADERS)
def test_a_header_that_cannot_be_read_is_dropped_and_counted(
    server: Server, truth: Server, caller: Caller, case: str
) -> None:
    before = server.dropped(wire.HEADER)
    body = conversation(caller)
    headers = [(wire.HEADER.encode(), HEADERS[case])]
    response = server.http.post(CHAT, json=body, headers=headers)
    assert response.status_code == 200
    expected = truth.json(CHAT, body)["choices"][0]["message"]
    assert response.json()["choices"][0]["message"] == expected
    assert server.dropped(wire.HEADER) == before + 1


@pytest.mark.parametrize("steps", [{"planner": -1}, {"planner": 10**30}])
def test_bad_steps_in_a_header_are_dropped_and_counted(
    server: Server, caller: Caller, steps: dict[str, int]
) -> None:
    before = server.dropped("steps")
    update = StepUpdate(client=caller.id, run=caller.run, seq=1, steps=steps)
    header = {wire.HEADER: wire.to_header(update)}
    server.json(CHAT, conversation(caller), header)
    assert server.dropped("steps") == before + 1
    assert not server.client(caller.id)


def test_unreadable_headers_are_logged_once(server: Server, caller: Caller) -> None:
    header = {wire.HEADER: "%%%"}
    completion = {"model": "any", "prompt": caller.text(5), "max_tokens": 1}
    for _ in range(2):
        server.json(CHAT, conversation(caller), header)
        server.json("/v1/completions", completion, header)
    assert server.log_count(f"the call is served without it: {wire.HEADER}:") == 1


@pytest.mark.parametrize("case", MARKS_PAST_THE_END)
def test_a_mark_past_the_end_of_a_chat_is_dropped_and_counted(
    server: Server, truth: Server, caller: Caller, case: str
) -> None:
    before = server.dropped("fixed")
    update = caller.update(
        {"planner": 0}, agent="planner", fixed=MARKS_PAST_THE_END[case]
    )
    body = conversation(caller)
    found = server.json(CHAT, body, {wire.HEADER: wire.to_header(update)})
    expected = truth.json(CHAT, body)["choices"][0]["message"]
    assert found["choices"][0]["message"] == expected
    assert server.dropped("fixed") == before + 1
    # What else the call said is good.
    assert server.agents(caller.id)["planner"] == {
        "steps": 0,
        "steps_of_next_run": None,
        "prefetch": NO_PREFETCH,
        "prompts": [],
        "learned": NOTHING_LEARNED,
    }


@pytest.mark.parametrize(
    "mark", [FixedMark(tokens=FAR), FixedMark(message=0, chars=FAR)]
)
def test_a_mark_past_the_end_of_a_plain_prompt_is_dropped_and_counted(
    server: Server, truth: Server, caller: Caller, mark: FixedMark
) -> None:
    before = server.dropped("fixed")
    update = caller.update({"planner": 0}, agent="planner", fixed=mark)
    body = {
        "text": caller.text(20),
        "sampling_params": {"temperature": 0, "max_new_tokens": 4},
    }
    hints = {"kv_hints": wire.to_envelope([update])}
    found = server.json("/generate", body | hints)
    assert found["text"] == truth.json("/generate", body)["text"]
    assert server.dropped("fixed") == before + 1
    assert server.agents(caller.id)["planner"]["prompts"] == []


def test_a_mark_at_the_very_end_is_good(server: Server, caller: Caller) -> None:
    prompt = caller.prompt(40)
    update = caller.update({"planner": 0}, agent="planner", fixed=FixedMark(tokens=40))
    server.ask(prompt, wire.to_envelope([update]))
    (known,) = server.agents(caller.id)["planner"]["prompts"]
    assert known["tokens"] == 40


def test_an_agent_that_never_calls_costs_nothing(
    server: Server, truth: Server, caller: Caller
) -> None:
    update = caller.update({"planner": 0, "ghost": 1}, agent="planner")
    prompt = caller.prompt(40)
    answer = server.ask(prompt, wire.to_envelope([update]))
    assert answer.agrees_with(truth.ask(prompt))
    assert server.agents(caller.id)["ghost"] == {
        "steps": 1,
        "steps_of_next_run": None,
        "prefetch": NO_PREFETCH,
        "prompts": [],
        "learned": NOTHING_LEARNED,
    }


def test_an_agent_may_call_that_no_steps_have_named(
    server: Server, caller: Caller
) -> None:
    mark = FixedMark(tokens=30)
    update = caller.update({"planner": 0}, agent="stranger", fixed=mark)
    server.ask(caller.prompt(40), wire.to_envelope([update]))
    stranger = server.agents(caller.id)["stranger"]
    assert stranger["steps"] is None
    assert [prompt["tokens"] for prompt in stranger["prompts"]] == [30]


def test_names_need_not_be_ascii(server: Server, caller: Caller) -> None:
    name = "計画者 ✓ Überprüfer"
    update = caller.update({name: 0}, agent=name)
    header = {wire.HEADER: wire.to_header(update)}
    server.json(CHAT, conversation(caller), header)
    assert server.agents(caller.id)[name]["steps"] == 0
    assert len(server.agents(caller.id)[name]["prompts"]) == 1
    server.send(caller.update({name: 5}))
    assert server.agents(caller.id)[name]["steps"] == 5
