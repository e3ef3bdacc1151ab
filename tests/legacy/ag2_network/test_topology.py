"""What a channel declares of who is next."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from ag2.network import (
    AgentTarget,
    Always,
    ContextEquals,
    Finish,
    FromSpeaker,
    Handoff,
    RevertToInitiatorTarget,
    StayTarget,
    TerminateTarget,
    ToolCalled,
    Transition,
    TransitionDecision,
    TransitionGraph,
    register_target,
)

from kvflow_integrations import ag2_network as integration
from kvflow_sdk.errors import UnsupportedError
from kvflow_sdk.graph import START, AgentStepGraph

from .conftest import Network, opened_hub

NOWHERE = "http://127.0.0.1:9/v1"


def edges(graph: AgentStepGraph | None) -> set[str]:
    """``a>b``; with ? where the source may choose, with * where it is only assumed."""
    assert graph is not None
    return {
        f"{'START' if source == START else source}>{group.target}"
        f"{'?' * group.conditional}{'*' * group.unknown}"
        for group in graph.groups
        for source in group.sources
    }


async def declared(
    rules: list[tuple[Any, Any]], default: Any = None, **tools: Any
) -> set[str]:
    """Of a workflow of a person and a, b and c; names stand for ids in `rules`."""
    async with opened_hub() as hub, Network.on(hub, NOWHERE, "abc", tools) as network:
        for each in (part for rule in rules for part in rule):
            if isinstance(each, FromSpeaker | AgentTarget):
                each.agent_id = network.id(each.agent_id)
        transitions = [Transition(when=when, then=then) for when, then in rules]
        graph = TransitionGraph(
            network.id("user"), transitions, default or TerminateTarget()
        )
        return edges(integration.step_graph(await network.open(graph)))


async def test_a_condition_on_the_speaker_is_certain_and_hides_what_follows() -> None:
    found = await declared(
        [
            (FromSpeaker("a"), AgentTarget("b")),
            (Always(), AgentTarget("a")),
            (FromSpeaker("b"), AgentTarget("c")),
        ]
    )
    assert found == {"START>a", "a>b", "b>a"}


async def test_the_lowest_priority_is_asked_first() -> None:
    async with opened_hub() as hub, Network.on(hub, NOWHERE, "abc") as network:
        graph = TransitionGraph(
            network.id("user"),
            [
                Transition(Always(), AgentTarget(network.id("b")), priority=2),
                Transition(Always(), AgentTarget(network.id("a")), priority=1),
            ],
        )
        found = edges(integration.step_graph(await network.open(graph)))
    assert found == {"START>a", "a>a"}


async def test_a_condition_on_the_context_may_hold_or_not() -> None:
    found = await declared(
        [
            (FromSpeaker("user"), AgentTarget("a")),
            (ContextEquals("ready", True), AgentTarget("b")),
        ],
        StayTarget(),
    )
    assert found == {"START>a", "a>b?", "a>a?", "b>b"}


def to_b() -> str:
    """Give the word to b."""
    return "Done."


async def test_a_tool_is_called_only_by_an_agent_that_has_it() -> None:
    found = await declared(
        [
            (FromSpeaker("user"), AgentTarget("a")),
            (ToolCalled("to_b"), AgentTarget("b")),
        ],
        a=[to_b],
    )
    assert found == {"START>a", "a>b?"}


async def test_a_person_who_gets_the_word_is_a_step_without_a_prompt() -> None:
    async with opened_hub() as hub, Network.on(hub, NOWHERE, "ab") as network:
        graph = TransitionGraph.sequence([network.id(n) for n in ("user", "a", "b")])
        graph.default_target = RevertToInitiatorTarget()
        found = integration.step_graph(await network.open(graph))
    assert edges(found) == {"START>a", "a>b", "b>user", "user>a"}
    assert found is not None
    assert [node.name for node in found.nodes if not node.agent] == ["user"]


async def anywhere() -> Handoff:
    """Pick somebody."""
    return Handoff("c")


async def enough() -> Finish:
    """End it."""
    return Finish()


async def test_a_tool_that_returns_a_handoff_may_lead_to_everybody() -> None:
    rules = [(FromSpeaker("user"), AgentTarget("a")), (Always(), AgentTarget("b"))]
    found = await declared(rules, a=[anywhere])
    assert found >= {"START>a", "a>b?", "a>c?*", "a>user?*", "b>b"}


async def test_a_tool_that_returns_an_end_makes_a_certain_edge_a_choice() -> None:
    rules = [(FromSpeaker("user"), AgentTarget("a")), (Always(), AgentTarget("b"))]
    assert await declared(rules, a=[enough]) == {"START>a", "a>b?", "b>b"}


class Anyone:
    name: ClassVar[str] = "anyone"

    def resolve(self, state: Any, envelope: Any) -> TransitionDecision:
        return TransitionDecision(None)


async def test_a_target_of_the_users_own_may_be_anybody() -> None:
    register_target(Anyone)
    found = await declared(
        [(FromSpeaker("user"), AgentTarget("a")), (FromSpeaker("a"), Anyone())]
    )
    assert found == {"START>a", "a>a?*", "a>b?*", "a>c?*", "a>user?*", "user>a"}


@pytest.mark.parametrize(
    ("kind", "names", "wanted"),
    [
        ("discussion", "ab", {"START>a", "a>b", "b>user", "user>a"}),
        ("conversation", "a", {"START>a", "a>user", "user>a"}),
        ("consulting", "a", {"START>a"}),
    ],
)
async def test_other_channels_have_an_order_of_their_own(
    kind: str, names: str, wanted: set[str]
) -> None:
    async with opened_hub() as hub, Network.on(hub, NOWHERE, names) as network:
        channel = await network.user.open(type=kind, target=list(names))
        assert edges(integration.step_graph(channel)) == wanted
        assert edges(integration.step_graph(channel, "team")) == {
            ">".join(f"team|{n}" if n != "START" else n for n in edge.split(">"))
            for edge in wanted
        }


async def test_a_hub_declares_nothing_and_an_agent_alone_is_no_program() -> None:
    async with opened_hub() as hub, Network.on(hub, NOWHERE, "a") as network:
        assert integration.step_graph(hub) is None
        with pytest.raises(UnsupportedError, match="Hub"):
            integration.wrap(network.agents["a"].agent)
