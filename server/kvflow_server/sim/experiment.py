"""The same workflows on several simulated servers."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvflow_server.bench.paper.belady import belady_s
from kvflow_server.emulated.costs import Costs
from kvflow_server.engine.config import EngineConfig, Mode
from kvflow_server.policy.prefetch import PrefetchLimits

from .scenario import Scenario
from .server import Server, ServerSize
from .workload import Workflow

__all__ = ["SYSTEMS", "Comparison", "Result", "System", "compare", "simulate"]

KINDS = ("device", "host", "recomputed")
"""Where a prompt token came from."""


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

    def sized(self, size: ServerSize, everything: int) -> ServerSize:
        """`size` as this system has it; a pool of `everything` tokens never evicts."""
        return dataclasses.replace(
            size,
            pool=size.pool if self.evicts else everything,
            host=size.host if self.host else 0,
        )


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
    counters: dict[str, float] = field(default_factory=dict)

    @property
    def workflow_s(self) -> float:
        """Median seconds of a workflow."""
        return statistics.median(w.seconds for w in self.workflows)

    @property
    def throughput(self) -> float:
        """Workflows per second, from the first one's start to the last one's end."""
        start = min(w.start for w in self.workflows)
        end = max(w.end for w in self.workflows)
        return len(self.workflows) / (end - start) if end > start else 0.0

    def quantile_s(self, share: float) -> float:
        """Seconds that this share of the workflows took at most."""
        ordered = sorted(w.seconds for w in self.workflows)
        return ordered[math.ceil(share * len(ordered)) - 1]

    def tokens(self, kind: str) -> float:
        """Prompt tokens of a workflow, in the mean, that came so: ``device``, ``host``
        or ``recomputed``."""
        total = sum(getattr(workflow, kind) for workflow in self.workflows)
        return float(total / len(self.workflows))

    def to_dict(self) -> dict[str, object]:
        return {
            "workflow_s": self.workflow_s,
            "p99_s": self.quantile_s(0.99),
            "throughput": self.throughput,
            "tokens": {kind: self.tokens(kind) for kind in KINDS},
            "counters": {k: v for k, v in self.counters.items() if v},
        }


def simulate(
    costs: Costs, size: ServerSize, scenario: Scenario, system: System
) -> Result:
    """The scenario on one system."""
    sized = system.sized(size, scenario.everything_tokens)
    server = Server(costs, sized, system.config)
    result = Result()
    scenario.start(server, system.config is not None, result.workflows.append)
    server.run()
    result.counters = dict(server.cache.counters.as_dict())
    return result


@dataclass(slots=True)
class Comparison:
    """One scenario on several systems."""

    costs: Costs
    size: ServerSize
    scenario: Scenario
    results: dict[str, Result]

    def speedup(self, system: str, over: str) -> float | None:
        """By throughput; of programs that run alone, that is by time. None if one of
        the two was not simulated."""
        if system not in self.results or over not in self.results:
            return None
        return self.results[system].throughput / self.results[over].throughput

    @property
    def belady_s(self) -> float | None:
        """A bound on the seconds of a workflow (`bench.paper.belady`); None where the
        workflow is no cycle of one program, or `ideal` was not simulated."""
        scenario, ideal = self.scenario, self.results.get("ideal")
        alone = scenario.workflows == scenario.branches == 1
        if ideal is None or scenario.dynamic_graph or not alone:
            return None
        load_s = self.costs.copy_seconds(scenario.fixed)
        held = self.size.pool / scenario.fixed
        return belady_s(ideal.workflow_s, load_s, scenario.agents, held)

    def to_dict(self) -> dict[str, object]:
        return {
            "costs": self.costs.to_dict(),
            "size": dataclasses.asdict(self.size),
            "scenario": self.scenario.to_dict(),
            "systems": {name: r.to_dict() for name, r in self.results.items()},
            "belady_s": self.belady_s,
            "speedup": {
                f"{name}_over_{over}": self.speedup(name, over)
                for over in ("recompute", "hicache", "steps")
                for name in self.results
                if name != over and over in self.results
            },
        }


def compare(
    costs: Costs,
    size: ServerSize,
    scenario: Scenario,
    systems: Sequence[str],
    limits: PrefetchLimits | None = None,
) -> Comparison:
    """The scenario on each of `systems`; with `limits`, theirs are those of prefetch.

    Raises `ValueError` if a single call does not fit into the pool.
    """
    if size.pool <= scenario.call_tokens:
        raise ValueError(
            f"a device pool of {size.pool} tokens: one call alone needs "
            f"{scenario.call_tokens} and some room"
        )
    results = {
        name: simulate(costs, size, scenario, _limited(SYSTEMS[name], limits))
        for name in systems
    }
    return Comparison(costs, size, scenario, results)


def _limited(system: System, limits: PrefetchLimits | None) -> System:
    if limits is None or system.config is None:
        return system
    config = dataclasses.replace(system.config, prefetch=limits)
    return dataclasses.replace(system, config=config)
