"""The same workflows on several simulated servers."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

from kvflow_server.engine.config import EngineConfig, Mode

from .costs import Costs
from .server import Server, ServerSize
from .workload import Workflow

__all__ = ["SYSTEMS", "Result", "System", "simulate"]


@dataclass(frozen=True, slots=True)
class System:
    """One way to serve."""

    name: str
    about: str
    config: EngineConfig | None = None
    """None: stock SGLang."""
    host: bool = True
    evicts: bool = True
    """Its device pool is the small one."""


SYSTEMS = {
    system.name: system
    for system in (
        System(
            "ideal",
            "a device pool that never evicts: the ceiling",
            host=False,
            evicts=False,
        ),
        System("recompute", "stock SGLang, device only", host=False),
        System("hicache", "stock SGLang with HiCache: LRU, loads on demand"),
        System(
            "protect",
            "fixed prompts protected, no steps, no prefetch",
            EngineConfig(mode=Mode.PROTECT),
        ),
        System(
            "evict", "KVFlow's eviction, no prefetch", EngineConfig(mode=Mode.EVICT)
        ),
        System(
            "steps",
            "the paper's policy and nothing more",
            EngineConfig(mode=Mode.STEPS),
        ),
        System("kvflow", "KVFlow", EngineConfig(mode=Mode.FULL)),
    )
}


@dataclass(slots=True)
class Result:
    """What one system made of the workflows that were measured."""

    workflows: list[Workflow] = field(default_factory=list)
    seconds: float = 0.0
    """Of simulated time, all workflows."""
    passes: int = 0
    counters: dict[str, float] = field(default_factory=dict)

    @property
    def workflow_s(self) -> float:
        """Median seconds of a workflow."""
        return statistics.median(w.seconds for w in self.workflows)

    def tokens(self, kind: str) -> float:
        """Prompt tokens of a workflow, in the mean, that came so: ``device``, ``host``
        or ``recomputed``."""
        total = sum(getattr(a, kind) for w in self.workflows for a in w.answers)
        return float(total / len(self.workflows))


def simulate(
    costs: Costs,
    size: ServerSize,
    system: System,
    load: Callable[[Server, bool, Callable[[Workflow], None]], None],
    everything: int,
) -> Result:
    """Run what `load` starts on one server.

    `load(server, hints, measured)` starts programs, which send metadata if `hints`, and
    hands each workflow that counts to `measured`. `everything`: a pool of so many
    tokens never evicts.
    """
    pool = size.pool if system.evicts else everything
    sized = ServerSize(
        pool=pool,
        host=size.host if system.host else 0,
        max_running=size.max_running,
        max_prefill=size.max_prefill,
    )
    server = Server(costs, sized, system.config)
    result = Result()
    load(server, system.config is not None, result.workflows.append)
    result.seconds = server.run()
    result.passes = server.passes
    result.counters = dict(server.cache.counters.as_dict())
    return result
