"""agentUniverse's PEER template passes the conformance kit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from agentuniverse.agent.agent_manager import AgentManager
from agentuniverse.llm.llm_manager import LLMManager

from kvflow_integrations import agentuniverse as integration
from kvflow_integrations.conformance import (
    Conformance,
    Harness,
    Mode,
    Moment,
    Program,
    Scenario,
)
from kvflow_sdk.client import Client
from kvflow_sdk.graph import START

EDGES = (
    (START, "planner"),
    ("planner", "executor"),
    ("executor", "expresser"),
    ("expresser", "reviewer"),
)
BEFORE = {"planner": 1, "executor": 2, "expresser": 3, "reviewer": 4}
PLANNER = Moment(
    ("planner",), {"planner": 0, "executor": 1, "expresser": 2, "reviewer": 3}
)
EXECUTOR = {"executor": 0, "expresser": 1, "reviewer": 2}
EXPRESSER = Moment(("expresser",), {"expresser": 0, "reviewer": 1})
REVIEWER = Moment(("reviewer",), {"reviewer": 0, "expresser": 1})


def scenario(name: str, parts: int, verdicts: Sequence[bool]) -> Scenario:
    plan = {"thought": "", "framework": [f"part {n}" for n in range(parts)]}
    return Scenario(
        name=name,
        edges=EDGES,
        choices={"reviewer": ("expresser",)},
        script={
            "planner": (json.dumps(plan),),
            "reviewer": tuple(
                json.dumps({"is_useful": useful, "suggestion": "shorter"})
                for useful in verdicts
            ),
        },
        before=BEFORE,
        moments=(
            PLANNER,
            Moment(("executor",) * parts, EXECUTOR),
            *[EXPRESSER, REVIEWER] * len(verdicts),
        ),
    )


class AgentUniverseProgram(Program):
    def __init__(self, peer: Any) -> None:
        self.peer = peer
        self.graph = integration.step_graph(peer)

    def run(self) -> object:
        return self.peer.run(input="Why?")

    async def arun(self) -> object:
        return await self.peer.async_run(input="Why?")

    def unwrap(self) -> AgentUniverseProgram:
        return AgentUniverseProgram(integration.unwrap(self.peer))


class AgentUniverseHarness(Harness):
    modes = (Mode.SYNC, Mode.ASYNC)

    def scenarios(self) -> Sequence[Scenario]:
        return (
            scenario("one sub-task", 1, [True]),
            scenario("two sub-tasks and a second round", 2, [False, True]),
        )

    def build(
        self, scenario: Scenario, url: str, client: Client | None
    ) -> AgentUniverseProgram:
        LLMManager().get_instance_obj("stage_llm", new_instance=False).api_base = url
        peer = AgentManager().get_instance_obj("peer")
        if client is None:
            return AgentUniverseProgram(peer)
        return AgentUniverseProgram(integration.wrap(peer, client=client))


class TestAgentUniverse(Conformance):
    harness = AgentUniverseHarness()
