"""How well the simulator predicts what was measured on the emulated accelerator.

The costs of the machine are fitted to two of the systems that were run, the one that
never evicts and the one that computes everything again; what HiCache and KVFlow take is
then a prediction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kvflow_server.bench.paper.scale import AGENTS, scaled
from kvflow_server.bench.paper.testbeds import Mix

from .costs import Costs
from .experiment import compare
from .scenario import Scenario
from .server import ServerSize

__all__ = ["Agreement", "agreements", "fitted_costs", "parse_mix"]

FITTED = ("ideal", "recompute")
PREDICTED = ("hicache", "kvflow")
_NAMES = ("call_s", "prefill_token_s", "prefill_attention_s", "decode_s")


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
    found = []
    for testbed, mixes in report["mixes"].items():
        emulation = report["testbeds"][testbed]["emulation"]
        small = {n: scaled(parse_mix(n), report["effort"]["factor"]) for n in mixes}
        costs = fitted_costs(testbed, emulation, small, mixes)
        size = ServerSize(pool=emulation["pool_tokens"], host=1 << 20)
        for name, measured in mixes.items():
            times = _simulated(costs, size, small[name])
            found += [
                Agreement(testbed, name, system, measured[system], seconds)
                for system, seconds in times.items()
            ]
    return found


def parse_mix(text: str) -> Mix:
    """``"4096/32/32"``."""
    return Mix(*map(int, text.split("/")))


def fitted_costs(
    name: str,
    emulation: Mapping[str, Any],
    small: Mapping[str, Mix],
    mixes: Mapping[str, Mapping[str, float]],
) -> Costs:
    """The machine that takes what `ideal` and `recompute` took, in the least squares of
    relative errors; no cost is negative."""
    rows, wanted = [], []
    for mix, measured in mixes.items():
        for system in FITTED:
            rows.append(_shape(small[mix], cached=system == "ideal"))
            wanted.append(measured[system])
    dims = emulation["dims"]
    values = dict(zip(_NAMES, _non_negative(rows, wanted), strict=True))
    values["prefill_token_s"] = max(values["prefill_token_s"], 1e-9)
    head = dims["hidden"] // dims["heads"]
    return Costs(
        name=f"emulated {name}",
        layers=dims["layers"],
        kv_bytes=2 * dims["layers"] * dims["kv_heads"] * head * 4,
        bus_bytes_per_s=emulation["pcie_gbps"] * 1e9,
        emulated=True,
        source="fitted to the measured systems ideal and recompute",
        **values,
    )


def _shape(mix: Mix, *, cached: bool) -> list[float]:
    """How often a workflow of this mix pays each cost of `_NAMES`."""
    new = mix.dynamic if cached else mix.fixed + mix.dynamic
    before = mix.fixed if cached else 0
    pairs = new * (before + new / 2)
    return [AGENTS * n for n in (1.0, float(new), pairs, mix.output - 1.0)]


def _non_negative(rows: list[list[float]], wanted: list[float]) -> list[float]:
    """Least squares of the relative errors; a cost that comes out negative is 0."""
    import numpy as np

    table = np.array(rows) / np.array(wanted)[:, None]
    used = list(range(len(rows[0])))
    while True:
        some, *_ = np.linalg.lstsq(table[:, used], np.ones(len(wanted)), rcond=None)
        negative = [used[i] for i, value in enumerate(some) if value < 0]
        if not negative:
            values = dict(zip(used, some.tolist(), strict=True))
            return [values.get(i, 0.0) for i in range(len(rows[0]))]
        used.remove(negative[0])


def _simulated(costs: Costs, size: ServerSize, mix: Mix) -> dict[str, float]:
    scenario = Scenario(
        agents=AGENTS,
        fixed=mix.fixed,
        dynamic=mix.dynamic,
        output=mix.output,
        runs=3,
        warm_runs=3,
    )
    found = compare(costs, size, scenario, (*FITTED, *PREDICTED))
    return {name: result.workflow_s for name, result in found.results.items()}
