"""What was measured, and what is computed from it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

__all__ = [
    "COMPARISONS",
    "KINDS",
    "Call",
    "Spread",
    "Workflow",
    "compare",
    "largest_logprob_gap",
    "outputs_identical",
    "paired",
    "summarise",
]


KINDS = ("device", "host", "recomputed")
"""Where a prompt token came from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One LLM call as the server reported it; counts are prompt tokens."""

    agent: str
    output: tuple[int, ...]
    """Token ids."""
    logprobs: tuple[float, ...]
    """Of the chosen tokens."""
    prompt: int
    device: int
    """Found on the device; a prefetched token counts here."""
    host: int
    """Loaded from host memory on demand."""
    seconds: float

    @property
    def recomputed(self) -> int:
        return self.prompt - self.device - self.host


@dataclass(frozen=True, slots=True)
class Workflow:
    """One run of all agents; `seconds` from the first request to the last answer."""

    seconds: float
    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Spread:
    """A sample by its order statistics."""

    median: float
    q1: float
    q3: float
    min: float
    max: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        if len(values) > 1:
            q1, _, q3 = statistics.quantiles(values, n=4, method="inclusive")
        else:
            q1 = q3 = values[0]
        return cls(
            statistics.median(values), q1, q3, min(values), max(values), len(values)
        )


Results = Mapping[str, Sequence[Workflow]]
"""By system; the workflows at one index ran the same prompts."""

COMPARISONS = {
    "kvflow_over_hicache": ("hicache", "kvflow"),
    "kvflow_over_recompute": ("recompute", "kvflow"),
    "evict_over_hicache": ("hicache", "kvflow-evict"),
    "silent_over_hicache": ("hicache", "kvflow-silent"),
    "kvflow_over_ideal": ("kvflow", "ideal"),
    "prewarm_over_cold": ("kvflow", "kvflow-prewarm"),
    "kvflow_over_steps": ("kvflow-steps", "kvflow"),
    "kvflow_over_unlearnt": ("kvflow-unlearnt", "kvflow"),
    "unmarked_over_marked": ("kvflow-unmarked", "kvflow"),
    "unmarked_over_hicache": ("hicache", "kvflow-unmarked"),
}
"""Name: (numerator, denominator), of the seconds of one workflow.

A speedup is how many times less time the system in the denominator takes;
`kvflow_over_ideal` is how many times more time kvflow takes than the ceiling, and
`unmarked_over_marked` how many times more where prompts are learnt, not marked.
"""


def paired(results: Results, numerator: str, denominator: str) -> Spread:
    """Ratios of the seconds of the same run on two systems.

    Pairs, because the machine's own drift hits both members alike.
    """
    above, below = results[numerator], results[denominator]
    return Spread.of([a.seconds / b.seconds for a, b in zip(above, below, strict=True)])


def compare(results: Results) -> dict[str, Spread]:
    """Every comparison of which both systems were run."""
    return {
        name: paired(results, *pair)
        for name, pair in COMPARISONS.items()
        if set(pair) <= set(results)
    }


def outputs_identical(results: Results) -> bool:
    """Whether every call gave the same token ids on all systems."""
    return len({_outputs(workflows) for workflows in results.values()}) == 1


def largest_logprob_gap(results: Results) -> float:
    """The largest difference of one output token's log-probability, in nats."""
    first, *others = [
        [value for run in workflows for call in run.calls for value in call.logprobs]
        for workflows in results.values()
    ]
    return max(
        (abs(a - b) for other in others for a, b in zip(first, other, strict=False)),
        default=0.0,
    )


def _outputs(workflows: Sequence[Workflow]) -> tuple[tuple[int, ...], ...]:
    return tuple(call.output for run in workflows for call in run.calls)


def summarise(workflows: Sequence[Workflow]) -> dict[str, dict[str, Any]]:
    """Seconds over the runs, and tokens per measured workflow (their mean)."""
    seconds = [run.seconds for run in workflows]
    calls = [call for run in workflows for call in run.calls]
    return {
        "workflow_s": {
            "mean": statistics.fmean(seconds),
            "min": min(seconds),
            "max": max(seconds),
            "runs": seconds,
            "spread": asdict(Spread.of(seconds)),
        },
        "tokens": {
            kind: sum(getattr(call, kind) for call in calls) / len(workflows)
            for kind in KINDS
        },
        "agents": _by_agent(calls),
    }


def _by_agent(calls: Sequence[Call]) -> dict[str, dict[str, float]]:
    """Median seconds of an agent's call, and the mean of its tokens."""
    agents: dict[str, list[Call]] = {}
    for call in calls:
        agents.setdefault(call.agent, []).append(call)
    return {
        agent: {
            "seconds": statistics.median(call.seconds for call in own),
            **{
                kind: statistics.fmean(getattr(call, kind) for call in own)
                for kind in KINDS
            },
        }
        for agent, own in agents.items()
    }
