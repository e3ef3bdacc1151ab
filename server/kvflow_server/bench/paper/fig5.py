"""Figure 5: one workflow of ten agents, six mixes on each of two testbeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import groupby

from rich.console import Console
from rich.progress import Progress

from kvflow_server.bench.progress import progress_bar, rotated
from kvflow_server.bench.results import Workflow
from kvflow_server.bench.runner import Runner
from kvflow_server.bench.single import start_all, terminable
from kvflow_server.bench.systems import SYSTEMS, start
from kvflow_server.bench.workload import Workload
from kvflow_server.emulated.tiny import SPECIAL_TOKENS

from .calibrate import Calibrated, calibrate
from .scale import AGENTS, Effort, Servers, scaled, settings_of
from .testbeds import TESTBEDS, Mix, Testbed

__all__ = ["FULL", "QUICK", "SYSTEMS_OF_FIG5", "MixResult", "TestbedResult", "measure"]

SYSTEMS_OF_FIG5 = ("ideal", "recompute", "hicache", "kvflow")
STEADY = 1.2
"""Where so few runs of a system differ by more, the machine changed its speed meanwhile:
they are followed by another of each, at most `EXTRA_RUNS`."""
EXTRA_RUNS = 2
QUICK = Effort(factor=32, runs=(9, 4, 2))
FULL = Effort(factor=16, runs=(15, 9, 5))


@dataclass(frozen=True, slots=True)
class MixResult:
    """The workflows at one index ran the same prompts on every system."""

    workflows: Mapping[str, list[Workflow]]
    counters: Mapping[str, Mapping[str, float]]
    """KVFlow's own, per workflow."""


@dataclass(frozen=True, slots=True)
class TestbedResult:
    __test__ = False

    testbed: Testbed
    calibrated: Calibrated
    mixes: dict[Mix, MixResult] = field(default_factory=dict)


def measure(
    effort: Effort,
    console: Console,
    testbeds: Sequence[str] = tuple(TESTBEDS),
    systems: Sequence[str] = SYSTEMS_OF_FIG5,
    mixes: Sequence[str] = (),
    keep: Callable[[list[TestbedResult]], None] = lambda results: None,
) -> list[TestbedResult]:
    """Run the named mixes, or all. `systems` must hold those of `SYSTEMS_OF_FIG5`.

    `keep` is handed all there is after every mix: a run that ends early is not lost.
    Starts servers and ends them on the way out, by Ctrl-C, too. Raises `ServerError`.
    """
    results: list[TestbedResult] = []
    with terminable(), progress_bar(console) as progress:
        for name in testbeds:
            with ExitStack() as stack:
                testbed = TESTBEDS[name]
                chosen = [mix for mix in testbed.fig5 if not mixes or str(mix) in mixes]
                running = _start(stack, testbed, effort, progress, systems)
                results.append(running.result)
                for _, group in groupby(chosen, key=lambda mix: mix.fixed):
                    with ExitStack() as clients:
                        sized = list(group)
                        for _ in _prompt_size(
                            clients, sized, effort, progress, running
                        ):
                            keep(results)
    return results


@dataclass(frozen=True, slots=True)
class _Running:
    """The servers of a testbed."""

    urls: Mapping[str, str]
    result: TestbedResult


def _start(
    stack: ExitStack,
    testbed: Testbed,
    effort: Effort,
    progress: Progress,
    systems: Sequence[str],
) -> _Running:
    task = progress.add_task(testbed.name, total=1)
    found = calibrate(
        stack, testbed, effort, lambda text: progress.update(task, description=text)
    )
    progress.update(task, completed=1, description=f"{testbed.name}: calibrated")
    others = {
        name: start(SYSTEMS[name], found.servers, found.model)
        for name in systems
        if name != "ideal"
    }
    start_all(stack, progress, others)
    urls = {"ideal": found.url} | {name: own.url for name, own in others.items()}
    return _Running(urls, TestbedResult(testbed, found))


def _prompt_size(
    stack: ExitStack,
    mixes: list[Mix],
    effort: Effort,
    progress: Progress,
    running: _Running,
) -> Iterator[Mix]:
    """Run all mixes with the same fixed prompts, the shortest first: one warm-up. Yields
    each when it is done."""
    result = running.result
    servers = result.calibrated.servers
    loads = {mix: _workload(mix, effort, servers) for mix in mixes}
    held = servers.pool_tokens // scaled(mixes[0], effort.factor).fixed
    runners = {
        name: stack.enter_context(
            Runner(
                url,
                loads[mixes[0]],
                hints=SYSTEMS[name].hints,
                important=held - 1 if SYSTEMS[name].priorities else 0,
                logprobs=False,
            )
        )
        for name, url in running.urls.items()
    }
    _warm_up(progress, f"{mixes[0].fixed}: warming up", runners)
    run = 0
    for mix in mixes:
        for runner in runners.values():
            runner.workload = loads[mix]
        # What a mix finds in the caches is what the one before left, but for suffixes.
        settling = effort.settling if mix == mixes[0] else int(mix.output <= 256)
        label = f"{result.testbed.name} {mix}"
        first, end = run + settling, run + settling + effort.runs_of(mix)
        _take_turns(progress, f"{label} settling", runners, range(run, first))
        result.mixes[mix] = _counted(progress, label, runners, range(first, end))
        run = end + EXTRA_RUNS
        yield mix


def _workload(mix: Mix, effort: Effort, servers: Servers) -> Workload:
    return Workload(
        settings_of(mix, effort, servers, SYSTEMS_OF_FIG5),
        vocabulary=servers.dims.vocab,
        first_token=len(SPECIAL_TOKENS),
    )


def _warm_up(progress: Progress, label: str, runners: Mapping[str, Runner]) -> None:
    task = progress.add_task(label, total=len(runners) * AGENTS)
    for runner in runners.values():
        runner.flush()
        for agent in range(AGENTS):
            runner.warm_up(agent)
            progress.advance(task)


def _counted(
    progress: Progress, label: str, runners: Mapping[str, Runner], indices: range
) -> MixResult:
    before = {name: runner.counters() for name, runner in runners.items()}
    workflows = _take_turns(progress, label, runners, indices)
    for extra in range(EXTRA_RUNS):
        if _steady(workflows):
            break
        more = range(indices.stop + extra, indices.stop + extra + 1)
        for name, own in _take_turns(progress, f"{label} again", runners, more).items():
            workflows[name] += own
    done = len(next(iter(workflows.values())))
    counters = {
        name: {
            key: (value - before[name].get(key, 0)) / done
            for key, value in runner.counters().items()
        }
        for name, runner in runners.items()
        if runner.hints
    }
    return MixResult(workflows, counters)


def _steady(workflows: Mapping[str, list[Workflow]]) -> bool:
    """Whether the median of each system can be trusted: several runs, or alike."""
    runs = [[run.seconds for run in own] for own in workflows.values()]
    return all(len(own) > 2 or max(own) <= STEADY * min(own) for own in runs)


def _take_turns(
    progress: Progress, label: str, runners: Mapping[str, Runner], indices: range
) -> dict[str, list[Workflow]]:
    results: dict[str, list[Workflow]] = {name: [] for name in runners}
    task = progress.add_task(label, total=len(indices) * len(runners))
    for index in indices:
        for name in rotated(list(runners), index):
            results[name].append(runners[name].run(index))
            progress.advance(task)
    return results
