"""One quantity after another value: what more host memory, or a faster bus, buys."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kvflow_server.emulated.costs import Costs
from kvflow_server.policy.prefetch import PrefetchLimits

from .experiment import Comparison, compare
from .scenario import Scenario
from .server import ServerSize

__all__ = ["QUANTITIES", "Setup", "Sweep", "parse_sweep"]


@dataclass(frozen=True, slots=True)
class Setup:
    """All that a simulation is given."""

    costs: Costs
    size: ServerSize
    scenario: Scenario
    limits: PrefetchLimits = field(default_factory=PrefetchLimits)

    def run(self, systems: Sequence[str]) -> Comparison:
        return compare(self.costs, self.size, self.scenario, systems, self.limits)


def _scenario(name: str) -> Callable[[Setup, float], Setup]:
    def change(setup: Setup, value: float) -> Setup:
        # What the names say is in the scenario, all of it whole numbers.
        scenario = dataclasses.replace(setup.scenario, **{name: int(value)})  # type: ignore[arg-type]
        return dataclasses.replace(setup, scenario=scenario)

    return change


def _bus(setup: Setup, value: float) -> Setup:
    return dataclasses.replace(
        setup, costs=setup.costs.changed(bus_bytes_per_s=value * 1e9)
    )


def _pool(setup: Setup, value: float) -> Setup:
    size = dataclasses.replace(setup.size, pool=int(value))
    return dataclasses.replace(setup, size=size)


def _host(setup: Setup, value: float) -> Setup:
    size = dataclasses.replace(setup.size, host=int(value))
    return dataclasses.replace(setup, size=size)


def _horizon(setup: Setup, value: float) -> Setup:
    limits = dataclasses.replace(
        setup.limits, horizon=int(value), idle_horizon=int(value) + 1
    )
    return dataclasses.replace(setup, limits=limits)


def _inflight(setup: Setup, value: float) -> Setup:
    limits = dataclasses.replace(setup.limits, max_inflight=int(value))
    return dataclasses.replace(setup, limits=limits)


QUANTITIES: dict[str, Callable[[Setup, float], Setup]] = {
    "bus-gbps": _bus,
    "pool-tokens": _pool,
    "host-tokens": _host,
    "horizon": _horizon,
    "inflight": _inflight,
    **{
        name: _scenario(name)
        for name in ("agents", "fixed", "dynamic", "output", "workflows")
    },
}


@dataclass(frozen=True, slots=True)
class Sweep:
    """A quantity of `QUANTITIES` and the values it takes."""

    quantity: str
    values: tuple[float, ...]


def parse_sweep(text: str) -> Sweep:
    """``"bus-gbps=1,2,4"``. Raises `ValueError` naming what is wrong."""
    name, _, values = text.partition("=")
    if name not in QUANTITIES:
        raise ValueError(f"{name!r} cannot be swept, use {', '.join(QUANTITIES)}")
    try:
        numbers = tuple(float(value) for value in values.split(","))
    except ValueError:
        raise ValueError(f"{text!r} is not {name}=NUMBER,NUMBER,...") from None
    return Sweep(name, numbers)
