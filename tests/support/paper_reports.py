"""What `kvflow bench paper` would have measured, at times that a test chooses; the
reports are made of it by the real builders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fig5_report import call_of, workflow_of

from kvflow_server.bench.paper import fig5, fig6
from kvflow_server.bench.paper.cli import DEFAULT_MIXES
from kvflow_server.bench.paper.courses import COURSES
from kvflow_server.bench.paper.fig5 import MixResult, TestbedResult
from kvflow_server.bench.paper.fig6 import Block, CrowdResult
from kvflow_server.bench.paper.fig8 import MEAN
from kvflow_server.bench.paper.report_course import build_report_course
from kvflow_server.bench.paper.scale import DIMS, Servers, device_costs
from kvflow_server.bench.paper.testbeds import CROWDED, TESTBEDS, Crowd
from kvflow_server.bench.results import Workflow

__all__ = ["course_report", "crowd_results", "fig5_result", "peer_results"]

SECONDS = {"ideal": 1.0, "recompute": 2.2, "hicache": 1.5, "kvflow": 1.0}
CROWD_SECONDS = {"ideal": 4.0, "recompute": 6.0, "hicache": 5.0, "kvflow": 4.0}
COURSE_SECONDS = SECONDS | {"kvflow-steps": 1.25, "kvflow-unlearnt": 1.2}
Seconds = Mapping[str, float]
"""By system, of a workflow or a block; systems besides the figure's own are added."""


def fig5_result(name: str, seconds: Seconds | None = None) -> TestbedResult:
    """All mixes of a testbed, alike."""
    testbed = TESTBEDS[name]
    found = TestbedResult(testbed, Servers(2304, 9000, DIMS))
    for mix in testbed.fig5:
        costs = device_costs(testbed, mix, fig5.QUICK.scale_of(testbed, mix))
        times = SECONDS | dict(seconds or {})
        runs = {system: [workflow_of(s)] * 3 for system, s in times.items()}
        found.mixes[mix] = MixResult(
            runs, {"kvflow": {"prefetch_tokens": 512.0}}, costs
        )
    return found


def crowd_results(seconds: Seconds | None = None) -> list[CrowdResult]:
    """All crowds of figure 6."""
    return [
        _crowd_result(name, crowd, seconds)
        for name, crowded in CROWDED.items()
        for crowd in crowded.fig6
    ]


def peer_results(seconds: Seconds | None = None) -> list[CrowdResult]:
    """Figure 8's."""
    return [
        _crowd_result(name, Crowd(MEAN, crowded.peer[0]), seconds)
        for name, crowded in CROWDED.items()
    ]


def _crowd_result(name: str, crowd: Crowd, seconds: Seconds | None) -> CrowdResult:
    crowded = CROWDED[name]
    paper = crowded.fig6.get(crowd, crowded.peer[1])
    costs = device_costs(crowded.testbed, crowd.mix, fig6.QUICK.scale)
    servers = Servers(2304, 9000, DIMS)
    result = CrowdResult(crowded, crowd, paper, 20, servers, costs, 0.1, 0.05)
    for system, time in (CROWD_SECONDS | dict(seconds or {})).items():
        block = Block(time, (Workflow(time, (call_of(time),)),) * 20)
        result.blocks[system] = [block] * 3
        result.counters[system] = {}
    return result


def course_report(
    name: str, seconds: Seconds | None = None, runs: Sequence[int] = range(4)
) -> dict[str, Any]:
    """Of branches or the dynamic workflow on the H100: the ways of these runs."""
    course, testbed = COURSES[name], TESTBEDS["h100"]
    effort = replace(fig5.QUICK, agents=course.agents, calls=course.calls, settling=4)
    found = TestbedResult(testbed, Servers(2304, 9000, DIMS))
    times = COURSE_SECONDS | dict(seconds or {})
    for mix in testbed.fig5:
        if str(mix) in DEFAULT_MIXES[name]:
            ways = {
                system: [_way(course.path(run), time) for run in runs]
                for system, time in times.items()
            }
            costs = device_costs(testbed, mix, effort.scale_of(testbed, mix))
            found.mixes[mix] = MixResult(ways, {"kvflow": {}}, costs)
    return build_report_course([found], effort, course)


def _way(path: Sequence[int], seconds: float) -> Workflow:
    calls = [
        replace(call_of(seconds / len(path)), agent=f"agent-{number}")
        for number in path
    ]
    return Workflow(seconds, tuple(calls))
