"""Figure 6: many workflows at the same time, each with agents and prompts of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import Progress

from kvflow_server.bench.progress import progress_bar, rotated
from kvflow_server.bench.results import Workflow
from kvflow_server.bench.runner import Runner
from kvflow_server.bench.settings import Settings
from kvflow_server.bench.single import start_all, terminable
from kvflow_server.bench.systems import SYSTEMS, start
from kvflow_server.bench.workload import Workload
from kvflow_server.emulated.tiny import SPECIAL_TOKENS, TinyDims, tiny_model

from .scale import AGENTS, Servers, scaled
from .testbeds import CROWDED, Crowd, Crowded, Paper

__all__ = [
    "FULL",
    "QUICK",
    "SYSTEMS_OF_FIG6",
    "Block",
    "CrowdEffort",
    "CrowdResult",
    "CrowdRun",
    "measure",
]

SYSTEMS_OF_FIG6 = ("ideal", "recompute", "hicache", "kvflow")
DIMS = {
    "h100": TinyDims(kv_heads=1, vocab=65_536, layers=2),
    "h100-8b": TinyDims(kv_heads=1, vocab=49_152, layers=7),
}
"""With these prefill and decoding stand in about the testbed's proportion."""


@dataclass(frozen=True, slots=True)
class CrowdEffort:
    """How small, and how often."""

    factor: int
    """Every token count of the paper is divided by it."""
    blocks: int
    """Measured blocks of each system, which take turns."""
    rounds: int
    """Workflows that each client runs in a block, one after the other."""


QUICK = CrowdEffort(factor=16, blocks=4, rounds=1)
FULL = CrowdEffort(factor=16, blocks=7, rounds=2)


@dataclass(frozen=True, slots=True)
class Block:
    """All clients of one system, from the first request to the last answer."""

    seconds: float
    workflows: tuple[Workflow, ...]

    @property
    def throughput(self) -> float:
        """Workflows per second."""
        return len(self.workflows) / self.seconds


@dataclass(frozen=True, slots=True)
class CrowdResult:
    """Blocks at one index ran the same prompts on every system."""

    crowded: Crowded
    crowd: Crowd
    paper: Paper
    concurrency: int
    """On the emulated accelerator."""
    servers: Servers
    prefill_s: float
    """Of all clients' fixed prompts of one agent, measured."""
    step_s: float
    """Of a decode step with all clients in the batch, measured."""
    blocks: dict[str, list[Block]] = field(default_factory=dict)
    counters: dict[str, dict[str, float]] = field(default_factory=dict)
    """The server's own, per workflow."""


def measure(
    effort: CrowdEffort,
    console: Console,
    names: Sequence[str] = tuple(CROWDED),
    systems: Sequence[str] = SYSTEMS_OF_FIG6,
    keep: Callable[[list[CrowdResult]], None] = lambda results: None,
) -> list[CrowdResult]:
    """Run all crowds, each on servers of its own. Raises `ServerError`.

    `keep` is handed all there is after every crowd.
    """
    results: list[CrowdResult] = []
    with terminable(), progress_bar(console) as progress:
        for name in names:
            for crowd, paper in CROWDED[name].fig6.items():
                with ExitStack() as stack:
                    one = CrowdRun(CROWDED[name], crowd, paper, effort)
                    results.append(one.run(stack, progress, systems))
                    keep(results)
    return results


class CrowdRun:
    """One crowd on servers of its own."""

    def __init__(
        self, crowded: Crowded, crowd: Crowd, paper: Paper, effort: CrowdEffort
    ) -> None:
        self.crowded = crowded
        self.crowd = crowd
        self.effort = effort
        self.small = scaled(crowd.mix, effort.factor)
        self.concurrency = crowd.concurrency // crowded.thinned
        self.dims = DIMS[crowded.testbed.name]
        self.pool = crowded.testbed.pool_tokens // effort.factor // crowded.thinned
        self.model = str(tiny_model(self.dims))
        self.agents = self.calls = AGENTS
        self.paper = paper

    def run(
        self, stack: ExitStack, progress: Progress, systems: Sequence[str]
    ) -> CrowdResult:
        label = f"{self.crowded.testbed.name} {self.crowd}"
        ideal = {"ideal": start(SYSTEMS["ideal"], self._servers(1.0), self.model)}
        start_all(stack, progress, ideal)
        url = ideal["ideal"].url
        prefill, step = self._speed(url)
        scale = prefill / self._prefill_of_testbed()
        servers = self._servers(self._gbps(scale), scale)
        rest = {
            name: start(SYSTEMS[name], servers, self.model)
            for name in systems
            if name != "ideal"
        }
        start_all(stack, progress, rest)
        result = CrowdResult(
            self.crowded,
            self.crowd,
            self.paper,
            self.concurrency,
            servers,
            prefill,
            step,
        )
        urls = {"ideal": url} | {name: server.url for name, server in rest.items()}
        clients = {name: self._clients(stack, name, urls[name]) for name in systems}
        self._measure(progress, label, clients, result)
        return result

    def _measure(
        self,
        progress: Progress,
        label: str,
        clients: Mapping[str, list[Runner]],
        result: CrowdResult,
    ) -> None:
        turns = [
            (index, name)
            for index in range(self.effort.blocks + 1)
            for name in rotated(list(clients), index)
        ]
        task = progress.add_task(label, total=len(turns))
        before: dict[str, dict[str, float]] = {}
        for index, name in turns:
            block = self._block(clients[name], index)
            if index:
                result.blocks.setdefault(name, []).append(block)
            else:  # it filled the caches
                before[name] = clients[name][0].counters()
            progress.advance(task)
        workflows = self.effort.blocks * self.effort.rounds * self.concurrency
        for name, runners in clients.items():
            result.counters[name] = {
                key: (value - before[name].get(key, 0)) / workflows
                for key, value in runners[0].counters().items()
            }

    def _block(self, runners: Sequence[Runner], index: int) -> Block:
        rounds = self.effort.rounds

        def work(runner: Runner) -> list[Workflow]:
            first = index * rounds
            return [runner.run(first + turn) for turn in range(rounds)]

        with ThreadPoolExecutor(len(runners)) as pool:
            begun = time.perf_counter()
            done = list(pool.map(work, runners))
            seconds = time.perf_counter() - begun
        return Block(seconds, tuple(run for own in done for run in own))

    def _clients(self, stack: ExitStack, name: str, url: str) -> list[Runner]:
        return [
            stack.enter_context(
                Runner(
                    url,
                    self.workload(seed),
                    hints=SYSTEMS[name].hints,
                    logprobs=False,
                )
            )
            for seed in range(self.concurrency)
        ]

    def workload(self, seed: int) -> Workload:
        """Of one client."""
        return self._plain(seed, self.small.output)

    def _plain(self, seed: int, output: int) -> Workload:
        settings = self.settings(seed, output)
        return Workload(settings, self.dims.vocab, len(SPECIAL_TOKENS))

    def settings(self, seed: int, output: int) -> Settings:
        return Settings(
            agents=self.agents,
            fixed=self.small.fixed,
            dynamic=self.small.dynamic,
            output=output,
            pool_ratio=1e3,  # the servers' own is another matter
            model_dims=self.dims,
            seed=seed,
        )

    def _servers(self, gbps: float, seconds: float = 1.0) -> Servers:
        suffix = self.small.dynamic + self.small.output
        runs = (self.effort.blocks + 1) * self.effort.rounds + 6
        return Servers(
            pool_tokens=self.pool,
            everything_tokens=self.concurrency
            * (self.agents * self.small.fixed + self.calls * runs * suffix),
            pcie_gbps=gbps,
            dims=self.dims,
            seconds=seconds,
        )

    def _speed(self, url: str) -> tuple[float, float]:
        """(prefill of all clients' fixed prompts of one agent, a step of all)."""
        cold, warm, longer = [], [], []
        agents = range(3)
        with ExitStack() as stack:
            seeds = range(1000, 1000 + self.concurrency)
            runners = [
                stack.enter_context(
                    Runner(url, self._plain(seed, 1), hints=False, logprobs=False)
                )
                for seed in seeds
            ]
            for agent in agents:
                cold.append(_wave(runners, agent, 0))
                warm.append(_wave(runners, agent, 1))
            for runner, seed in zip(runners, seeds, strict=True):
                runner.workload = self._plain(seed, 1 + self.small.output)
            longer = [_wave(runners, agent, 2) for agent in agents]
        middle = sorted(warm)[1]
        step = (sorted(longer)[1] - middle) / self.small.output
        return max(sorted(cold)[1] - middle, 1e-3), step

    def _prefill_of_testbed(self) -> float:
        fixed = self.crowd.mix.fixed
        # As many as here: what is thinned out is thinned out on both sides.
        return self.crowded.testbed.prefill_s(fixed) * self.concurrency

    def _gbps(self, scale: float) -> float:
        load = self.crowded.testbed.load_s(self.crowd.mix.fixed) * scale
        return self.small.fixed * self.dims.kv_bytes_per_token / load / 1e9


def _wave(runners: Sequence[Runner], agent: int, index: int) -> float:
    """Seconds until all have their answer for one call of `agent`, sent at once."""
    with ThreadPoolExecutor(len(runners)) as pool:
        begun = time.perf_counter()
        list(pool.map(lambda runner: runner.run(index, [agent]), runners))
        return time.perf_counter() - begun
