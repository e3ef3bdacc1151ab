"""A mark in characters becomes tokens that no continuation can change.

For every tokenizer and chat template: the boundary that the first call gives lies within
what all calls have in common, and not far before its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers_like import CORPUS, TEMPLATES, TOKENIZERS

from kvflow_sdk.wire import FixedMark

pytestmark = pytest.mark.sglang

SYSTEM = "You are a helpful planner. Answer in short sentences, never in verse."
HEAD = SYSTEM + "\n\nQuestion: "
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Search for the price of gold.",
            "parameters": {"type": "object", "properties": {}},
        },
    }
]
RESTS = ("What moves it?", "what", " spaced", "\nnewline", "1 digit", "'s", "国内", "")


class Serving:
    """Renders as SGLang's chat handler does: by the tokenizer's template."""

    def __init__(self, tokenizer: str, template: str) -> None:
        self.tokenizer = TOKENIZERS[tokenizer]()
        self.template = TEMPLATES[template]
        self.rendered = 0
        self.tokenizer_manager = SimpleNamespace(
            model_config=SimpleNamespace(is_multimodal=False), tokenizer=self.tokenizer
        )

    def _process_messages(self, request: Any, is_multimodal: bool) -> Any:
        self.rendered += 1
        text = self.tokenizer.apply_chat_template(
            [message.model_dump(exclude_none=True) for message in request.messages],
            tools=[tool.model_dump() for tool in request.tools or ()] or None,
            chat_template=self.template,
            add_generation_prompt=True,
            tokenize=False,
            **(request.chat_template_kwargs or {}),
        )
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        return SimpleNamespace(prompt_ids=ids)


@pytest.fixture(params=TOKENIZERS)
def tokenizer(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=TEMPLATES)
def serving(tokenizer: str, request: pytest.FixtureRequest) -> Serving:
    return Serving(tokenizer, str(request.param))


def chat(*messages: tuple[str, str], **fields: Any) -> Any:
    from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest

    known = [{"role": role, "content": content} for role, content in messages]
    return ChatCompletionRequest(messages=known, **fields)


def ids_of(serving: Serving, request: Any) -> list[int]:
    ids: list[int] = serving._process_messages(request, False).prompt_ids
    return ids


def boundary(
    serving: Serving, request: Any, mark: FixedMark | None = None, known: Any = None
) -> int:
    from kvflow_server.engine.boundary import (
        BoundaryCache,
        chat_boundary,
        default_mark,
    )

    mark = mark or default_mark(request)
    assert mark is not None
    found = chat_boundary(
        serving,
        request,
        lambda: ids_of(serving, request),
        mark,
        known or BoundaryCache(),
    )
    assert found is not None
    return found


def shared(prompts: Sequence[Sequence[int]]) -> int:
    """Tokens that all of them begin with."""
    length = min(map(len, prompts))
    return next((i for i in range(length) if len({p[i] for p in prompts}) > 1), length)


def text_before(serving: Serving, ids: Sequence[int], count: int) -> str:
    return str(serving.tokenizer.decode(ids[:count]))


def test_the_system_message_and_what_the_template_writes_behind_it_is_fixed(
    serving: Serving,
) -> None:
    calls = [chat(("system", SYSTEM), ("user", f"{rest}.")) for rest in RESTS]
    truth = shared([ids_of(serving, call) for call in calls])
    found = {boundary(serving, call) for call in calls}
    assert max(found) <= truth
    assert truth - min(found) <= 1


def test_tools_count_in_wherever_the_template_writes_them(serving: Serving) -> None:
    calls = [
        chat(("system", SYSTEM), ("user", rest), tools=TOOLS) for rest in ("one", "two")
    ]
    prompts = [ids_of(serving, call) for call in calls]
    found = boundary(serving, calls[0])
    assert found <= shared(prompts) <= found + 1
    if "tools" in serving.template:
        assert "price of gold" in text_before(serving, prompts[0], found)
    other = chat(("system", SYSTEM), ("user", "one"))
    assert boundary(serving, other) <= shared([prompts[0], ids_of(serving, other)]) or (
        "tools" in serving.template
    )


def test_a_mark_inside_a_message_is_safe_whichever_call_comes_first(
    serving: Serving,
) -> None:
    mark = FixedMark(message=0, chars=len(HEAD))
    calls = [chat(("user", HEAD + rest)) for rest in RESTS]
    truth = shared([ids_of(serving, call) for call in calls])
    for call in calls:
        found = boundary(serving, call, mark)
        assert found <= truth
        # The word before the mark may be given up, and nothing more.
        lost = ids_of(serving, call)[found:truth]
        assert len(serving.tokenizer.decode(lost).split()) <= 1


@pytest.mark.parametrize("head", ["See the exam", "Use <tool_", "我们的国", "a ("])
def test_a_word_that_goes_on_behind_the_mark_is_left_out(
    serving: Serving, head: str
) -> None:
    text = f"{SYSTEM} {head}"
    mark = FixedMark(message=0, chars=len(text))
    rests = ("ple", "ination", "call>", "内生产总值", "parenthesis)", "\t")
    calls = [chat(("user", text + rest)) for rest in rests]
    truth = shared([ids_of(serving, call) for call in calls])
    for call in calls:
        assert boundary(serving, call, mark) <= truth


@pytest.mark.parametrize("head", [SYSTEM, "Question", "See the exam", "我们的国"])
def test_a_mark_in_front_of_a_space_is_exact(serving: Serving, head: str) -> None:
    text = f"{SYSTEM} {head}"
    mark = FixedMark(message=0, chars=len(text))
    rests = (" What moves it?", " what", " 1 digit", " 国内", " (more)")
    calls = [chat(("user", text + rest)) for rest in rests]
    truth = shared([ids_of(serving, call) for call in calls])
    for call in calls:
        assert truth - 1 <= boundary(serving, call, mark) <= truth


def test_history_that_a_template_rewrites_is_no_part_of_the_boundary(
    serving: Serving,
) -> None:
    shot = (
        ("system", SYSTEM),
        ("user", "Question: gold?"),
        ("assistant", "<think>\nthoughts\n</think>\n\nAnswer: gold."),
    )
    calls = [chat(*shot, ("user", rest)) for rest in ("one", "two")]
    mark = FixedMark(message=2, chars=len(shot[2][1]))
    truth = shared([ids_of(serving, call) for call in calls])
    found = boundary(serving, calls[0], mark)
    assert truth - 1 <= found <= truth


def test_a_marked_answer_that_is_still_last_is_another_rendering(
    tokenizer: str,
) -> None:
    from kvflow_server.engine.boundary import BoundaryCache

    serving, known = Serving(tokenizer, "qwen-3"), BoundaryCache()
    think = "<think>\nthoughts\n</think>\n\nAnswer: "
    mark = FixedMark(message=1, chars=len(think))
    last = [chat(("user", "gold?"), ("assistant", think + r)) for r in ("one", "two")]
    more = [
        chat(("user", "gold?"), ("assistant", think + r), ("user", "why?"))
        for r in ("one", "two")
    ]
    for calls in (last, more):
        truth = shared([ids_of(serving, call) for call in calls])
        assert boundary(serving, calls[0], mark, known) <= truth


def test_the_day_in_the_prompt_s_head_is_before_the_boundary(tokenizer: str) -> None:
    serving = Serving(tokenizer, "llama-3")
    days = [{"date_string": "30 Nov 2026"}, {"date_string": "1 December 2026"}]
    for day in days:
        call = chat(("system", SYSTEM), ("user", "hi"), chat_template_kwargs=day)
        found = boundary(serving, call)
        assert day["date_string"] in text_before(serving, ids_of(serving, call), found)


def test_one_distinct_text_is_rendered_once(serving: Serving) -> None:
    from kvflow_server.engine.boundary import BoundaryCache

    known = BoundaryCache()
    boundary(serving, chat(("system", SYSTEM), ("user", "one")), known=known)
    before = serving.rendered
    boundary(serving, chat(("system", SYSTEM), ("user", "two")), known=known)
    assert serving.rendered == before
    boundary(serving, chat(("system", SYSTEM + "!"), ("user", "two")), known=known)
    assert serving.rendered > before


def test_a_request_that_the_template_refuses_has_no_boundary(tokenizer: str) -> None:
    serving = Serving(tokenizer, "gemma")
    call = chat(("user", "one"), ("assistant", "two"), ("user", "three"))
    assert boundary(serving, call, FixedMark(message=1, chars=3)) > 0
    wrong = chat(("assistant", "one"), ("user", "two"))
    from kvflow_server.engine.boundary import BoundaryCache, chat_boundary

    mark = FixedMark(message=0, chars=1)
    assert chat_boundary(serving, wrong, lambda: [1, 2], mark, BoundaryCache()) == 0


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_a_mark_on_a_plain_prompt_is_safe_wherever_it_stands(
    tokenizer: str, data: st.DataObject
) -> None:
    from kvflow_server.engine.boundary import BoundaryCache, text_boundary

    known = TOKENIZERS[tokenizer]()
    encode = known.encode
    text = "".join(data.draw(st.permutations(CORPUS[:7])))
    chars = data.draw(st.integers(1, len(text) - 1))
    head = text[:chars]
    rests = [text[chars:], *data.draw(st.lists(st.sampled_from(CORPUS), max_size=3))]
    rests += data.draw(st.lists(st.text(max_size=8), max_size=3))
    if rests[0][:1].isspace():
        # Where a word ends in one call, it does in those that it is compared with.
        rests = [rests[0][:1] + rest.lstrip() for rest in rests]
    prompts = [encode(head + rest) for rest in rests]
    truth = shared(prompts)
    found = text_boundary(known, head + rests[0], prompts[0], chars, BoundaryCache())
    assert found is not None
    assert found <= truth


def test_the_boundary_is_rounded_down_to_a_page() -> None:
    """Of 23 fixed tokens, pages of 16 hold 16."""
    from kvflow_server.engine.cache import KVFlowCache
    from kvflow_server.engine.hints import RequestTag
    from kvflow_server.policy.priority import Owner

    tag = RequestTag(Owner("c", "r", "a"), fixed_tokens=23)
    paged: Any = SimpleNamespace(page_size=16)
    assert KVFlowCache._boundary(paged, tag) == 16
