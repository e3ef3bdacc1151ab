"""The paper's experiments on a GPU: its own shapes, and nothing is emulated.

The model has the dimensions of the testbed's and random weights, whose arithmetic takes
as long. One system has the GPU at a time, for the weights alone may fill it. Systems
take turns server by server, the second time in reverse order.

No pool of such a GPU holds everything. So `ideal` runs one agent's calls again and again,
whose prompt never leaves the pool: alike in length, they take what all would.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import groupby

from rich.console import Console
from rich.progress import Progress

from kvflow_server.bench.collection import no_collection
from kvflow_server.bench.progress import progress_bar
from kvflow_server.bench.results import Workflow
from kvflow_server.bench.runner import Meter, Runner
from kvflow_server.bench.single import start_all, terminable
from kvflow_server.bench.systems import SYSTEMS, start
from kvflow_server.bench.workload import Workload
from kvflow_server.emulated.costs import Costs

from .courses import Course
from .fig5 import (
    SYSTEMS_OF_FIG5,
    MixResult,
    TestbedResult,
    chosen_mixes,
    client,
    warm_up,
    workload,
)
from .real_model import model_dims, shape_only
from .scale import Effort, Servers
from .testbeds import TESTBEDS, Mix, Testbed

__all__ = [
    "FULL",
    "QUICK",
    "TURNS",
    "WHOLE",
    "hardware",
    "in_turn",
    "measure",
    "serve_one",
    "who",
]

TURNS = 2
"""Times that each system's server is started; the runs of a mix are shared out."""
WHOLE = 1 << 30
QUICK = Effort(factor=1, call_s=None, runs=(4, 2, 2), settling=1, most_output=WHOLE)
FULL = replace(QUICK, runs=(10, 6, 4), settling=2)


def hardware() -> str:
    """The name of the first accelerator. Imports torch."""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "accelerator"


def in_turn(systems: Sequence[str], turn: int) -> list[str]:
    """The order of this turn: what changes with time must favour nobody."""
    return list(systems) if turn % 2 == 0 else list(reversed(systems))


def serve_one(stack: ExitStack, progress: Progress, name: str, servers: Servers) -> str:
    """Start a server of the system, which has the accelerator to itself until `stack`
    ends; its URL."""
    if name == "ideal":
        servers = replace(servers, everything_tokens=servers.pool_tokens)
    model = str(shape_only(servers.dims))
    flags = ("--load-format", "dummy")
    server = start(SYSTEMS[name], servers, model, flags=flags)
    start_all(stack, progress, {name: server})
    return server.url


def measure(
    effort: Effort,
    console: Console,
    testbeds: Sequence[str] = tuple(TESTBEDS),
    systems: Sequence[str] = SYSTEMS_OF_FIG5,
    mixes: Sequence[str] = (),
    keep: Callable[[list[TestbedResult]], None] = lambda results: None,
    course: Course | None = None,
) -> list[TestbedResult]:
    """As `fig5.measure`, on the accelerator of this machine; `keep` is handed all there
    is whenever every system has had its turn."""
    results: list[TestbedResult] = []
    with terminable(), progress_bar(console) as progress:
        for testbed, own in chosen_mixes(testbeds, mixes):
            one = _OnTestbed(testbed, own, effort, course)
            results.append(TestbedResult(testbed, one.servers))
            for turn in range(TURNS):
                for name in in_turn(systems, turn):
                    one.take_turn(progress, name, turn)
                results[-1].mixes.update(one.results())
                keep(results)
    return results


def who(name: str, calls: int) -> list[int] | None:
    """The agents of a workflow on this system; None: all, in their order."""
    return [0] * calls if name == "ideal" else None


def _in_host_memory(mixes: Sequence[Mix], effort: Effort) -> int:
    """Tokens: all fixed prompts, and what two workflows add."""
    fixed = effort.agents * max(mix.fixed for mix in mixes)
    return fixed + 2 * effort.calls * max(mix.dynamic + mix.output for mix in mixes)


@dataclass(slots=True)
class _Found:
    """Of one mix on one system."""

    workflows: list[Workflow] = field(default_factory=list)
    counters: list[dict[str, float]] = field(default_factory=list)
    """Per workflow, of each turn."""

    def mean(self) -> dict[str, float]:
        turns = self.counters
        return {key: sum(own[key] for own in turns) / len(turns) for key in turns[0]}


class _OnTestbed:
    """What is run with the model of one testbed."""

    def __init__(
        self,
        testbed: Testbed,
        mixes: Sequence[Mix],
        effort: Effort,
        course: Course | None,
    ) -> None:
        self.testbed = testbed
        self.mixes = list(mixes)
        self.effort = effort
        self.course = course
        self.servers = Servers(
            pool_tokens=testbed.pool_tokens,
            everything_tokens=_in_host_memory(mixes, effort),
            dims=model_dims(testbed.model),
            pcie_gbps=None,
        )
        self._found: dict[Mix, dict[str, _Found]] = {}
        self._bus: float | None = None

    def take_turn(self, progress: Progress, name: str, turn: int) -> None:
        """Start the system's server, run its share of all mixes, and end it."""
        with ExitStack() as stack:
            url = serve_one(stack, progress, name, self.servers)
            for _, group in groupby(self.mixes, key=lambda mix: mix.fixed):
                mixes = list(group)
                loads = {mix: self._load(mix) for mix in mixes}
                first = loads[mixes[0]]
                with client(SYSTEMS[name], url, first, self.servers) as runner:
                    label = f"{self.testbed.name} {name}: warming up"
                    warm_up(progress, label, {name: runner})
                    self._run(progress, name, runner, loads, turn)
                    self._bus = runner.bus_bytes_per_s() or self._bus

    def _load(self, mix: Mix) -> Workload:
        return workload(mix, self.effort, self.servers, self.course)

    def _run(
        self,
        progress: Progress,
        name: str,
        runner: Runner,
        loads: dict[Mix, Workload],
        turn: int,
    ) -> None:
        """The same workflows on every system; no two turns have one in common."""
        effort = self.effort
        agents = who(name, effort.calls)
        run = turn * sum(effort.runs_of(mix) + effort.settling for mix in loads)
        for mix, load in loads.items():
            runner.workload = load
            share = -(-effort.runs_of(mix) // TURNS)
            label = f"{self.testbed.name} {mix} {name}"
            task = progress.add_task(label, total=effort.settling + share)
            for index in range(run, run + effort.settling):
                runner.run(index, agents)
                progress.advance(task)
            run += effort.settling
            meter = Meter({name: runner})
            found = self._found.setdefault(mix, {}).setdefault(name, _Found())
            with no_collection():
                for index in range(run, run + share):
                    found.workflows.append(runner.run(index, agents))
                    progress.advance(task)
            found.counters.append(meter.per_workflow(share)[name])
            run += share

    def results(self) -> dict[Mix, MixResult]:
        """Of the turns so far."""
        costs = self._costs()
        return {
            mix: MixResult(
                {name: found.workflows for name, found in own.items()},
                {name: found.mean() for name, found in own.items()},
                costs,
            )
            for mix, own in self._found.items()
        }

    def _costs(self) -> Costs:
        """Only the bus is of interest, which KVFlow measures."""
        given = self.testbed.costs
        measured = self._bus is not None
        return given.changed(
            bus_bytes_per_s=self._bus or given.bus_bytes_per_s,
            source=f"{hardware()}; the bus {'as measured' if measured else given.source}",
        )
