"""Who may see and steer what, the caps with their numbers, and the accounts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from kvflow_sdk import wire
from kvflow_sdk.wire import FixedMark, StepUpdate
from kvflow_server.policy.intake import IntakeLimits
from kvflow_server.policy.steps import StepLimits

if TYPE_CHECKING:
    import httpx
    from conftest import Caller, Server

pytestmark = [pytest.mark.sglang, pytest.mark.server]

CAPS = StepLimits()
METRICS = "/metrics"


def error_of(response: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = response.json()["error"]
    return error


def tagged(caller: Caller, fixed: int, **steps: int) -> dict[str, Any]:
    """A call of the agent `planner`, as ``kv_hints``."""
    mark = FixedMark(tokens=fixed)
    return wire.to_envelope([caller.update(steps, agent="planner", fixed=mark)])


def test_the_state_names_no_client_by_its_id(server: Server, caller: Caller) -> None:
    server.send(caller.update({"planner": 0}))
    said = server.http.get(wire.STATE_PATH).text
    assert wire.shown_client(caller.id) in said
    assert caller.id not in said


def test_ids_are_shown_to_nobody_without_the_admin_key(server: Server) -> None:
    answer = server.http.get(wire.STATE_PATH, params={"ids": "full"})
    assert (answer.status_code, error_of(answer)["field"]) == (403, "ids")


@pytest.mark.parametrize(
    "wrong", [{"clients": "-1"}, {"clients": "1025"}, {"clients": "x"}, {"ids": "all"}]
)
def test_a_question_that_makes_no_sense_is_a_400(
    server: Server, wrong: dict[str, str]
) -> None:
    answer = server.http.get(wire.STATE_PATH, params=wrong)
    assert answer.status_code == 400
    assert error_of(answer)["field"] in wrong


def test_the_state_shows_as_many_clients_as_asked_the_last_first(
    server: Server, caller: Caller
) -> None:
    server.send(caller.update({"planner": 0}))
    state = server.http.get(wire.STATE_PATH, params={"clients": "1"}).json()
    assert list(state["clients"]) == [wire.shown_client(caller.id)]
    assert state["clients_left_out"] == state["sizes"]["clients"] - 1


def test_the_state_shows_no_prompt(server: Server, caller: Caller) -> None:
    secret = caller.text(30)
    update = caller.update({"planner": 0}, agent="planner")
    body = {
        "model": "any",
        "messages": [{"role": "system", "content": secret}],
        "max_tokens": 1,
    }
    headers = {wire.HEADER: wire.to_header(update)}
    server.json("/v1/chat/completions", body, headers)
    said = server.http.get(wire.STATE_PATH).text
    assert [word for word in secret.split() if len(word) > 6 and word in said] == []


def test_naming_another_clients_agents_does_not_touch_its_entries(
    server: Server, caller: Caller
) -> None:
    server.ask(caller.prompt(90), tagged(caller, 80, planner=0, writer=1))
    before = server.client(caller.id)
    thief = "client-that-guesses"
    for seq, steps in enumerate([{"planner": 50, "writer": 60}, None], 1):
        update = StepUpdate(client=thief, run=caller.run, seq=seq, steps=steps)
        server.send(update)
    server.send(StepUpdate(client=thief, run=caller.run, seq=9, final=True))
    assert server.client(caller.id) == before
    assert server.client(thief)["runs"] == {}


def test_late_and_repeated_updates_change_nothing(
    server: Server, caller: Caller
) -> None:
    early, last = caller.update({"planner": 5}), caller.update({"planner": 1})
    server.send(last)
    before = server.state()["counters"]["step_updates_stale"]
    server.send(early, last)
    assert server.client(caller.id)["runs"] == {caller.run: {"planner": 1}}
    assert server.state()["counters"]["step_updates_stale"] == before + 2


def test_one_run_too_many_is_a_429_with_the_number(
    server: Server, caller: Caller
) -> None:
    runs = [f"run-{number}" for number in range(CAPS.runs_per_client + 1)]
    answers = []
    for final in (False, True):
        for start in range(0, len(runs), wire.MAX_RUNS_PER_MESSAGE):
            updates = [
                StepUpdate(client=caller.id, run=run, seq=1, final=final)
                for run in runs[start : start + wire.MAX_RUNS_PER_MESSAGE]
            ]
            answers.append(server.send(*updates))
    *_, refused = answers[: len(answers) // 2]
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) > 0
    assert error_of(refused)["field"] == "run"
    assert str(CAPS.runs_per_client) in error_of(refused)["message"]
    assert {a.status_code for a in answers if a is not refused} == {202}
    assert server.client(caller.id)["runs"] == {}


def test_too_many_agents_are_a_429_with_the_number(
    server: Server, caller: Caller
) -> None:
    statuses = []
    for number in range(CAPS.agents_per_client // wire.MAX_AGENTS + 1):
        crowd = {f"agent-{number}-{i}": 1 for i in range(wire.MAX_AGENTS)}
        update = StepUpdate(client=caller.id, run=f"{number}", seq=1, steps=crowd)
        statuses.append(server.send(update))
    *accepted, refused = statuses
    for number in range(len(statuses)):
        end = StepUpdate(client=caller.id, run=f"{number}", seq=2, final=True)
        server.send(end)
    assert {answer.status_code for answer in accepted} == {202}
    assert (refused.status_code, error_of(refused)["field"]) == (429, "steps")
    assert str(CAPS.agents_per_client) in error_of(refused)["message"]


def test_a_client_that_sends_too_much_is_told_the_rate(
    server: Server, caller: Caller
) -> None:
    envelope = wire.to_envelope([caller.update({"planner": 0})])
    envelope["actions"][0]["payload"]["filler"] = "x" * 250_000
    for _ in range(100):
        answer = server.http.post(wire.STEPS_PATH, json=envelope)
        if answer.status_code != 202:
            break
    assert answer.status_code == 429
    assert str(IntakeLimits().bytes_per_s) in error_of(answer)["message"]
    assert int(answer.headers["retry-after"]) > 0


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br"])
def test_an_encoded_body_is_a_415(
    server: Server, caller: Caller, encoding: str
) -> None:
    answer = server.http.post(
        wire.STEPS_PATH,
        json=wire.to_envelope([caller.update({"planner": 0})]),
        headers={"content-encoding": encoding},
    )
    assert answer.status_code == 415
    assert error_of(answer)["field"] == "content-encoding"


def test_hints_that_are_far_too_long_do_not_reach_the_scheduler(
    server: Server, truth: Server, caller: Caller
) -> None:
    before = server.dropped("kv_hints")
    hints = tagged(caller, 30, planner=0)
    hints["actions"][0]["payload"]["filler"] = "x" * wire.MAX_INFLATED_BYTES
    prompt = caller.prompt(40)
    assert server.ask(prompt, hints).agrees_with(truth.ask(prompt))
    assert server.dropped("kv_hints") == before + 1
    assert not server.client(caller.id)


def test_each_prompt_of_a_list_has_a_boundary_of_its_own(
    server: Server, caller: Caller
) -> None:
    texts = ["a b c d e f " * 20, "wonderful " * 24]
    assert len(texts[0]) == len(texts[1])
    update = caller.update(
        {"planner": 0},
        agent="planner",
        fixed=FixedMark(message=0, chars=len(texts[0])),
    )
    body = {
        "text": [text + caller.text(3) for text in texts],
        "sampling_params": {"temperature": 0, "max_new_tokens": 1},
        "kv_hints": wire.to_envelope([update]),
    }
    server.json("/generate", body)
    prompts = server.agents(caller.id)["planner"]["prompts"]
    assert len({prompt["tokens"] for prompt in prompts}) == 2


def test_a_clients_account_says_where_its_prompts_were(
    server: Server, caller: Caller
) -> None:
    fixed = caller.prompt(100)
    for _ in range(2):
        hints = tagged(caller, 100, planner=0)
        server.ask(fixed + caller.prompt(20), hints)
    known = server.client(caller.id)
    account, held = known["account"], known["held"]
    assert account["requests"] == 2
    assert account["updates"] == 2
    assert account["fixed"] == {"device": 100, "host": 0, "recomputed": 100}
    assert account["dynamic"] == {"device": 0, "host": 0, "recomputed": 40}
    assert held["fixed"]["device"] == 100
    assert held["dynamic"]["device"] >= 40


def test_the_metrics_agree_with_the_state_and_name_no_client(
    server: Server, caller: Caller
) -> None:
    server.ask(caller.prompt(60), tagged(caller, 50, planner=0))
    server.ask(caller.prompt(60), {**tagged(caller, 50), "protocol_version": "2"})
    counters = settled(server)
    assert counters["fixed_recomputed_tokens"] >= 50
    text = server.http.get(METRICS, headers={"authorization": ""}).text
    found = series(text)
    assert found["step_updates_total", "applied"] == counters["step_updates"]
    for kind in ("fixed", "dynamic", "untagged"):
        for tier in ("device", "host", "recomputed"):
            counted = counters[f"{kind}_{tier}_tokens"]
            assert found["prompt_tokens_total", f"{kind}/{tier}"] == counted
    dropped = found["metadata_dropped_total", "protocol_version"]
    assert dropped == server.dropped("protocol_version")
    assert found["step_latency_seconds_count", ""] == counters["step_messages"]
    for name in ("h2d_bytes", "d2h_bytes", "skipped_passes"):
        assert found[f"{name}_total", ""] == counters[name]
    for group, tokens in server.state()["evicted_tokens"].items():
        assert found["evicted_tokens_total", group] == tokens
    assert found["clients", ""] == server.state()["sizes"]["clients"]
    for secret in (caller.id, caller.run, "planner", wire.shown_client(caller.id)):
        assert secret not in text


def settled(server: Server) -> dict[str, int]:
    """The counters, once no copy moves them and the metrics were copied since.

    Metrics follow once a second, while a backup may end after its call has been
    answered. The test's time limit is the bound.
    """
    counters = server.state()["counters"]
    while True:
        time.sleep(2.5)
        before, counters = counters, server.state()["counters"]
        if counters == before:
            return counters


def series(text: str) -> dict[tuple[str, str], float]:
    """(name, labels of KVFlow's own) -> value, of KVFlow's metrics."""
    ours = ("kind", "tier", "outcome", "reason", "priority_class")
    found = {}
    for line in text.splitlines():
        match = re.fullmatch(r"sglang:kvflow_(\w+)\{(.*)\} (\S+)", line)
        if match is None:
            continue
        labels = dict(re.findall(r'(\w+)="([^"]*)"', match[2]))
        key = "/".join(labels[name] for name in ours if name in labels)
        found[match[1], key] = float(match[3])
    return found


def test_top_shows_the_agents_of_a_real_server(server: Server, caller: Caller) -> None:
    server.ask(caller.prompt(60), tagged(caller, 50, planner=0, scribe=1))
    top = [sys.executable, "-m", "kvflow_server.cli", "top", server.url, "--once"]
    env = {**os.environ, "COLUMNS": "160"}
    refused = subprocess.run(top, env=env, capture_output=True, text=True)
    assert refused.returncode == 1
    assert "wants a key" in refused.stderr
    env["KVFLOW_API_KEY"] = str(server.key)
    shown = subprocess.run(top, env=env, capture_output=True, text=True, check=True)
    lines = shown.stdout.splitlines()
    (planner,) = [
        line
        for line in lines
        if wire.shown_client(caller.id) in line and "planner" in line
    ]
    assert " 50 " in planner
    assert any("scribe" in line for line in lines)


def test_a_message_of_several_clients_is_fine(server: Server, caller: Caller) -> None:
    other = StepUpdate(client=f"{caller.id}-2", run="r", seq=1, steps={"planner": 3})
    body = json.dumps(wire.to_envelope([caller.update({"planner": 0}), other]))
    assert server.http.post(wire.STEPS_PATH, content=body).status_code == 202
    assert server.agents(caller.id)["planner"]["steps"] == 0
    assert server.agents(other.client)["planner"]["steps"] == 3
