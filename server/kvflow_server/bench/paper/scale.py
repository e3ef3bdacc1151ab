"""The paper's mixes at a size that two cores can run, and what must stay in proportion."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvflow_server.bench.settings import Settings
from kvflow_server.emulated.costs import Costs
from kvflow_server.emulated.tiny import TinyDims

from .testbeds import Mix, Testbed

__all__ = [
    "AGENTS",
    "DIMS",
    "Effort",
    "Proportion",
    "Scale",
    "Servers",
    "device_costs",
    "everything_tokens",
    "scaled",
    "settings_of",
    "wanted",
]

AGENTS = 10
DIMS = TinyDims(
    hidden=128,
    layers=4,
    heads=2,
    kv_heads=1,
    intermediate=256,
    vocab=2048,
    context=8192,
)
"""So small that the emulated device, and not the processor, says how long a pass takes."""


MOST_OUTPUT = 8
"""Of one request at a time: what this machine takes for a step varies, and many steps
would be all noise."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How small, and how fast."""

    factor: int
    """Every token count of the paper is divided by it."""
    seconds: float
    """Emulated seconds for one of the testbed's: below 1, the device is that much
    faster."""
    thinned: int = 1
    """One request stands for so many, which are alike and run at the same time."""
    most_output: int = MOST_OUTPUT
    """Tokens of an answer here, whatever the testbed's."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How small, how long, and how often."""

    factor: int
    """Every token count of the paper is divided by it."""
    call_s: tuple[float, float, float] | None
    """Seconds that a call of a mix takes here which finds its prompt, by the tokens
    that it generates: up to 32, up to 256, more. None: what the device takes."""
    runs: tuple[int, int, int]
    """Measured workflows of a mix, likewise."""
    settling: int = 2
    """Workflows before the first mix of a prompt size."""
    agents: int = AGENTS
    calls: int = AGENTS
    """Of one workflow."""
    most_output: int = MOST_OUTPUT
    """Tokens of an answer here, whatever the paper's."""

    def runs_of(self, mix: Mix) -> int:
        return self.runs[_class_of(mix)]

    def small(self, mix: Mix) -> Mix:
        """As it is run here."""
        return scaled(mix, self.factor, self.most_output)

    def scale_of(self, testbed: Testbed, mix: Mix) -> Scale:
        """Raises `ValueError` where the device is not an emulated one."""
        if self.call_s is None:
            raise ValueError("nothing says how long a call takes")
        seconds = self.call_s[_class_of(mix)] / testbed.hit_s(mix)
        return Scale(self.factor, seconds, most_output=self.most_output)

    def device_costs(self, testbed: Testbed, mix: Mix) -> Costs:
        """Of the emulated device, for this mix."""
        return device_costs(testbed, mix, self.scale_of(testbed, mix))


def _class_of(mix: Mix) -> int:
    return (mix.output > 32) + (mix.output > 256)


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
    dims: TinyDims
    pcie_gbps: float | None = 1.0
    """Until they read the costs of the device (`emulated.pace`). None: a real bus."""

    @property
    def emulated(self) -> bool:
        return self.pcie_gbps is not None


def scaled(mix: Mix, factor: int, most_output: int = MOST_OUTPUT) -> Mix:
    """Rounded, at least one token of each. Longer answers are cut to `most_output`, whose
    tokens then stand for more."""
    fixed, dynamic, output = (
        max(1, round(n / factor)) for n in (mix.fixed, mix.dynamic, mix.output)
    )
    return Mix(fixed, dynamic, min(output, most_output))


def wanted(testbed: Testbed, mix: Mix) -> Proportion:
    prefill = testbed.prefill_s(mix.fixed)
    return Proportion(testbed.load_s(mix.fixed) / prefill, testbed.hit_s(mix) / prefill)


def device_costs(
    testbed: Testbed, mix: Mix, scale: Scale, dims: TinyDims = DIMS
) -> Costs:
    """The testbed's device, as the emulated one has to be for this mix.

    A token stands for `factor` of them, and for as many requests as one stands for. The
    pass over a suffix is one pass, there and here; all other generated tokens together
    take what the testbed's take.
    """
    real, seconds = testbed.costs, scale.seconds
    tokens = scale.factor * scale.thinned
    generated = scaled(mix, scale.factor, scale.most_output).output
    steps = (mix.output - 1) / max(1, generated - 1)
    load_s = tokens * real.kv_bytes / real.bus_bytes_per_s * seconds
    return Costs(
        name=f"{testbed.name}, emulated",
        layers=dims.layers,
        kv_bytes=dims.kv_bytes_per_token,
        bus_bytes_per_s=dims.kv_bytes_per_token / load_s,
        prefill_least_s=real.prefill_least_s * seconds,
        prefill_token_s=real.prefill_token_s * tokens * seconds,
        prefill_attention_s=real.prefill_attention_s * tokens * scale.factor * seconds,
        decode_s=real.decode_s * steps * seconds,
        decode_token_s=real.decode_token_s * tokens * steps * seconds,
        emulated=True,
        source=f"{real.source}; {scale.factor} tokens and {1 / seconds:.3g} seconds of "
        "the testbed are one here",
    )


def settings_of(
    mix: Mix, effort: Effort, servers: Servers, systems: tuple[str, ...]
) -> Settings:
    """The scaled mix as an experiment of `kvflow bench single`."""
    small = effort.small(mix)
    return Settings(
        agents=effort.agents,
        fixed=small.fixed,
        dynamic=small.dynamic,
        output=small.output,
        # A little over, so that rounding down gives the pool and not one token less.
        pool_ratio=(servers.pool_tokens + 0.5) / (effort.agents * small.fixed),
        pcie_gbps=servers.pcie_gbps or 1.0,  # the servers' own is another matter
        runs=effort.runs_of(mix),
        systems=systems,
        model_dims=servers.dims,
    )


def everything_tokens(mixes: Iterable[Mix], effort: Effort) -> int:
    """Enough for all that is computed in all mixes."""
    total = 0
    for mix in mixes:
        small = effort.small(mix)
        runs = effort.runs_of(mix) + effort.settling + SPARE_RUNS
        total += effort.agents * small.fixed
        total += effort.calls * runs * (small.dynamic + small.output)
    return total


SPARE_RUNS = 6
"""Of a mix: those that tune the device, those that are run again, and some."""
