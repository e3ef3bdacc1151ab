"""Prompts of random tokens: nothing is shared by chance, everything is repeatable."""

from __future__ import annotations

import random
from dataclasses import dataclass

from .settings import Settings

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

    def fixed(self, agent: int) -> list[int]:
        return self._tokens(self.settings.fixed, "fixed", agent)

    def prompt(self, agent: int, run: int) -> list[int]:
        """The fixed prompt and this run's suffix: the same for every system."""
        stamp = self._tokens(self.settings.stamp, "stamp", agent, run)
        suffix = self._tokens(self.settings.dynamic, "dynamic", agent, run)
        return stamp + self.fixed(agent) + suffix

    def _tokens(self, count: int, *key: object) -> list[int]:
        # A string seeds by its SHA-512, the same on every machine and in every process.
        draw = random.Random(f"{self.settings.seed}/{'/'.join(map(str, key))}")
        return draw.choices(range(self.first_token, self.vocabulary), k=count)
