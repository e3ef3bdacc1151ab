"""Figure 6: many workflows at the same time, each with agents and prompts of its own."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import Progress

from kvflow_server.bench.collection import no_collection
from kvflow_server.bench.progress import progress_bar, rotated
from kvflow_server.bench.results import Workflow
from kvflow_server.bench.runner import Meter, Runner
from kvflow_server.bench.settings import Settings
from kvflow_server.bench.single import terminable
from kvflow_server.bench.systems import SYSTEMS
from kvflow_server.bench.workload import Workload
from kvflow_server.emulated.costs import Costs
from kvflow_server.emulated.tiny import SPECIAL_TOKENS

from .device import ROUNDS, Device, serve, tuned
from .real_model import model_dims
from .scale import AGENTS, DIMS, Scale, Servers, device_costs, scaled
from .testbeds import CROWDED, Crowd, Crowded, Paper

__all__ = [
    "FULL",
    "QUICK",
    "SYSTEMS_OF_FIG6",
    "WARM_UPS",
    "Block",
    "CrowdEffort",
    "CrowdResult",
    "CrowdRun",
    "RunCrowds",
    "Speed",
    "measure",
    "run_crowds",
]

SYSTEMS_OF_FIG6 = ("ideal", "recompute", "hicache", "kvflow")


@dataclass(frozen=True, slots=True)
class CrowdEffort:
    """How small, and how often. Concurrency and pool are thinned by the testbed's own
    number, whatever the scale says, on the emulated accelerator."""

    scale: Scale
    blocks: int
    """Measured blocks of each system, which take turns."""
    rounds: int
    """Workflows that each client runs in a block, one after the other."""
    emulated: bool = True
    """If not, the device is this machine's, and nothing is thinned."""


SCALE = Scale(factor=16, seconds=1.0, most_output=16)
"""The testbed's own seconds: what a server's scheduler takes for a call, the processor of
this machine does not take faster. And no answer of Figure 6 is cut: a call that misses the
beginning of a step waits for the next, which is to be no longer than can be helped."""
QUICK = CrowdEffort(SCALE, blocks=2, rounds=1)
FULL = CrowdEffort(SCALE, blocks=5, rounds=1)
WARM_UP_S = 1 / 16
"""Emulated seconds for one of the testbed's, in the blocks that fill the caches."""
WARM_UPS = 2
"""From its second run on a client is known to repeat its workflow."""


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
    costs: Costs
    """Of the emulated device."""
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
    only: Sequence[str] = (),
    keep: Callable[[list[CrowdResult]], None] = lambda results: None,
    run: RunCrowds | None = None,
) -> list[CrowdResult]:
    """Run the crowds that `only` names, or all, those of a testbed by `run` (None:
    `run_crowds`). Raises `ServerError`.

    `keep` is handed all there is after every crowd.
    """
    results: list[CrowdResult] = []
    with terminable(), progress_bar(console) as progress:
        for name in names:
            crowds = [
                CrowdRun(CROWDED[name], crowd, paper, effort)
                for crowd, paper in CROWDED[name].fig6.items()
                if not only or str(crowd) in only
            ]
            if not crowds:
                continue
            for result in (run or run_crowds)(crowds, progress, systems):
                results.append(result)
                keep(results)
    return results


RunCrowds = Callable[
    [Sequence["CrowdRun"], Progress, Sequence[str]], Iterable[CrowdResult]
]


def run_crowds(
    crowds: Sequence[CrowdRun], progress: Progress, systems: Sequence[str]
) -> Iterator[CrowdResult]:
    """Of one testbed, one after the other on the same servers."""
    with ExitStack() as stack:
        servers = max((one.servers() for one in crowds), key=_size)
        device, urls = serve(stack, progress, systems, servers, crowds[0].costs)
        for crowd in crowds:
            yield crowd.run(progress, device, urls)


def _size(servers: Servers) -> int:
    return servers.everything_tokens


class CrowdRun:
    """One crowd; its clients have prompts of their own."""

    alike = True
    """All calls are of the same lengths."""

    def __init__(
        self, crowded: Crowded, crowd: Crowd, paper: Paper, effort: CrowdEffort
    ) -> None:
        self.crowded = crowded
        self.crowd = crowd
        self.effort = effort
        thinned = crowded.thinned if effort.emulated else 1
        self.scale = dataclasses.replace(effort.scale, thinned=thinned)
        self.dims = DIMS if effort.emulated else model_dims(crowded.testbed.model)
        self.small = scaled(crowd.mix, self.scale.factor, self.scale.most_output)
        self.concurrency = crowd.concurrency // thinned
        self.pool = crowded.testbed.pool_tokens // self.scale.factor // thinned
        self.costs = self._costs(effort.scale.seconds)
        self.agents = self.calls = AGENTS
        self.paper = paper

    def _costs(self, seconds: float) -> Costs:
        scale = dataclasses.replace(self.scale, seconds=seconds)
        return device_costs(self.crowded.testbed, self.crowd.mix, scale)

    def run(
        self, progress: Progress, device: Device, urls: Mapping[str, str]
    ) -> CrowdResult:
        """On servers that have nothing else to do."""
        label = f"{self.crowded.testbed.name} {self.crowd}"
        with ExitStack() as stack:
            clients = {n: self.clients(stack, n, url) for n, url in urls.items()}
            for own in clients.values():
                own[0].flush()
            device.become(self._costs(WARM_UP_S))
            for turn in range(WARM_UPS):
                for own in clients.values():
                    self.block(own, turn)
            speed = Speed(self, urls["ideal"])
            device.become(self.costs)
            costs = self._tuned(device, speed)
            result = CrowdResult(
                self.crowded,
                self.crowd,
                self.paper,
                self.concurrency,
                self.servers(),
                costs,
                *speed.measured(),
            )
            self._measure(progress, label, clients, result)
        return result

    def _tuned(self, device: Device, speed: Speed) -> Costs:
        crowd = self.crowd
        context = crowd.mix.fixed + crowd.mix.dynamic + crowd.mix.output / 2
        tokens = self.concurrency * context / self.scale.factor
        aim = self.costs.decode_seconds(self.concurrency, tokens)
        return tuned(device, self.costs, 1, aim, lambda: speed.measured()[1])

    def _measure(
        self,
        progress: Progress,
        label: str,
        clients: Mapping[str, list[Runner]],
        result: CrowdResult,
    ) -> None:
        meter = Meter({name: own[0] for name, own in clients.items()})
        turns = [
            (index, name)
            for index in range(WARM_UPS, WARM_UPS + self.effort.blocks)
            for name in rotated(list(clients), index)
        ]
        task = progress.add_task(label, total=len(turns))
        for index, name in turns:
            block = self.block(clients[name], index)
            result.blocks.setdefault(name, []).append(block)
            progress.advance(task)
        workflows = self.effort.blocks * self.effort.rounds * self.concurrency
        result.counters.update(meter.per_workflow(workflows))

    def block(
        self,
        runners: Sequence[Runner],
        index: int,
        agents: Sequence[int] | None = None,
    ) -> Block:
        """All clients at once, each with its workflows of this index, of all agents or
        these."""
        rounds = self.effort.rounds

        def work(runner: Runner) -> list[Workflow]:
            first = index * rounds
            return [runner.run(first + turn, agents) for turn in range(rounds)]

        with no_collection(), ThreadPoolExecutor(len(runners)) as pool:
            begun = time.perf_counter()
            done = list(pool.map(work, runners))
            seconds = time.perf_counter() - begun
        return Block(seconds, tuple(run for own in done for run in own))

    def clients(self, stack: ExitStack, name: str, url: str) -> list[Runner]:
        """Of a server of this system."""
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
        return self.plain(seed, self.small.output)

    def plain(self, seed: int, output: int) -> Workload:
        settings = self.settings(seed, output)
        return Workload(settings, DIMS.vocab, len(SPECIAL_TOKENS))

    def settings(self, seed: int, output: int) -> Settings:
        return Settings(
            agents=self.agents,
            fixed=self.small.fixed,
            dynamic=self.small.dynamic,
            output=output,
            pool_ratio=1e3,  # the servers' own is another matter
            model_dims=DIMS,
            seed=seed,
        )

    def servers(self) -> Servers:
        suffix = self.small.dynamic + self.small.output
        runs = (self.effort.blocks + WARM_UPS) * self.effort.rounds
        prompts = self.agents * self.small.fixed + self.calls * runs * suffix
        probed = PROBED * (1 + ROUNDS) * (self.small.fixed + 3 * suffix)
        return Servers(
            pool_tokens=self.pool,
            everything_tokens=self.concurrency * (prompts + probed),
            dims=self.dims,
            pcie_gbps=1.0 if self.effort.emulated else None,
        )


PROBED = 3
"""Agents of each client."""


class Speed:
    """Measures a server that holds everything, each time with other prompts."""

    def __init__(self, crowd: CrowdRun, url: str) -> None:
        self._crowd = crowd
        self._url = url
        self._seeds = itertools.count(1000)

    def measured(self) -> tuple[float, float]:
        """Seconds of computing all clients' prompts of one agent, and of a decode step
        of all of them."""
        crowd = self._crowd
        cold, warm, longer = [], [], []
        seeds = list(itertools.islice(self._seeds, crowd.concurrency))
        with ExitStack() as stack:
            runners = [
                stack.enter_context(
                    Runner(self._url, crowd.plain(seed, 1), hints=False, logprobs=False)
                )
                for seed in seeds
            ]
            for agent in range(PROBED):
                cold.append(_wave(runners, agent, 0))
                warm.append(_wave(runners, agent, 1))
            for runner, seed in zip(runners, seeds, strict=True):
                runner.workload = crowd.plain(seed, 1 + crowd.small.output)
            longer = [_wave(runners, agent, 2) for agent in range(PROBED)]
        middle = statistics.median(warm)
        step = (statistics.median(longer) - middle) / crowd.small.output
        return max(statistics.median(cold) - middle, 1e-3), step


def _wave(runners: Sequence[Runner], agent: int, index: int) -> float:
    """Seconds until all have their answer for one call of `agent`, sent at once."""
    with ThreadPoolExecutor(len(runners)) as pool:
        begun = time.perf_counter()
        list(pool.map(lambda runner: runner.run(index, [agent]), runners))
        return time.perf_counter() - begun
