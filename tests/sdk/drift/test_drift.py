"""Where prompts part, what stands there, and what it costs."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvflow_sdk.drift import (
    DriftKind,
    RecordedRequest,
    Tokens,
    analyse,
    classify,
    differences,
    first_difference,
    read_requests,
)
from kvflow_sdk.drift.spans import common_prefix, shared_after

_spec = importlib.util.spec_from_file_location(
    "drift_corpus", Path(__file__).with_name("corpus.py")
)
assert _spec is not None
assert _spec.loader is not None
corpus = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(corpus)

RULES = "You are a careful analyst. Answer in three sentences and cite figures. " * 4


def chat(*texts: str, **more: object) -> RecordedRequest:
    roles = ("system", "user")
    messages = [
        {"role": role, "content": text}
        for role, text in zip(roles, texts, strict=False)
    ]
    return RecordedRequest({"messages": messages, **more}, agent="a")


def test_the_corpus_is_large_enough_and_named_right_in_95_percent() -> None:
    wrong = []
    for case in corpus.CASES:
        found = first_difference(*case.texts)
        assert found is not None
        if classify(found).value != case.kind:
            wrong.append((case.kind, classify(found).value, case.text[:60]))
    assert len(corpus.CASES) >= 40
    assert len(wrong) <= 0.05 * len(corpus.CASES), wrong


@pytest.mark.parametrize("number", range(len(corpus.CASES)))
def test_every_case_is_located_to_the_character_and_the_token(number: int) -> None:
    old, new = corpus.CASES[number].texts
    found = first_difference(old, new)
    assert found is not None
    assert old[: found.at] == new[: found.at]
    assert old[found.at] != new[found.at]

    def words(text: str) -> list[int]:
        """A tokenizer of three bytes a token: the difference is mostly inside one."""
        raw = text.encode()
        return [hash(raw[n : n + 3]) for n in range(0, len(raw), 3)]

    token = Tokens(words).before(found)
    a, b = words(old), words(new)
    assert a[:token] == b[:token]
    assert a[token] != b[token]


@given(st.text(alphabet="ab\n", max_size=30), st.text(alphabet="ab\n", max_size=30))
def test_the_common_prefix_is_the_longest(old: str, new: str) -> None:
    length = common_prefix(old, new)
    assert old[:length] == new[:length]
    assert length in (len(old), len(new)) or old[length] != new[length]


@given(st.text(max_size=40), st.text(max_size=40))
def test_any_two_texts_are_compared_without_an_error(old: str, new: str) -> None:
    for difference in differences(old, new):
        assert classify(difference) in DriftKind
        shared = shared_after(difference.old, difference.new, difference.at)
        assert 0 <= shared <= len(difference.old) - difference.at


def test_a_conversation_that_grows_does_not_drift() -> None:
    report = analyse([chat(RULES, "one"), chat(RULES, "one, two")])
    assert report.drifting == []


def test_a_new_question_at_the_end_is_no_drift() -> None:
    (agent,) = analyse([chat(RULES, "Why gold?"), chat(RULES, "Why oil?")]).agents
    assert agent.drifts == []
    assert agent.fixed_tokens == len(RULES + "\nWhy ") // 4


def test_a_timestamp_at_the_head_is_named_with_its_place_and_its_cost() -> None:
    calls = [chat(f"Now: 2026-11-30 14:03:{n:02}. {RULES}", "Why?") for n in range(3)]
    (agent,) = analyse(calls).agents
    (drift,) = agent.drifts
    assert drift.kind is DriftKind.TIMESTAMP
    assert (drift.part, drift.chars) == ("message 0 (system)", 23)
    assert drift.calls == 2
    assert drift.recomputed // 2 >= len(RULES) // 4
    assert agent.savable_tokens >= len(RULES) // 4


def test_two_things_that_drift_are_both_named_and_counted_once() -> None:
    calls = [
        chat(
            f"Request #{n}. {RULES} Session {'ab' * n}1f{n}c0ffee{n}d. {RULES}", "Why?"
        )
        for n in (1, 2)
    ]
    (agent,) = analyse(calls).agents
    assert [d.kind for d in agent.drifts] == [DriftKind.COUNTER, DriftKind.UUID]
    assert agent.drifts[1].recomputed == 0


def test_reordered_tools_are_found_in_the_tools() -> None:
    tools = [
        {"type": "function", "function": {"name": name, "description": RULES}}
        for name in ("search", "sum")
    ]
    (agent,) = analyse(
        [chat(RULES, "?", tools=tools), chat(RULES, "?", tools=tools[::-1])]
    ).agents
    assert [(d.kind, d.part) for d in agent.drifts] == [
        (DriftKind.REORDERED_TOOLS, "tools")
    ]


def test_calls_without_a_name_are_grouped_by_what_they_share() -> None:
    other = "Du bist ein Dichter und reimst in Jamben, immer acht Silben je Zeile. " * 4
    texts = [
        f"{day} {body}" for day in ("Monday", "Tuesday") for body in (RULES, other)
    ]
    report = analyse(RecordedRequest({"prompt": text}) for text in texts)
    assert [agent.calls for agent in report.agents] == [2, 2]
    kinds = [drift.kind for agent in report.agents for drift in agent.drifts]
    assert kinds == [DriftKind.DATE] * 2


def test_lines_of_every_known_form_are_read() -> None:
    body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]}
    lines = [
        json.dumps(body),
        "",
        json.dumps({"custom_id": "1", "method": "POST", "body": body}),
        json.dumps({"agent": "planner", "body": {"prompt": "x"}}),
    ]
    requests = list(read_requests(lines))
    assert [request.agent for request in requests] == [None, None, "planner"]
    assert [request.prompt().text for request in requests] == ["x\n", "x\n", "x"]


@pytest.mark.parametrize("line", ["{", "[]", '{"model": "m"}', '{"body": 3}'])
def test_a_bad_line_is_named_by_its_number(line: str) -> None:
    with pytest.raises(ValueError, match="line 2"):
        list(read_requests(['{"prompt": "x"}', line]))
