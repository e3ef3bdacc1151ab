"""A report of `kvflow bench paper --fig 5` whose times the simulator has made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvflow_server.bench.paper.fig5 import QUICK, MixResult, TestbedResult
from kvflow_server.bench.paper.report import build_report
from kvflow_server.bench.paper.scale import (
    AGENTS,
    DIMS,
    Servers,
    device_costs,
    scaled,
)
from kvflow_server.bench.paper.testbeds import TESTBEDS, Mix
from kvflow_server.bench.results import Call, Workflow
from kvflow_server.sim.experiment import compare
from kvflow_server.sim.scenario import Scenario
from kvflow_server.sim.server import ServerSize

__all__ = ["SYSTEMS", "call_of", "simulated_report", "workflow_of"]

SYSTEMS = ("ideal", "recompute", "hicache", "kvflow")
Noise = Callable[[str, Mix], float]
"""A factor on the seconds of a system in a mix."""


def simulated_report(noise: Noise = lambda system, mix: 1.0) -> dict[str, Any]:
    """One testbed, on a machine whose calls take a time that nobody tells the reader."""
    testbed = TESTBEDS["a10g"]
    servers = Servers(2304, 9000, DIMS)
    found = TestbedResult(testbed, servers)
    for mix in testbed.fig5:
        small = scaled(mix, QUICK.factor)
        told = device_costs(testbed, mix, QUICK.scale_of(testbed, mix))
        costs = told.changed(call_s=0.011)
        scenario = Scenario(
            agents=AGENTS,
            fixed=small.fixed,
            dynamic=small.dynamic,
            output=small.output,
            runs=3,
            warm_runs=3,
        )
        size = ServerSize(pool=servers.pool_tokens, host=1 << 20)
        results = compare(costs, size, scenario, SYSTEMS).results
        runs = {
            name: [workflow_of(result.workflow_s * noise(name, mix))] * 2
            for name, result in results.items()
        }
        found.mixes[mix] = MixResult(runs, {}, told)
    return build_report([found], QUICK)


def call_of(seconds: float) -> Call:
    """One that says nothing else of note."""
    return Call(
        agent="agent-0",
        output=(7,),
        logprobs=(-0.5,),
        prompt=10,
        device=6,
        host=3,
        seconds=seconds,
    )


def workflow_of(seconds: float) -> Workflow:
    return Workflow(seconds, (call_of(seconds / AGENTS),) * AGENTS)
