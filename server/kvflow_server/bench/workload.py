"""Prompts of random tokens: nothing is shared by chance, everything is repeatable."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from kvflow_sdk.graph import AgentStepGraph

from .settings import Settings
from .wander import everyone, wander

__all__ = ["Workload"]


@dataclass(frozen=True, slots=True)
class Workload:
    """The prompts of an experiment, as token ids in ``[first_token, vocabulary)``."""

    settings: Settings
    vocabulary: int
    first_token: int
    """Ids below it are special tokens."""

    @property
    def agents(self) -> list[str]:
        return [f"agent-{index}" for index in range(self.settings.agents)]

    @property
    def graph(self) -> AgentStepGraph | None:
        """What the program declares; None: the order of its calls."""
        return everyone(self.agents) if self.settings.dynamic_graph else None

    def order(self, run: int) -> Sequence[int]:
        """The agents that a run calls, one after the other."""
        agents = self.settings.agents
        if not self.settings.dynamic_graph:
            return range(agents)
        return wander(agents, random.Random(f"{self.settings.seed}/order/{run}"))

    def fixed(self, agent: int) -> list[int]:
        return self._tokens(self.settings.fixed, "fixed", agent)

    def mark(self, agent: int) -> int:
        """Tokens of its fixed prompt."""
        return self.settings.fixed

    def output(self, agent: int, run: int) -> int:
        """Tokens that its call generates."""
        return self.settings.output

    def prompt(self, agent: int, run: int, call: int = 0) -> list[int]:
        """The fixed prompt and this run's suffix: the same for every system. `call`
        tells several calls of the agent in the run apart."""
        place = (agent, run, call) if call else (agent, run)
        stamp = self._tokens(self.settings.stamp, "stamp", *place)
        suffix = self._tokens(self.settings.dynamic, "dynamic", *place)
        return stamp + self.fixed(agent) + suffix

    def _tokens(self, count: int, *key: object) -> list[int]:
        # A string seeds by its SHA-512, the same on every machine and in every process.
        draw = random.Random(f"{self.settings.seed}/{'/'.join(map(str, key))}")
        return draw.choices(range(self.first_token, self.vocabulary), k=count)
