"""Of a prompt's text nothing leaves the process but in the call itself."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import kvflow_sdk as kvflow
from kvflow_sdk import wire

if TYPE_CHECKING:
    import pytest
    from conftest import Loopback

WORDS = ("Zanzibarquartz", "Mirabellentraum", "Quokkaharvest", "Obsidianwaltz")
"""Of the rules, the user's text, a tool and a prompt that drifts."""


def _asked(number: int) -> dict[str, Any]:
    rules, text, tool, stamp = WORDS
    described = {"name": "t", "description": tool, "parameters": {"type": "object"}}
    return {
        "model": "m",
        "messages": [
            {"role": "system", "content": f"{stamp} {number}: " + f"{rules} " * 40},
            {"role": "user", "content": f"{text} " * 20 + f"{number}"},
        ],
        "tools": [{"type": "function", "function": described}],
    }


def test_what_is_sent_beside_the_calls_holds_no_word_of_them(
    server: Loopback,
    default_client: kvflow.Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KVFLOW_DRIFT_WARNINGS", "0")
    with kvflow.OpenAI(base_url=server.url, api_key="k", max_retries=0) as client:

        @kvflow.agent("planner")
        def plan(number: int) -> None:
            client.chat.completions.create(**_asked(number))

        with kvflow.workflow():
            for number in range(6):
                plan(number)
    assert default_client.flush(10)
    calls = server.at("/completions")
    assert len(calls) == 6
    assert all(word in json.dumps(call.body) for call in calls for word in WORDS)
    beside = [request for request in server.seen if request not in calls]
    assert any(request.path.endswith(wire.STEPS_PATH) for request in beside)
    said = [json.dumps([request.path, request.body]) for request in beside]
    for request in server.seen:
        said.append(json.dumps(request.headers))
        said += [repr(update) for update in request.updates]
    assert [w for w in WORDS for text in said if w in text] == []
