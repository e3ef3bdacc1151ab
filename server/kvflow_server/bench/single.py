"""The single-workflow experiment: every system in a server of its own, taking turns."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import Progress

from kvflow_server.edge.launcher import ServerProcess
from kvflow_server.emulated.tiny import SPECIAL_TOKENS, tiny_model

from .collection import no_collection
from .progress import progress_bar, rotated, tracked
from .results import Workflow
from .runner import Meter, Runner
from .settings import Settings
from .systems import SYSTEMS, start
from .workload import Workload

__all__ = ["Measured", "measure", "start_all", "terminable"]

START_S = 600.0
Counters = dict[str, dict[str, float]]


class Measured(NamedTuple):
    """By system."""

    results: dict[str, list[Workflow]]
    counters: Counters
    """The server's own, per workflow."""
    drift: dict[str, list[dict[str, Any]]]
    """The server's report of prompts that part too early."""


def measure(settings: Settings, console: Console) -> Measured:
    """The measured workflows of each system, and what its server says of them.

    Starts the servers, and ends them on the way out: by Ctrl-C and SIGTERM, too.
    """
    workload = Workload(
        settings,
        vocabulary=settings.model_dims.vocab,
        first_token=len(SPECIAL_TOKENS),
    )
    model = str(tiny_model(settings.model_dims))
    with terminable(), ExitStack() as stack, progress_bar(console) as progress:
        servers = {
            name: start(SYSTEMS[name], settings, model) for name in settings.systems
        }
        start_all(stack, progress, servers)
        runners = {
            name: stack.enter_context(
                Runner(
                    server.url,
                    workload,
                    hints=SYSTEMS[name].hints,
                    marks=SYSTEMS[name].marks and not settings.stamp,
                    learn=SYSTEMS[name].learns,
                )
            )
            for name, server in servers.items()
        }
        return _measure(settings, progress, runners)


def _measure(
    settings: Settings, progress: Progress, runners: dict[str, Runner]
) -> Measured:
    for name in tracked(progress, "warming up", settings.systems):
        for agent in range(settings.agents):
            runners[name].warm_up(agent)
    _take_turns(progress, "settling", runners, range(settings.warm_runs))
    meter = Meter(runners)
    last = settings.warm_runs + settings.runs
    indices = range(settings.warm_runs, last)
    results = _take_turns(progress, "measuring", runners, indices, cold=settings.cold)
    counters = meter.per_workflow(settings.runs)
    drift = {name: runner.drift() for name, runner in runners.items()}
    return Measured(results, counters, drift)


def start_all(
    stack: ExitStack, progress: Progress, servers: dict[str, ServerProcess]
) -> None:
    """Start all servers, and stop them when `stack` unwinds.

    Those with a host pool come first: SGLang refuses one unless memory stays free.
    """
    first = [name for name in servers if SYSTEMS[name].host]
    rest = [name for name in servers if not SYSTEMS[name].host]
    task = progress.add_task("starting", total=len(servers))
    for wave in (first, rest):
        for name in wave:
            stack.callback(servers[name].stop)
            servers[name].spawn()
        for name in wave:
            servers[name].wait_ready(START_S)
            progress.advance(task)


def _take_turns(
    progress: Progress,
    what: str,
    runners: dict[str, Runner],
    indices: range,
    *,
    cold: bool = False,
) -> dict[str, list[Workflow]]:
    results: dict[str, list[Workflow]] = {name: [] for name in runners}
    turns = [
        (index, name) for index in indices for name in rotated(list(runners), index)
    ]
    with no_collection():
        for index, name in tracked(progress, what, turns):
            if cold:
                runners[name].start_anew(register=SYSTEMS[name].registers)
            results[name].append(runners[name].run(index))
    return results


@contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM unwind the stack as Ctrl-C does, so that no server is left over."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
