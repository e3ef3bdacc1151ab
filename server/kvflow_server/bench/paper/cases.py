"""A report of `kvflow bench paper` by its cases, whichever figure it is of.

Ratios are taken from the raw runs, so that systems can be compared that the figure itself
does not compare.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvflow_server.bench.results import Spread

from .camera_ready import ONE_BRANCH

__all__ = ["ORDER", "Case", "cases_of"]

ORDER = (
    "recompute",
    "hicache",
    "hicache-lfu",
    "hicache-slru",
    "hicache-priority",
    "kvflow-silent",
    "kvflow-protect",
    "kvflow-evict",
    "kvflow-steps",
    "kvflow-no-skip",
    "kvflow-unlearnt",
    "kvflow-unmarked",
    "kvflow",
    "ideal",
)
"""Systems as they are shown; others come last."""


@dataclass(frozen=True, slots=True)
class Case:
    """A mix or a crowd on a testbed."""

    figure: str
    testbed: str
    name: str
    runs: Mapping[str, Sequence[float]]
    """By system, in the order of `ORDER`: seconds of a workflow, of a crowd those of a
    block. What is at one index ran the same prompts on all systems."""
    entry: Mapping[str, Any]
    """All that the report says."""

    def __str__(self) -> str:
        return f"{self.testbed} {self.name}"

    @property
    def crowd(self) -> bool:
        return "throughput" in self.entry

    def over(self, system: str, base: str) -> Spread:
        """How many times less time `system` takes than `base`, over the pairs."""
        pairs = zip(self.runs[base], self.runs[system], strict=True)
        return Spread.of([below / above for below, above in pairs])

    def paper(self, system: str) -> float | None:
        """The speed-up over recomputation that the paper prints."""
        printed: Mapping[str, float] = self.entry.get("paper", {})
        one_branch = ONE_BRANCH.get((self.testbed, self.name))
        if self.figure == "branches" and one_branch is not None:
            printed = {"hicache": one_branch.hicache, "kvflow": one_branch.kvflow}
        return printed.get(system)

    def paper_over_hicache(self) -> float | None:
        """Of KVFlow."""
        kvflow, hicache = self.paper("kvflow"), self.paper("hicache")
        return kvflow / hicache if kvflow and hicache else None

    @property
    def least_tokens(self) -> float | None:
        """Of fixed prompts, that must be brought in per workflow; None: not known, and
        the optimum is only the pool that never evicts."""
        return self.entry.get("least_loaded_tokens")

    @property
    def bus_s(self) -> float:
        """For the least tokens of a workflow, at the bus's own rate."""
        if self.least_tokens is None:
            return 0.0
        costs = self.entry["costs"]
        return float(self.least_tokens * costs["kv_bytes"] / costs["bus_bytes_per_s"])

    def over_optimum(self, system: str) -> Spread:
        """Times the seconds of the optimum: the longer of what the device computes at
        least and of `bus_s`."""
        pairs = zip(self.runs[system], self.runs["ideal"], strict=True)
        return Spread.of([own / max(ideal, self.bus_s) for own, ideal in pairs])

    def optimum_over(self, base: str) -> float:
        """How many times less time the optimum takes than `base`, by their medians."""
        least = [max(ideal, self.bus_s) for ideal in self.runs["ideal"]]
        return statistics.median(self.runs[base]) / statistics.median(least)

    def brought_in(self, system: str) -> float:
        """Tokens of fixed prompts per workflow: loaded on demand, fetched ahead, or
        computed beyond what a pool that never evicts computes."""
        tokens, never = self.entry["tokens"][system], self.entry["tokens"]["ideal"]
        ahead = self.entry["counters"].get(system, {}).get("prefetch_tokens", 0.0)
        again = max(0.0, tokens["recomputed"] - never["recomputed"])
        return float(tokens["host"] + ahead + again)


def cases_of(report: Mapping[str, Any]) -> list[Case]:
    """Of figures 5, 6 and 8, of branches and of the dynamic workflow."""
    key, runs = ("crowds", "blocks") if "crowds" in report else ("mixes", "runs")
    return [
        Case(report["figure"], testbed, name, _ordered(entry[runs]), entry)
        for testbed, own in report[key].items()
        for name, entry in own.items()
    ]


def _ordered(runs: Mapping[str, Sequence[float]]) -> dict[str, Sequence[float]]:
    known = [name for name in ORDER if name in runs]
    return {name: runs[name] for name in dict.fromkeys([*known, *runs])}
