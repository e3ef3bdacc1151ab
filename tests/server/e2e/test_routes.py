"""The HTTP side of KVFlow: what goes in by each route, seen in the state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import openai
import pytest

from kvflow_sdk import wire
from kvflow_sdk.wire import FixedMark
from kvflow_server.emulated.tiny import tokenizer

if TYPE_CHECKING:
    from conftest import Caller, Server

pytestmark = [pytest.mark.sglang, pytest.mark.server]

CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"
VOCAB = 2048


def chat(*messages: tuple[str, Any], **settings: Any) -> dict[str, Any]:
    return {
        "model": "any",
        "messages": [{"role": role, "content": text} for role, text in messages],
        "max_tokens": 4,
        "temperature": 0,
        **settings,
    }


def completion(prompt: Any, **settings: Any) -> dict[str, Any]:
    return {
        "model": "any",
        "prompt": prompt,
        "max_tokens": 4,
        "temperature": 0,
        **settings,
    }


def header(caller: Caller, fixed: FixedMark | None = None) -> dict[str, str]:
    """As the agent `planner` sends it."""
    update = caller.update({"planner": 0, "writer": 1}, agent="planner", fixed=fixed)
    return {wire.HEADER: wire.to_header(update)}


def count(text: str) -> int:
    """Tokens of `text`; of a chat, as the model's template writes it."""
    return len(tokenizer(VOCAB).encode(text))


def fixed_prompts(server: Server, caller: Caller) -> list[dict[str, int]]:
    prompts: list[dict[str, int]] = server.agents(caller.id)["planner"]["prompts"]
    return prompts


def fixed_tokens(server: Server, caller: Caller) -> list[int]:
    return [prompt["tokens"] for prompt in fixed_prompts(server, caller)]


def test_the_probe_is_answered_without_a_key(server: Server) -> None:
    anonymous = {"authorization": ""}
    found = server.http.get(wire.CAPABILITIES_PATH, headers=anonymous)
    assert found.status_code == 200
    assert wire.speaks_kvflow(found.json())
    assert found.json().keys() > wire.capabilities().keys()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/kvflow/v1/state"),
        ("POST", "/kvflow/v1/steps"),
        ("POST", "/generate"),
        ("GET", "/kvflow/v1/capabilities/"),
    ],
)
def test_everything_else_needs_the_key(server: Server, method: str, path: str) -> None:
    answer = server.http.request(method, path, headers={"authorization": ""})
    assert answer.status_code == 401


def test_steps_out_of_band_are_accepted_and_reported(
    server: Server, caller: Caller
) -> None:
    assert server.send(caller.update({"planner": 0, "writer": 1})).status_code == 202
    known = server.client(caller.id)
    assert known["runs"] == {caller.run: {"planner": 0, "writer": 1}}
    assert [known["agents"][name]["steps"] for name in ("planner", "writer")] == [0, 1]


def test_one_message_may_carry_several_runs(server: Server, caller: Caller) -> None:
    first = caller.update({"planner": 3})
    caller.run += "-2"
    server.send(first, caller.update({"planner": 1}))
    assert len(server.client(caller.id)["runs"]) == 2
    assert server.agents(caller.id)["planner"]["steps"] == 1


def test_the_final_update_ends_the_run(server: Server, caller: Caller) -> None:
    server.send(caller.update({"planner": 0}))
    server.send(caller.update(final=True))
    assert server.client(caller.id)["runs"] == {}
    late = caller.update({"planner": 0})
    server.send(late)
    assert server.client(caller.id)["runs"] == {}


def test_a_tagged_generate_call_registers_its_agent_and_fixed_prompt(
    server: Server, caller: Caller
) -> None:
    update = caller.update(
        {"planner": 0, "writer": 1}, agent="planner", fixed=FixedMark(tokens=96)
    )
    server.ask(caller.prompt(120), wire.to_envelope([update]))
    known = server.client(caller.id)
    assert known["runs"] == {caller.run: {"planner": 0, "writer": 1}}
    (prompt,) = known["agents"]["planner"]["prompts"]
    assert prompt.pop("tokens") == 96
    assert sum(prompt.values()) == 96
    assert known["agents"]["writer"]["prompts"] == []


def test_one_agent_may_have_two_fixed_prompts(server: Server, caller: Caller) -> None:
    for tokens in (96, 64):
        update = caller.update(
            {"planner": 0}, agent="planner", fixed=FixedMark(tokens=tokens)
        )
        server.ask(caller.prompt(120), wire.to_envelope([update]))
    assert sorted(fixed_tokens(server, caller)) == [64, 96]


def test_the_same_fixed_prompt_is_registered_once(
    server: Server, caller: Caller
) -> None:
    fixed = caller.prompt(96)
    for _ in range(3):
        update = caller.update(
            {"planner": 0}, agent="planner", fixed=FixedMark(tokens=96)
        )
        server.ask(fixed + caller.prompt(20), wire.to_envelope([update]))
    assert fixed_tokens(server, caller) == [96]


def test_a_character_mark_on_generate_counts_in_the_text(
    server: Server, caller: Caller
) -> None:
    fixed, rest = caller.text(40), caller.text(5)
    mark = FixedMark(message=0, chars=len(fixed))
    update = caller.update({"planner": 0}, agent="planner", fixed=mark)
    body = {
        "text": f"{fixed} {rest}",
        "sampling_params": {"temperature": 0, "max_new_tokens": 2},
        "kv_hints": wire.to_envelope([update]),
    }
    server.json("/generate", body)
    assert fixed_tokens(server, caller) == [count(fixed)]


def test_a_character_mark_on_a_completion_counts_in_the_prompt(
    server: Server, caller: Caller
) -> None:
    fixed, rest = caller.text(40), caller.text(5)
    mark = FixedMark(message=0, chars=len(fixed))
    server.json(COMPLETION, completion(f"{fixed} {rest}"), header(caller, mark))
    assert fixed_tokens(server, caller) == [count(fixed)]


def test_every_prompt_of_a_list_is_marked(server: Server, caller: Caller) -> None:
    fixed = caller.text(40)
    prompts = [f"{fixed} {caller.text(5)}", f"{fixed} {caller.text(5)}"]
    mark = FixedMark(message=0, chars=len(fixed))
    found = server.json(COMPLETION, completion(prompts), header(caller, mark))
    assert len(found["choices"]) == 2
    assert fixed_tokens(server, caller) == [count(fixed)]


def test_without_a_mark_a_chat_is_fixed_up_to_where_the_user_s_text_begins(
    server: Server, caller: Caller
) -> None:
    system = caller.text(40)
    body = chat(("system", system), ("user", caller.text(5)))
    server.json(CHAT, body, header(caller))
    start = f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n"
    assert fixed_tokens(server, caller) == [count(start)]


def test_a_chat_without_system_message_or_mark_has_no_fixed_prompt(
    server: Server, caller: Caller
) -> None:
    server.json(CHAT, chat(("user", caller.text(20))), header(caller))
    agent = server.agents(caller.id)["planner"]
    assert (agent["steps"], agent["prompts"]) == (0, [])


def test_a_mark_may_lie_inside_a_user_message(server: Server, caller: Caller) -> None:
    system, fixed, rest = caller.text(10), caller.text(30), caller.text(5)
    body = chat(("system", system), ("user", f"{fixed} {rest}"))
    server.json(CHAT, body, header(caller, FixedMark(message=1, chars=len(fixed))))
    start = f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{fixed}"
    assert fixed_tokens(server, caller) == [count(start)]


def test_a_mark_counts_over_all_text_parts_of_a_message(
    server: Server, caller: Caller
) -> None:
    first, second = caller.text(20), " " + caller.text(20)
    parts = [{"type": "text", "text": text} for text in (first, second)]
    mark = FixedMark(message=0, chars=len(first) + len(second))
    body = chat(("user", [*parts, {"type": "text", "text": " " + caller.text(5)}]))
    expected = server.json(CHAT, body)["usage"]["prompt_tokens"]
    server.json(CHAT, body, header(caller, mark))
    (tokens,) = fixed_tokens(server, caller)
    assert 0 < tokens < expected
    assert tokens >= count(first) + count(second)


def test_a_stream_carries_the_same_answer_and_is_tagged(
    server: Server, truth: Server, caller: Caller
) -> None:
    body = chat(("system", caller.text(40)), ("user", caller.text(5)))
    with (
        openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.key) as client,
        client.chat.completions.create(
            **body, stream=True, extra_headers=header(caller)
        ) as chunks,
    ):
        said = "".join(c.choices[0].delta.content or "" for c in chunks)
    assert said == truth.json(CHAT, body)["choices"][0]["message"]["content"]
    assert len(fixed_prompts(server, caller)) == 1


def test_two_choices_are_answered_and_tagged_once(
    server: Server, truth: Server, caller: Caller
) -> None:
    body = chat(("system", caller.text(40)), ("user", caller.text(5)), n=2)
    choices = server.json(CHAT, body, header(caller))["choices"]
    right = truth.json(CHAT, body)["choices"]
    assert [c["message"] for c in choices] == [c["message"] for c in right]
    assert len(choices) == 2
    assert len(fixed_prompts(server, caller)) == 1


def test_a_plain_openai_client_is_served_as_by_stock(
    server: Server, truth: Server, caller: Caller
) -> None:
    body = chat(("system", caller.text(40)), ("user", caller.text(5)))
    answers = []
    for where in (server, truth):
        with openai.OpenAI(
            base_url=f"{where.url}/v1", api_key=where.key or "none"
        ) as client:
            answers.append(client.chat.completions.create(**body))
    assert answers[0].choices == answers[1].choices
    assert answers[0].usage.prompt_tokens == answers[1].usage.prompt_tokens


def test_hints_of_another_kind_are_nobodys_mistake(
    server: Server, truth: Server, caller: Caller
) -> None:
    before = server.state()["dropped_metadata"]
    envelope = wire.to_envelope([caller.update({"planner": 0})])
    envelope["actions"][0] |= {"action_type": "other.thing", "payload": {"client": 7}}
    prompt = caller.prompt(40)
    assert server.ask(prompt, envelope).agrees_with(truth.ask(prompt))
    assert server.state()["dropped_metadata"] == before
    assert not server.client(caller.id)
