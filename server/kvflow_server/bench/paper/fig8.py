"""Figures 7 and 8: PEER on financial questions, many tasks at the same time.

Each task is an application of its own, with four prompts whose lengths follow the paper's
histogram (Figure 7), as do suffixes and answers. The graph is that of
`kvflow_integrations.peer`: now and then the reviewer sends a draft back.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console

from kvflow_integrations.peer import PEER
from kvflow_sdk.graph import AgentStepGraph
from kvflow_server.bench.progress import progress_bar
from kvflow_server.bench.single import terminable
from kvflow_server.bench.workload import Workload
from kvflow_server.emulated.tiny import SPECIAL_TOKENS, tokenizer
from kvflow_server.sim.peer import (
    AGENTS,
    dynamic_tokens,
    fixed_tokens,
    output_tokens,
)

from .fig6 import CrowdEffort, CrowdResult, CrowdRun, RunCrowds, run_crowds
from .scale import DIMS, Scale, Servers
from .testbeds import CROWDED, Crowd, Crowded, Mix

__all__ = ["PeerRun", "PeerWorkload", "for_peer", "measure_peer", "questions"]

MEAN = Mix(399, 306, 120)
"""Of the paper's histograms."""
SCALE = Scale(factor=4, seconds=1.0, most_output=64)
"""Tasks are of any length and fall out of step. So a decode step, for whose end a call
waits, must be no longer than can be helped."""
ROUNDS = 3
"""Tasks of each client in a block, one after the other, which make up for the luck of
each."""
SENT_BACK = 0.3
"""Of the drafts, once; the paper does not say."""


def for_peer(effort: CrowdEffort) -> CrowdEffort:
    """As thorough, with tasks in place of the workflows of Figure 6."""
    scale = SCALE if effort.emulated else effort.scale
    return replace(effort, scale=scale, rounds=ROUNDS)


def questions(path: Path) -> list[str]:
    """The field ``text`` of each line. Raises `ValueError` naming the file."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        found = [json.loads(line)["text"] for line in lines if line.strip()]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"--dataset {path}: {error}") from error
    if not found:
        raise ValueError(f"--dataset {path}: empty")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerWorkload(Workload):
    """The prompts of one task. All lengths are the paper's over `factor`."""

    factor: int
    asked: Sequence[Sequence[int]]
    """Tokens of questions; run and task choose one. A suffix begins with it."""

    @property
    def agents(self) -> list[str]:
        return list(AGENTS)

    @property
    def graph(self) -> AgentStepGraph | None:
        members = [lambda task: "" for _ in AGENTS]
        return PEER(*members).graph

    def order(self, run: int) -> Sequence[int]:
        back = self._draw("back", run).random() < SENT_BACK
        return (0, 1, 2, 3, 2, 3) if back else (0, 1, 2, 3)

    def mark(self, agent: int) -> int:
        return self._scaled(fixed_tokens(self._draw("lengths", agent)))

    def fixed(self, agent: int) -> list[int]:
        return self._tokens(self.mark(agent), "fixed", agent)

    def output(self, agent: int, run: int) -> int:
        return self._scaled(output_tokens(self._draw("output", agent, run)))

    def prompt(self, agent: int, run: int, call: int = 0) -> list[int]:
        length = self._scaled(dynamic_tokens(self._draw("suffix", agent, run, call)))
        question = self.asked[(self.settings.seed * 31 + run) % len(self.asked)]
        # At most half: the rest stands for plans, notes and drafts.
        told = list(question[: length // 2])
        rest = self._tokens(length - len(told), "dynamic", agent, run, call)
        return [*self.fixed(agent), *told, *rest]

    def _draw(self, *key: object) -> random.Random:
        return random.Random(f"{self.settings.seed}/{'/'.join(map(str, key))}")

    def _scaled(self, tokens: int) -> int:
        return max(1, round(tokens / self.factor))


class PeerRun(CrowdRun):
    """PEER tasks on servers of their own."""

    alike = False

    def __init__(
        self, crowded: Crowded, effort: CrowdEffort, asked: Sequence[str]
    ) -> None:
        tasks, paper = crowded.peer
        super().__init__(crowded, Crowd(MEAN, tasks), paper, effort)
        self.agents = len(AGENTS)
        self.calls = len(AGENTS) + 2
        self._questions = asked

    def servers(self) -> Servers:
        """Some tasks are longer than most."""
        mean = super().servers()
        return replace(mean, everything_tokens=int(1.3 * mean.everything_tokens))

    @cached_property
    def _asked(self) -> list[list[int]]:
        encode: Any = tokenizer(DIMS.vocab)
        return [encode(text)["input_ids"] for text in self._questions]

    def workload(self, seed: int) -> Workload:
        return PeerWorkload(
            self.settings(seed, self.small.output),
            DIMS.vocab,
            len(SPECIAL_TOKENS),
            factor=self.scale.factor,
            asked=self._asked,
        )


def measure_peer(
    effort: CrowdEffort,
    console: Console,
    names: Sequence[str],
    systems: Sequence[str],
    asked: Sequence[str],
    keep: Callable[[list[CrowdResult]], None] = lambda results: None,
    run: RunCrowds = run_crowds,
) -> list[CrowdResult]:
    """Run the tasks of each testbed, by `run`. Raises `ServerError`."""
    results: list[CrowdResult] = []
    with terminable(), progress_bar(console) as progress:
        for name in names:
            crowds = [PeerRun(CROWDED[name], effort, asked)]
            results += run(crowds, progress, systems)
            keep(results)
    return results
