"""The paper's figures, simulated on the paper's hardware."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kvflow_server.bench.paper.testbeds import TESTBEDS

from .experiment import Comparison, compare
from .profiles import PROFILES
from .scenario import Scenario
from .server import ServerSize

__all__ = ["FIGURES", "Case", "Figure", "run_case"]

FIGURE_SYSTEMS = (
    "ideal",
    "recompute",
    "hicache",
    "protect",
    "evict",
    "steps",
    "kvflow",
)
HOST_SHARE = 2
"""Host memory over all fixed prompts. The paper does not say how much it had."""


@dataclass(frozen=True, slots=True)
class Case:
    """One group of bars, and the speed-ups over recomputation that the paper prints."""

    profile: str
    scenario: Scenario
    label: str
    paper: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of the paper."""

    title: str
    cases: Callable[[], list[Case]]


def run_case(case: Case, systems: tuple[str, ...] = FIGURE_SYSTEMS) -> Comparison:
    """Simulate it on the paper's hardware."""
    profile = PROFILES[case.profile]
    size = ServerSize(
        pool=profile.pool_tokens,
        host=HOST_SHARE * max(case.scenario.prompt_tokens, profile.pool_tokens),
    )
    return compare(profile.costs, size, case.scenario, systems)


def _fig5() -> list[Case]:
    return [
        Case(
            testbed.name,
            Scenario(fixed=mix.fixed, dynamic=mix.dynamic, output=mix.output),
            str(mix),
            {"hicache": paper.hicache, "kvflow": paper.kvflow},
        )
        for testbed in TESTBEDS.values()
        for mix, paper in testbed.fig5.items()
    ]


_FIG6 = {
    ("h100", 512, 20): (1.103, 1.136),
    ("h100", 1024, 10): (0.958, 1.150),
    ("h100-llama3-8b", 512, 128): (0.567, 1.019),
    ("h100-llama3-8b", 1024, 64): (0.571, 1.250),
}
"""(profile, fixed tokens, concurrent workflows) -> (HiCache, KVFlow) as printed."""


def _fig6() -> list[Case]:
    return [
        Case(
            profile,
            Scenario(fixed=fixed, dynamic=256, output=256, workflows=workflows, runs=4),
            f"{fixed}/{workflows}",
            {"hicache": hicache, "kvflow": kvflow},
        )
        for (profile, fixed, workflows), (hicache, kvflow) in _FIG6.items()
    ]


_FIG8 = {("h100", 16): (1.096, 1.120), ("h100-llama3-8b", 128): (0.988, 1.067)}
"""(profile, tasks at a time) -> (HiCache, KVFlow) as printed."""


def _fig8() -> list[Case]:
    return [
        Case(
            profile,
            Scenario(
                peer=True,
                agents=4,
                fixed=399,
                dynamic=306,
                output=120,
                workflows=tasks,
                runs=8,
                jitter_s=0.01,
                stagger_s=5,
            ),
            f"PEER, {tasks} tasks",
            {"hicache": hicache, "kvflow": kvflow},
        )
        for (profile, tasks), (hicache, kvflow) in _FIG8.items()
    ]


_BREAKDOWN = {
    1: {"hicache": 1.42 / 1.24, "kvflow": 1.42},
    2: {},
}
"""Branches -> the camera-ready's figures for 4096/32/32 on the H100: 1.24 times over
HiCache, 1.42 over recomputation; eviction alone 1.11 over HiCache, 1.29 with prefetch."""


def _branches() -> list[Case]:
    return [
        Case("h100", Scenario(output=32, branches=n), f"{n} per stage", paper)
        for n, paper in _BREAKDOWN.items()
    ]


def _dynamic() -> list[Case]:
    return [
        Case(
            profile,
            Scenario(dynamic_graph=True, learn=learn, runs=20, warm_runs=5),
            f"{profile}, {'learnt' if learn else 'unlearnt'}",
            {},
        )
        for profile in ("a10g", "h100")
        for learn in (False, True)
    ]


FIGURES = {
    "5": Figure("Figure 5: ten sequential agents, batch size 1", _fig5),
    "6": Figure("Figure 6: concurrent workflows", _fig6),
    "8": Figure("Figure 8: PEER on financial questions", _fig8),
    "branches": Figure(
        "Camera-ready: each stage picks one of several agents", _branches
    ),
    "dynamic": Figure(
        "Agents chosen at run time, one transition in ten rare", _dynamic
    ),
}
