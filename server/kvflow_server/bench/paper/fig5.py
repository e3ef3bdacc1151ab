"""Figure 5: one workflow of ten agents, six mixes on each of two testbeds."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import groupby

from rich.console import Console
from rich.progress import Progress

from kvflow_server.bench.collection import no_collection
from kvflow_server.bench.progress import progress_bar, rotated
from kvflow_server.bench.results import Workflow
from kvflow_server.bench.runner import Meter, Runner
from kvflow_server.bench.single import terminable
from kvflow_server.bench.systems import SYSTEMS, System
from kvflow_server.bench.workload import Workload
from kvflow_server.emulated.costs import Costs
from kvflow_server.emulated.tiny import SPECIAL_TOKENS

from .courses import Course, CourseWorkload
from .device import ROUNDS, Device, serve, tuned
from .scale import (
    DIMS,
    Effort,
    Servers,
    everything_tokens,
    settings_of,
)
from .testbeds import TESTBEDS, Mix, Testbed

__all__ = [
    "FULL",
    "QUICK",
    "SYSTEMS_OF_FIG5",
    "MixResult",
    "TestbedResult",
    "chosen_mixes",
    "client",
    "measure",
    "warm_up",
    "workload",
]

SYSTEMS_OF_FIG5 = ("ideal", "recompute", "hicache", "kvflow")
STEADY = 1.2
"""Where so few runs of a system differ by more, the machine changed its speed meanwhile:
they are followed by another of each, at most `EXTRA_RUNS`."""
EXTRA_RUNS = 2
TUNING_CALLS = 4
QUICK = Effort(factor=16, call_s=(0.15, 0.3, 0.5), runs=(4, 3, 3))
FULL = Effort(factor=16, call_s=(0.3, 0.6, 1.0), runs=(10, 6, 6))


@dataclass(frozen=True, slots=True)
class MixResult:
    """The workflows at one index ran the same prompts on every system."""

    workflows: Mapping[str, list[Workflow]]
    counters: Mapping[str, Mapping[str, float]]
    """KVFlow's own, per workflow."""
    costs: Costs
    """Of the emulated device."""


@dataclass(frozen=True, slots=True)
class TestbedResult:
    __test__ = False

    testbed: Testbed
    servers: Servers
    mixes: dict[Mix, MixResult] = field(default_factory=dict)


def measure(
    effort: Effort,
    console: Console,
    testbeds: Sequence[str] = tuple(TESTBEDS),
    systems: Sequence[str] = SYSTEMS_OF_FIG5,
    mixes: Sequence[str] = (),
    keep: Callable[[list[TestbedResult]], None] = lambda results: None,
    course: Course | None = None,
) -> list[TestbedResult]:
    """Run the named mixes, or all. `systems` must hold those of `SYSTEMS_OF_FIG5`, and
    `effort` the numbers of `course`, if the workflow is another than the figure's.

    `keep` is handed all there is after every mix: a run that ends early is not lost.
    Starts servers and ends them on the way out, by Ctrl-C, too. Raises `ServerError`.
    """
    results: list[TestbedResult] = []
    chosen = chosen_mixes(testbeds, mixes)
    with terminable(), progress_bar(console) as progress, ExitStack() as stack:
        running = _start(stack, chosen, effort, progress, systems, course)
        for testbed, own in chosen:
            results.append(TestbedResult(testbed, running.servers))
            for _, group in groupby(own, key=lambda mix: mix.fixed):
                with ExitStack() as clients:
                    part = _PromptSize(running, effort, progress, results[-1])
                    for _ in part.measure(clients, list(group)):
                        keep(results)
    return results


def chosen_mixes(
    testbeds: Sequence[str], mixes: Sequence[str]
) -> list[tuple[Testbed, list[Mix]]]:
    """The named mixes of each testbed, or all."""
    return [
        (testbed, [mix for mix in testbed.fig5 if not mixes or str(mix) in mixes])
        for testbed in map(TESTBEDS.__getitem__, testbeds)
    ]


@dataclass(frozen=True, slots=True)
class _Running:
    """The servers, which one testbed after the other has to itself."""

    urls: Mapping[str, str]
    device: Device
    servers: Servers
    course: Course | None


def _start(
    stack: ExitStack,
    chosen: Sequence[tuple[Testbed, Sequence[Mix]]],
    effort: Effort,
    progress: Progress,
    systems: Sequence[str],
    course: Course | None,
) -> _Running:
    (pool,) = {testbed.pool_tokens for testbed, _ in chosen}
    servers = Servers(
        pool_tokens=pool // effort.factor,
        everything_tokens=max(everything_tokens(own, effort) for _, own in chosen),
        dims=DIMS,
    )
    testbed, own = chosen[0]
    costs = effort.device_costs(testbed, own[0])
    device, urls = serve(stack, progress, systems, servers, costs)
    return _Running(urls, device, servers, course)


@dataclass(frozen=True, slots=True)
class _PromptSize:
    """The mixes of a testbed with the same fixed prompts, which are warmed up once."""

    running: _Running
    effort: Effort
    progress: Progress
    result: TestbedResult

    def measure(self, stack: ExitStack, mixes: list[Mix]) -> Iterator[Mix]:
        """Run them, the shortest first, and yield each when it is done."""
        servers, effort, course = self.running.servers, self.effort, self.running.course
        loads = {mix: workload(mix, effort, servers, course) for mix in mixes}
        runners = {
            name: stack.enter_context(
                client(SYSTEMS[name], url, loads[mixes[0]], servers)
            )
            for name, url in self.running.urls.items()
        }
        testbed = self.result.testbed
        # As fast as the longest mix: it is not measured.
        self.running.device.become(effort.device_costs(testbed, mixes[-1]))
        warm_up(self.progress, f"{mixes[0].fixed}: warming up", runners)
        run = 0
        for mix in mixes:
            for runner in runners.values():
                runner.workload = loads[mix]
            # What a mix finds in the caches is what the one before left, but for
            # suffixes.
            settling = effort.settling if mix == mixes[0] else int(mix.output <= 256)
            costs = self._tuned(mix, runners["ideal"], run)
            turns = _Turns(self.progress, f"{testbed.name} {mix}", runners)
            first = run + ROUNDS + settling
            turns.take(range(run + ROUNDS, first))
            end = first + effort.runs_of(mix)
            self.result.mixes[mix] = turns.counted(range(first, end), costs)
            run = end + EXTRA_RUNS
            yield mix

    def _tuned(self, mix: Mix, ideal: Runner, run: int) -> Costs:
        """The emulated device for this mix; takes the workflows `run` to
        `run + ROUNDS`."""
        costs = self.effort.device_costs(self.result.testbed, mix)
        small = self.effort.small(mix)
        aim = costs.hit_seconds(small.fixed, small.dynamic, small.output)
        index = itertools.count(run)

        def call_s() -> float:
            calls = ideal.run(next(index), range(TUNING_CALLS)).calls
            return statistics.median(call.seconds for call in calls)

        return tuned(self.running.device, costs, small.output - 1, aim, call_s)


def client(
    system: System,
    url: str,
    load: Workload,
    servers: Servers,
) -> Runner:
    """A program that runs `load` on a server of `system`."""
    held = servers.pool_tokens // load.settings.fixed
    return Runner(
        url,
        load,
        hints=system.hints,
        important=held - 1 if system.priorities else 0,
        logprobs=False,
        learn=system.learns,
    )


def workload(
    mix: Mix, effort: Effort, servers: Servers, course: Course | None
) -> Workload:
    """The prompts of a mix, as they are sent here."""
    settings = settings_of(mix, effort, servers, SYSTEMS_OF_FIG5)
    words = servers.dims.vocab, len(SPECIAL_TOKENS)
    if course is None:
        return Workload(settings, *words)
    return CourseWorkload(settings, *words, course=course)


def warm_up(progress: Progress, label: str, runners: Mapping[str, Runner]) -> None:
    """Fill empty caches with all fixed prompts."""
    agents = next(iter(runners.values())).workload.settings.agents
    task = progress.add_task(label, total=len(runners) * agents)
    for runner in runners.values():
        runner.flush()
        for agent in range(agents):
            runner.warm_up(agent)
            progress.advance(task)


@dataclass(frozen=True, slots=True)
class _Turns:
    """The systems run the same workflow, one after the other, each time in another
    order."""

    progress: Progress
    label: str
    runners: Mapping[str, Runner]

    def counted(self, indices: range, costs: Costs) -> MixResult:
        meter = Meter(self.runners)
        workflows = self.take(indices)
        for extra in range(indices.stop, indices.stop + EXTRA_RUNS):
            if _steady(workflows):
                break
            for name, own in self.take(range(extra, extra + 1)).items():
                workflows[name] += own
        done = len(next(iter(workflows.values())))
        return MixResult(workflows, meter.per_workflow(done), costs)

    def take(self, indices: range) -> dict[str, list[Workflow]]:
        results: dict[str, list[Workflow]] = {name: [] for name in self.runners}
        task = self.progress.add_task(
            self.label, total=len(indices) * len(self.runners)
        )
        with no_collection():
            for index in indices:
                for name in rotated(list(self.runners), index):
                    results[name].append(self.runners[name].run(index))
                    self.progress.advance(task)
        return results


def _steady(workflows: Mapping[str, list[Workflow]]) -> bool:
    """Whether the median of each system can be trusted: several runs, or alike."""
    runs = [[run.seconds for run in own] for own in workflows.values()]
    return all(len(own) > 2 or max(own) <= STEADY * min(own) for own in runs)
