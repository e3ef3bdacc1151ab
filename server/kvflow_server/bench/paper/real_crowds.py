"""Figures 6 and 8 on a GPU: all the paper's workflows at once, nothing emulated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace

from rich.progress import Progress

from kvflow_server.bench.runner import Meter

from .fig6 import WARM_UPS, Block, CrowdEffort, CrowdResult, CrowdRun, Speed
from .real import TURNS, WHOLE, in_turn, serve_one, who
from .scale import Scale, Servers

__all__ = ["FULL", "QUICK", "run_crowds"]

QUICK = CrowdEffort(
    Scale(factor=1, seconds=1.0, most_output=WHOLE), blocks=2, rounds=1, emulated=False
)
FULL = replace(QUICK, blocks=6)


def run_crowds(
    crowds: Sequence[CrowdRun], progress: Progress, systems: Sequence[str]
) -> Iterator[CrowdResult]:
    """As `fig6.run_crowds`, one system at a time; `ideal` must be among them."""
    for crowd in crowds:
        one = _OneCrowd(crowd)
        for turn in range(TURNS):
            for name in in_turn(systems, turn):
                one.take_turn(progress, name, turn)
        yield one.result()


class _OneCrowd:
    def __init__(self, crowd: CrowdRun) -> None:
        self.crowd = crowd
        self._share = -(-crowd.effort.blocks // TURNS)
        self._servers = self._sized(crowd)
        self._blocks: dict[str, list[Block]] = {}
        self._counters: dict[str, dict[str, float]] = {}
        self._speed = (0.0, 0.0)

    @staticmethod
    def _sized(crowd: CrowdRun) -> Servers:
        """Host memory for all fixed prompts, and what two calls of each client add."""
        small = crowd.small
        tokens = crowd.agents * small.fixed + 2 * (small.dynamic + small.output)
        everything = crowd.concurrency * tokens
        return replace(crowd.servers(), everything_tokens=everything)

    def take_turn(self, progress: Progress, name: str, turn: int) -> None:
        """Start the system's server, run its share of the blocks, and end it."""
        crowd, share = self.crowd, self._share
        first = turn * (WARM_UPS + share)
        label = f"{crowd.crowded.testbed.name} {crowd.crowd} {name}"
        # The prompts of Figure 8 are short, and a testbed's pool holds nearly all.
        agents = who(name, crowd.calls) if crowd.alike else None
        with ExitStack() as stack:
            url = serve_one(stack, progress, name, self._servers)
            clients = crowd.clients(stack, name, url)
            task = progress.add_task(label, total=WARM_UPS + share)
            for index in range(first, first + WARM_UPS):
                crowd.block(clients, index, agents)
                progress.advance(task)
            if name == "ideal" and not turn:
                self._speed = Speed(crowd, url).measured()
            meter = Meter({name: clients[0]})
            for index in range(first + WARM_UPS, first + WARM_UPS + share):
                block = crowd.block(clients, index, agents)
                self._blocks.setdefault(name, []).append(block)
                progress.advance(task)
            workflows = share * crowd.effort.rounds * crowd.concurrency
            self._counters[name] = meter.per_workflow(workflows)[name]

    def result(self) -> CrowdResult:
        """The counters are those of the last turn."""
        crowd = self.crowd
        return CrowdResult(
            crowd.crowded,
            crowd.crowd,
            crowd.paper,
            crowd.concurrency,
            self._servers,
            crowd.crowded.testbed.costs,
            *self._speed,
            self._blocks,
            self._counters,
        )
