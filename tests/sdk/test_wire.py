"""The wire format: golden files, bounds, and errors that name the field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvflow_sdk import wire
from kvflow_sdk.errors import WireError

GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("*.json"))
PLAIN = {"client": "c", "run": "r", "seq": 1}


def load(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def accepted() -> list[Any]:
    return [pytest.param(load(p), id=p.stem) for p in GOLDEN if "updates" in load(p)]


def refused() -> list[Any]:
    return [pytest.param(load(p), id=p.stem) for p in GOLDEN if "error" in load(p)]


def update(**fields: Any) -> wire.StepUpdate:
    return wire.StepUpdate(client="c", run="r", seq=1, **fields)


@pytest.mark.parametrize("golden", accepted())
def test_golden_envelope_parses_to_its_updates(golden: dict[str, Any]) -> None:
    updates = wire.parse_envelope(golden["envelope"])
    assert [msgspec.to_builtins(u) for u in updates] == golden["updates"]


@pytest.mark.parametrize("golden", accepted())
def test_golden_updates_are_written_as_the_same_payloads(
    golden: dict[str, Any],
) -> None:
    updates = wire.parse_envelope(golden["envelope"])
    written = wire.to_envelope(updates)
    assert [a["payload"] for a in written["actions"]] == golden["updates"]
    assert {a["action_type"] for a in written["actions"]} == {"kvflow.step"}


@pytest.mark.parametrize("golden", [g for g in accepted() if "header" in g.values[0]])
def test_golden_header_reads_as_its_envelope(golden: dict[str, Any]) -> None:
    assert wire.from_header(golden["header"]) == wire.parse_envelope(golden["envelope"])


@pytest.mark.parametrize("golden", refused())
def test_golden_error_names_the_field(golden: dict[str, Any]) -> None:
    with pytest.raises(WireError) as caught:
        wire.parse_envelope(golden["envelope"])
    assert caught.value.field == golden["error"]["field"]
    assert caught.value.status == golden["error"]["status"]
    for text in golden["error"]["mentions"]:
        assert text in str(caught.value)


@pytest.mark.parametrize(
    ("payload", "field"),
    [
        ({"run": "r", "seq": 1}, "client"),
        ({**PLAIN, "seq": "1"}, "seq"),
        ({**PLAIN, "seq": -1}, "seq"),
        ({**PLAIN, "seq": 10**5000}, "seq"),
        ({**PLAIN, "client": ""}, "client"),
        ({**PLAIN, "run": "r" * 257}, "run"),
        ({**PLAIN, "agent": ""}, "agent"),
        ({**PLAIN, "steps": {"a": 0, "b": "1"}}, "steps['b']"),
        ({**PLAIN, "steps": {"a": 0, "b": True}}, "steps['b']"),
        ({**PLAIN, "steps": {"a": 0, "b": 1_000_001}}, "steps['b']"),
        ({**PLAIN, "steps": {"": 0}}, "steps['']"),
        ({**PLAIN, "steps": [1]}, "steps"),
        ({**PLAIN, "likelihood": {"a": 1.5}}, "likelihood['a']"),
        ({**PLAIN, "likelihood": {"a": float("nan")}}, "likelihood['a']"),
        ({**PLAIN, "likelihood": {"a": None}}, "likelihood['a']"),
        ({**PLAIN, "fixed": {"message": 0}}, "fixed.message"),
        ({**PLAIN, "fixed": {"message": 0, "chars": -2}}, "fixed.chars"),
        ({**PLAIN, "fixed": {"message": 0, "chars": 1, "tokens": 1}}, "fixed"),
        ({**PLAIN, "fixed": {}}, "fixed"),
        ([], "body"),
    ],
)
def test_malformed_payload_is_refused_naming_the_field(
    payload: object, field: str
) -> None:
    with pytest.raises(WireError) as caught:
        wire.parse_payload(payload)
    assert caught.value.field == field
    assert caught.value.status == 400
    assert field in str(caught.value)


def test_ten_thousand_agents_are_too_many() -> None:
    steps = {f"agent-{i}": i for i in range(10_000)}
    with pytest.raises(WireError, match="10000 agents") as caught:
        wire.parse_payload({**PLAIN, "steps": steps})
    assert (caught.value.field, caught.value.status) == ("steps", 413)


def test_too_many_runs_in_one_message_are_refused() -> None:
    envelope = wire.to_envelope([update()] * (wire.MAX_RUNS_PER_MESSAGE + 1))
    with pytest.raises(WireError) as caught:
        wire.parse_envelope(envelope)
    assert (caught.value.field, caught.value.status) == ("actions", 413)


def test_action_without_a_type_is_refused_naming_it() -> None:
    envelope = wire.to_envelope([update()])
    del envelope["actions"][0]["action_type"]
    with pytest.raises(WireError) as caught:
        wire.parse_envelope(envelope)
    assert caught.value.field == "actions[0].action_type"


def test_messages_have_unique_ids() -> None:
    ids = {wire.to_envelope([update()])["message_id"] for _ in range(100)}
    assert len(ids) == 100


@pytest.mark.parametrize(
    ("answer", "usable"),
    [
        (wire.capabilities(), True),
        ({**wire.capabilities(), "protocol_version": "1.7", "more": 1}, True),
        ({**wire.capabilities(), "protocol_version": "2"}, False),
        ({**wire.capabilities(), "server": "other"}, False),
        ({"status": "ok"}, False),
        ({"error": {"message": "not found"}}, False),
        ("kvflow", False),
        (None, False),
    ],
)
def test_only_a_kvflow_capability_answer_counts(answer: object, usable: bool) -> None:
    assert wire.speaks_kvflow(answer) is usable
