"""What of an agentUniverse PEER agent is read, marked, and put back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from agentuniverse.agent.agent import Agent
from agentuniverse.agent.agent_manager import AgentManager
from agentuniverse.agent.template.executing_agent_template import ExecutingAgentTemplate
from agentuniverse.llm.llm_manager import LLMManager

import kvflow_sdk as kvflow
from kvflow_integrations import agentuniverse as integration
from kvflow_integrations.conformance import Loopback, Seen


class Members(Loopback):
    """Answers as the four members would."""

    def complete(self, request: Seen) -> tuple[int, str]:
        said = request.body["messages"][0]["content"]
        if "agent planner" in said:
            return 200, '{"thought": "", "framework": ["one"]}'
        if "agent reviewer" in said:
            return 200, '{"is_useful": true, "suggestion": ""}'
        return 200, "said"


@pytest.fixture
def server() -> Iterator[Members]:
    with Members() as server:
        llm = LLMManager().get_instance_obj("stage_llm", new_instance=False)
        llm.api_base = server.url
        yield server


@pytest.fixture
def peer() -> Any:
    return AgentManager().get_instance_obj("peer")


def back_edges(peer: Any) -> set[str]:
    graph = integration.step_graph(peer)
    return {group.target for group in graph.groups if group.conditional}


@pytest.mark.parametrize(
    ("jump_step", "target"),
    [
        ("planning", "planner"),
        ("executing", "executor"),
        ("expressing", "expresser"),
        ("reviewing", "reviewer"),
    ],
)
def test_the_review_leads_back_to_the_jump_step(
    peer: Any, jump_step: str, target: str
) -> None:
    peer.jump_step = jump_step
    assert back_edges(peer) == {target}


def test_one_round_leads_nowhere(peer: Any) -> None:
    peer.retry_count = 1
    assert back_edges(peer) == set()


def test_a_member_that_is_switched_off_is_no_node(peer: Any) -> None:
    peer.reviewing_agent_name = ""
    graph = integration.step_graph(peer)
    assert [node.name for node in graph.nodes] == ["planner", "executor", "expresser"]
    assert back_edges(peer) == set()


def test_every_prompt_is_marked_where_its_first_placeholder_stands(
    peer: Any, server: Members
) -> None:
    with kvflow.Client(server.root) as client:
        tracked = integration.wrap(peer, client=client)
        for question in ("Why?", "How so?"):
            tracked.run(input=question)
        integration.unwrap(tracked)
    fixed: dict[str, set[str]] = {}
    for call in server.at("/completions"):
        (update,) = call.updates
        assert update.fixed is not None
        message = call.body["messages"][update.fixed.message]
        assert message["role"] == "user"
        text = message["content"][: update.fixed.chars]
        fixed.setdefault(str(update.agent), set()).add(text)
    # The braces of the template are written twice.
    line = "These lines are the same in every call. A brace is { and }.\n"
    assert fixed == {
        name: {line} for name in ("planner", "executor", "expresser", "reviewer")
    }


def test_names_are_prefixed_when_a_program_has_several_teams(peer: Any) -> None:
    tracked = integration.wrap(peer, name="bonds")
    names = [node.name for node in integration.step_graph(tracked).nodes]
    integration.unwrap(tracked)
    assert names == [
        f"bonds|{n}" for n in ("planner", "executor", "expresser", "reviewer")
    ]


def test_unwrapping_restores_every_attribute(peer: Any) -> None:
    def everything() -> list[dict[str, Any]]:
        return [dict(vars(peer)), dict(vars(Agent)), dict(vars(ExecutingAgentTemplate))]

    before = everything()
    tracked = integration.wrap(peer)
    assert type(tracked) is not type(peer)
    assert isinstance(tracked, type(peer))
    assert vars(Agent) != before[1]
    assert integration.unwrap(tracked) is peer
    assert everything() == before


def test_what_is_no_peer_agent_is_refused() -> None:
    with pytest.raises(kvflow.UnsupportedError, match="PEER"):
        integration.wrap(AgentManager().get_instance_obj("planner"))


def test_the_front_door_knows_peer_agents(peer: Any) -> None:
    tracked = kvflow.wrap(peer)
    assert integration.unwrap(tracked) is peer
