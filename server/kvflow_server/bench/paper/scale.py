"""The paper's mixes at a size that two cores can run, and what must stay in proportion."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from kvflow_server.bench.settings import Settings
from kvflow_server.emulated.tiny import TinyDims

from .testbeds import Mix, Testbed

__all__ = ["AGENTS", "Effort", "Proportion", "Servers", "Speed", "scaled", "wanted"]

AGENTS = 10


@dataclass(frozen=True, slots=True)
class Effort:
    """How small, and how often."""

    factor: int
    """Every token count of the paper is divided by it."""
    runs: tuple[int, int, int]
    """Measured workflows of a mix: of up to 32 generated tokens, up to 256, more."""
    settling: int = 2
    """Workflows before the first mix of a prompt size."""
    agents: int = AGENTS
    calls: int = AGENTS
    """Of one workflow."""

    def runs_of(self, mix: Mix) -> int:
        return self.runs[(mix.output > 32) + (mix.output > 256)]


@dataclass(frozen=True, slots=True)
class Speed:
    """What a server was measured to do; seconds."""

    prefill: dict[int, float]
    """Of a fixed prompt, by the paper's tokens."""
    first: float
    """Of a call that computes its suffix only and generates one token, HTTP included."""
    step: float
    """Of every token after that."""

    def hit_s(self, output: int) -> float:
        """Of a call that generates `output` tokens (scaled) and finds its prompt."""
        return self.first + (output - 1) * self.step


@dataclass(frozen=True, slots=True)
class Proportion:
    """Per agent, over the prefill of its fixed prompt."""

    load: float
    hit: float
    """All that is done when the fixed prompt is on the device: suffix and output."""


@dataclass(frozen=True, slots=True)
class Servers:
    """What all servers of a testbed share."""

    pool_tokens: int
    everything_tokens: int
    pcie_gbps: float
    dims: TinyDims
    seconds: float
    """Emulated seconds per second of the testbed."""


def scaled(mix: Mix, factor: int) -> Mix:
    """Rounded, at least one token of each."""
    return Mix(
        *(max(1, round(n / factor)) for n in (mix.fixed, mix.dynamic, mix.output))
    )


def wanted(testbed: Testbed, mix: Mix) -> Proportion:
    prefill = testbed.prefill_s(mix.fixed)
    return Proportion(testbed.load_s(mix.fixed) / prefill, testbed.hit_s(mix) / prefill)


def settings_of(
    mix: Mix, effort: Effort, servers: Servers, systems: tuple[str, ...]
) -> Settings:
    """The scaled mix as an experiment of `kvflow bench single`."""
    small = scaled(mix, effort.factor)
    return Settings(
        agents=effort.agents,
        fixed=small.fixed,
        dynamic=small.dynamic,
        output=small.output,
        # A little over, so that rounding down gives the pool and not one token less.
        pool_ratio=(servers.pool_tokens + 0.5) / (effort.agents * small.fixed),
        pcie_gbps=servers.pcie_gbps,
        runs=effort.runs_of(mix),
        systems=systems,
        model_dims=servers.dims,
    )


def everything_tokens(mixes: Iterable[Mix], effort: Effort) -> int:
    """Enough for all that is computed in all mixes."""
    total = 0
    for mix in mixes:
        small = scaled(mix, effort.factor)
        runs = effort.runs_of(mix) + effort.settling + 4
        total += effort.agents * small.fixed
        total += effort.calls * runs * (small.dynamic + small.output)
    return total


def fit(testbed: Testbed, effort: Effort, speed: Speed) -> tuple[float, float]:
    """(emulated seconds per second of the testbed, decode that is too dear by).

    The first by the prefills, the second over all mixes, in the geometric mean: 1.1 says
    that a call of which only the prompt is cached takes a tenth too long.
    """
    seconds = _mean(s / testbed.prefill_s(size) for size, s in speed.prefill.items())
    dear = _mean(
        speed.hit_s(scaled(mix, effort.factor).output) / (seconds * testbed.hit_s(mix))
        for mix in testbed.fig5
    )
    return seconds, dear


def bus_gbps(testbed: Testbed, effort: Effort, dims: TinyDims, seconds: float) -> float:
    """At which a prompt is loaded in the testbed's time, scaled (10^9 bytes/s)."""
    tokens = 4096
    small = tokens // effort.factor * dims.kv_bytes_per_token
    return small / (testbed.load_s(tokens) * seconds) / 1e9


def _mean(values: Iterable[float]) -> float:
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))
