"""The research team of the demo: its prompts, its graph, and how it is measured."""

from __future__ import annotations

import ast
import importlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage

from kvflow_integrations import langgraph as integration
from kvflow_integrations.conformance import Loopback, Seen
from kvflow_integrations.langgraph.topology import read_topology
from kvflow_sdk.client import Client
from kvflow_sdk.config import Config
from kvflow_sdk.distance import Frontier, steps_to_execution
from kvflow_sdk.graph import AgentStepGraph
from kvflow_sdk.openai import OpenAI

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
START: dict[str, Any] = {"question": "Why?", "notes": {}, "reviews": 0}


def example(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module(name)


@pytest.fixture
def team(monkeypatch: pytest.MonkeyPatch) -> Any:
    return example("research_team", monkeypatch)


def order(team: Any, *texts: str) -> list[str]:
    """The nodes in the order they ran, when the calls get `texts` one after another."""
    model = GenericFakeChatModel(messages=(AIMessage(text) for text in texts))
    return [node for chunk in team.build(model).stream(START) for node in chunk]


def step_graph(team: Any) -> AgentStepGraph:
    graph = read_topology(team.build(GenericFakeChatModel(messages=iter(()))), None)
    assert graph.graph is not None
    return graph.graph


def test_every_agent_has_a_long_prompt_of_its_own(team: Any) -> None:
    prompts = {agent: team.prompt(agent) for agent in team.AGENTS}
    assert len(prompts) == 10
    assert all(450 < len(text.split()) < 750 for text in prompts.values())
    for one, other in combinations(prompts.values(), 2):
        sentences = [set(" ".join(text.split()).split(". ")) for text in (one, other)]
        assert not sentences[0] & sentences[1]
        assert one[:20] != other[:20]


def test_the_strategist_waits_for_both_notes(team: Any) -> None:
    steps = steps_to_execution(
        step_graph(team),
        Frontier(executing=frozenset({"economist"}), fired=frozenset({"analyst"})),
    )
    assert steps["strategist"] == 1
    assert steps["editor"] == 7
    assert "planner" not in steps


def test_steps_at_the_start_count_the_whole_team(team: Any) -> None:
    steps = steps_to_execution(step_graph(team), Frontier(started=False))
    assert steps == {
        "planner": 1,
        "economist": 2,
        "analyst": 2,
        "strategist": 3,
        "risk_officer": 4,
        "writer": 5,
        "reviewer": 6,
        "compliance": 7,
        "explainer": 8,
        "editor": 9,
    }


def test_an_accepted_text_goes_on_at_once(team: Any) -> None:
    ran = order(team, *["a note"] * 6, "ACCEPT: it is right", *["a note"] * 3)
    assert sorted(ran) == sorted(team.AGENTS)
    assert ran[-3:] == ["compliance", "explainer", "editor"]


def test_a_text_is_sent_back_once_at_most(team: Any) -> None:
    ran = order(
        team,
        *["a note"] * 6,
        "REVISE: add the year",
        "the text with a year",
        "REVISE: add the month",
        *["a note"] * 3,
    )
    assert ran.count("writer") == ran.count("reviewer") == 2
    assert ran[-1] == "editor"


def test_the_program_calls_kvflow_only_to_wrap_the_graph() -> None:
    tree = ast.parse((EXAMPLES / "research_team.py").read_text())
    uses = [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("kvflow")
    ]
    assert uses == ["kvflow.wrap"]


class _OneAnswer(BaseHTTPRequestHandler):
    """SGLang's chunks of one answer, as its chat endpoint streams them."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        head = {
            "id": "1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "m",
        }
        delta = {"role": "assistant", "content": "forty-two"}
        usage = {"prompt_tokens": 100, "completion_tokens": 2, "total_tokens": 102}
        cached = {"device": 60, "host": 30}
        extension = {"cached_tokens_details": cached, "output_ids": [[4, 2]]}
        for chunk in (
            {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
            {"choices": [], "sglext": extension},
            {"choices": [], "usage": usage},
        ):
            self.wfile.write(f"data: {json.dumps(head | chunk)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _OneAnswer) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()
        thread.join()


def test_the_recorder_sees_where_the_tokens_of_each_call_came_from(
    team: Any, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = example("recorder", monkeypatch)
    recording = recorder.Recorder()
    chat = recorder.chat(server, max_tokens=2)
    team.build(chat).invoke(START, config={"callbacks": [recording]})
    calls = {call.agent: call for call in recording.calls}
    assert set(calls) == set(team.AGENTS)
    call = calls["editor"]
    assert (call.device, call.host, call.recomputed) == (60, 30, 10)
    assert (call.text, call.output_ids) == ("forty-two", (4, 2))
    assert 0 < call.ttft_s <= call.seconds
    assert call.steps == {}


def test_the_recorder_sees_the_steps_of_a_wrapped_graph(
    team: Any, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import kvflow_sdk as kvflow

    recorder = example("recorder", monkeypatch)
    recording = recorder.Recorder()
    with kvflow.Client() as client:
        app = kvflow.wrap(team.build(recorder.chat(server, 2)), client=client)
        app.invoke(START, config={"callbacks": [recording]})
        integration.unwrap(app)
    calls = {call.agent: call for call in recording.calls}
    assert calls["planner"].steps["editor"] == 8
    assert calls["compliance"].steps == {"compliance": 0, "explainer": 1, "editor": 2}


class _Team(Loopback):
    """Plays the four members of PEER: the first draft is not good enough."""

    def complete(self, request: Seen) -> tuple[int, str]:
        said = request.body["messages"][0]["content"]
        if said.startswith("You plan"):
            return 200, "1. one\n2. two"
        if said.startswith("You are the reviewer"):
            return 200, "Score: 80" if "second draft" in said else "Score: 40. Why?"
        return 200, "second draft" if "Review: Score" in said else "a text"


@pytest.fixture
def own_client(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The example's default client ends with the test."""
    ours = Client()
    monkeypatch.setattr("kvflow_sdk.client._default", ours)
    yield
    ours.close()


@pytest.mark.usefixtures("own_client")
def test_peer_answers_financial_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    finance = example("peer_finance", monkeypatch)
    with _Team() as server, OpenAI(base_url=server.url, api_key="none") as llm:
        answer = finance.team(llm).run("Is gold a hedge?")
        calls = [
            (update, seen.body["messages"][0]["content"])
            for seen in server.at("/completions")
            for update in seen.updates
        ]
    assert (answer.text, answer.score, answer.rounds) == ("second draft", 80, 2)
    order = [update.agent for update, _ in calls]
    assert order == ["planner", *["executor"] * 2, *["expresser", "reviewer"] * 2]
    for update, said in calls:
        assert update.agent is not None
        assert update.fixed is not None
        assert said[: update.fixed.chars] == finance.fixed_prompt(update.agent)


def test_peers_prompts_are_as_long_as_the_papers() -> None:
    for path in (EXAMPLES / "prompts" / "peer").iterdir():
        assert 250 < len(path.read_text().split()) < 350, path


@pytest.mark.usefixtures("own_client")
@pytest.mark.parametrize("there", [True, False])
def test_peer_runs_as_a_program_with_or_without_the_data_set(
    there: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    finance = example("peer_finance", monkeypatch)
    data = tmp_path / "FinQA.jsonl"
    monkeypatch.setattr(finance, "FINQA", data)
    if there:
        data.write_text('{"text": "Is copper dear?"}\n', encoding="utf-8")
    with _Team() as server:
        finance.main(server.url, 1)
    question = "Is copper dear?" if there else "How do falling interest rates"
    assert capsys.readouterr().out.startswith(question)


@pytest.mark.usefixtures("own_client")
def test_plain_functions_learn_who_follows_whom(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = example("plain_functions", monkeypatch)
    with Loopback(text="one\ntwo") as server:
        plain.main(server.url, ["Why?"] * 4)
        calls = [c.updates[0] for c in server.at("/completions")]
    assert capsys.readouterr().out == "one\ntwo\n" * 4
    per_run = len(calls) // 4
    first, *_, last = (calls[i : i + per_run] for i in range(0, len(calls), per_run))
    names = ["planner", "analyst", "analyst", "writer"]
    assert [call.agent for call in first] == [call.agent for call in last] == names
    assert first[0].steps == {"planner": 0}
    assert last[0].steps == {"planner": 0, "analyst": 1, "writer": 2}


def test_what_was_learned_survives_a_restart(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plain = example("plain_functions", monkeypatch)
    config = Config(learned=str(tmp_path / "transitions.json"))
    with Loopback(text="one") as server:
        for questions in (["Why?"] * 3, ["Why?"]):
            with Client(config=config) as client:
                monkeypatch.setattr("kvflow_sdk.client._default", client)
                plain.main(server.url, questions)
        last = server.at("/completions")[-3].updates[0]
    assert last.steps == {"planner": 0, "analyst": 1, "writer": 2}


@pytest.mark.parametrize("name", ["peer_finance", "plain_functions", "sgl_pipeline"])
def test_an_example_is_short(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) < 60
