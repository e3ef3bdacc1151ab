"""How well the simulator predicts what was measured on the emulated accelerator.

The costs of the emulated device are those that the servers were given. What a call takes
beside it (HTTP, tokenizer, scheduler) is fitted to the system that never evicts; what
recomputation, HiCache and KVFlow take is then a prediction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kvflow_server.bench.paper.scale import AGENTS, scaled
from kvflow_server.bench.paper.testbeds import Mix
from kvflow_server.emulated.costs import Costs

from .experiment import compare
from .scenario import Scenario
from .server import ServerSize

__all__ = ["Agreement", "agreements", "fitted_costs", "parse_mix"]

FITTED = "ideal"
PREDICTED = ("recompute", "hicache", "kvflow")


@dataclass(frozen=True, slots=True)
class Agreement:
    """Seconds of a workflow of one mix on one system."""

    testbed: str
    mix: str
    system: str
    measured: float
    simulated: float

    @property
    def error(self) -> float:
        """Relative: 0.1 is a tenth too long."""
        return self.simulated / self.measured - 1

    def to_dict(self) -> dict[str, object]:
        return asdict(self) | {"error": self.error}


def agreements(report: Mapping[str, Any]) -> list[Agreement]:
    """Of every mix and system in the report of `kvflow bench paper --fig 5`.

    Raises `ValueError` if it is none.
    """
    if report.get("figure") != "5" or "mixes" not in report:
        raise ValueError("not a report of `kvflow bench paper --fig 5`")
    if not report["emulated"]:
        raise ValueError("measured on a real device, whose costs nobody has said")
    found = []
    for testbed, mixes in report["mixes"].items():
        size = ServerSize(
            pool=report["testbeds"][testbed]["emulation"]["pool_tokens"], host=1 << 20
        )
        for name, measured in mixes.items():
            small = scaled(parse_mix(name), report["effort"]["factor"])
            costs = fitted_costs(Costs(**measured["costs"]), small, measured[FITTED])
            times = _simulated(costs, size, small)
            found += [
                Agreement(testbed, name, system, measured[system], seconds)
                for system, seconds in times.items()
            ]
    return found


def parse_mix(text: str) -> Mix:
    """``"4096/32/32"``."""
    return Mix(*map(int, text.split("/")))


def fitted_costs(device: Costs, mix: Mix, ideal_s: float) -> Costs:
    """The device, and what a call takes beside it: so much that a workflow which never
    evicts takes `ideal_s`. Nothing else is fitted."""
    alone = device.hit_seconds(mix.fixed, mix.dynamic, mix.output)
    return device.changed(
        call_s=max(0.0, ideal_s / AGENTS - alone),
        source=f"{device.source}; a call's own time by the measured system ideal",
    )


def _simulated(costs: Costs, size: ServerSize, mix: Mix) -> dict[str, float]:
    scenario = Scenario(
        agents=AGENTS,
        fixed=mix.fixed,
        dynamic=mix.dynamic,
        output=mix.output,
        runs=3,
        warm_runs=3,
    )
    found = compare(costs, size, scenario, (FITTED, *PREDICTED))
    return {name: result.workflow_s for name, result in found.results.items()}
