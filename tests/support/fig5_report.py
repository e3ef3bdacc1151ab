"""A report of `kvflow bench paper --fig 5` whose times the simulator has made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvflow_server.bench.paper.calibrate import START_DIMS, Calibrated
from kvflow_server.bench.paper.fig5 import QUICK, MixResult, TestbedResult
from kvflow_server.bench.paper.report import build_report
from kvflow_server.bench.paper.scale import AGENTS, Servers, Speed, scaled
from kvflow_server.bench.paper.testbeds import TESTBEDS, Mix
from kvflow_server.bench.results import Call, Workflow
from kvflow_server.sim.costs import Costs
from kvflow_server.sim.experiment import compare
from kvflow_server.sim.scenario import Scenario
from kvflow_server.sim.server import ServerSize

__all__ = ["SYSTEMS", "call_of", "simulated_report", "workflow_of"]

SYSTEMS = ("ideal", "recompute", "hicache", "kvflow")
Noise = Callable[[str, Mix], float]
"""A factor on the seconds of a system in a mix."""


def simulated_report(noise: Noise = lambda system, mix: 1.0) -> dict[str, Any]:
    """One testbed, on a machine with costs that nobody tells the reader."""
    testbed = TESTBEDS["a10g"]
    dims = START_DIMS["a10g"]
    servers = Servers(1152, 5000, 0.02, dims, 0.04)
    speed = Speed({4096: 0.04, 8192: 0.08}, 0.04, 0.04)
    found = TestbedResult(testbed, Calibrated(servers, speed, 1.0, "", ""))
    costs = Costs(
        name="hidden",
        layers=dims.layers,
        kv_bytes=dims.kv_bytes_per_token,
        bus_bytes_per_s=servers.pcie_gbps * 1e9,
        call_s=0.011,
        prefill_token_s=0.0004,
        decode_s=0.05,
    )
    for mix in testbed.fig5:
        small = scaled(mix, QUICK.factor)
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
        found.mixes[mix] = MixResult(runs, {})
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
