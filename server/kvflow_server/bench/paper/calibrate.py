"""Measuring a server of the emulated accelerator, and making the rest fit it.

Prefill is what it is; the bus is given the bandwidth that keeps a load in proportion to
it, and the model the vocabulary that keeps decoding in proportion: the output head runs
once for each generated token, and once for all of a prompt.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable
from contextlib import ExitStack
from itertools import product

from kvflow_server.bench.runner import Runner
from kvflow_server.bench.settings import Settings
from kvflow_server.bench.single import START_S
from kvflow_server.bench.systems import SYSTEMS, start
from kvflow_server.bench.workload import Workload
from kvflow_server.edge.launcher import ServerError
from kvflow_server.emulated.tiny import SPECIAL_TOKENS, TinyDims, tiny_model

from .scale import Effort, Servers, Speed, bus_gbps, everything_tokens, fit
from .testbeds import Testbed

__all__ = ["START_DIMS", "Calibrated", "calibrate", "measure_speed"]

START_DIMS = {
    "a10g": TinyDims(kv_heads=1, vocab=49_152, layers=5),
    "h100": TinyDims(kv_heads=1, vocab=65_536, layers=2),
}
"""Where the search begins; on the machine of `results/` it ends there, too."""
VOCAB_STEP = 8_192
HEAD_SHARE = 0.75
"""Of a decode step with such a vocabulary; only the speed of the search hangs on it."""
TOLERANCE = 0.15
TRIES = 3
ROUNDS = 3
PROBES = 6
STEPS = 8


@dataclasses.dataclass(frozen=True, slots=True)
class Calibrated:
    servers: Servers
    speed: Speed
    dear: float
    """Decoding over what it should take; `scale.fit`."""
    url: str
    """Of the server that was measured: system `ideal`, still running."""
    model: str


def calibrate(
    stack: ExitStack, testbed: Testbed, effort: Effort, tell: Callable[[str], None]
) -> Calibrated:
    """Start `ideal` until its decoding is in proportion within 15%, at most three
    times; `stack` stops it. Raises `ServerError`."""
    dims = START_DIMS[testbed.name]
    for left in reversed(range(TRIES)):
        tell(f"{testbed.name}: starting, vocabulary {dims.vocab}")
        servers = _servers(testbed, effort, dims)
        model = str(tiny_model(dims))
        server = start(SYSTEMS["ideal"], servers, model)
        stack.callback(server.stop)
        server.spawn()
        server.wait_ready(START_S)
        tell(f"{testbed.name}: measuring the machine")
        speed = measure_speed(server.url, effort, dims)
        seconds, dear = fit(testbed, effort, speed)
        tell(f"{testbed.name}: decoding {dear:.2f} of what it should take")
        if abs(dear - 1) <= TOLERANCE or not left:
            break
        server.stop()
        dims = _with_decoding(dims, 1 / dear)
    gbps = bus_gbps(testbed, effort, dims, seconds)
    servers = dataclasses.replace(servers, pcie_gbps=gbps, seconds=seconds)
    return Calibrated(servers, speed, dear, server.url, model)


def _servers(testbed: Testbed, effort: Effort, dims: TinyDims) -> Servers:
    """As `ideal` needs them, which has no bus."""
    return Servers(
        pool_tokens=testbed.pool_tokens // effort.factor,
        everything_tokens=everything_tokens(testbed.fig5, effort) + _probed(effort),
        pcie_gbps=1.0,
        dims=dims,
        seconds=1.0,
    )


def measure_speed(url: str, effort: Effort, dims: TinyDims) -> Speed:
    """Of the server at `url`, which must hold all prompts that are probed.

    Medians over rounds far enough apart that a disturbance spoils one of them. Raises
    `ServerError` when the machine is too busy for prefill to show.
    """
    missed: dict[int, list[float]] = {4096: [], 8192: []}
    firsts: list[float] = []
    longer: list[float] = []
    for turn, size in product(range(ROUNDS), missed):
        settings = Settings(
            agents=PROBES,
            fixed=size // effort.factor,
            dynamic=1,
            output=1,
            model_dims=dims,
            # Other prompts every time: those of one seed begin alike at both sizes.
            seed=1 + turn * 10_000 + size,
        )
        missed[size] += _seconds(url, settings, 0)
        firsts += _seconds(url, settings, 1)
        longer += _seconds(url, dataclasses.replace(settings, output=1 + STEPS), 2)
    first = statistics.median(firsts)
    prefill = {size: statistics.median(own) - first for size, own in missed.items()}
    step = (statistics.median(longer) - first) / STEPS
    if min(*prefill.values(), step) <= 0:
        raise ServerError("computing a prompt takes no measurable time: machine busy?")
    return Speed(prefill, first, step)


def _seconds(url: str, settings: Settings, index: int) -> list[float]:
    """Of the call of each agent."""
    vocabulary = settings.model_dims.vocab
    workload = Workload(settings, vocabulary, first_token=len(SPECIAL_TOKENS))
    with Runner(url, workload, hints=False, logprobs=False) as runner:
        return [call.seconds for call in runner.run(index).calls]


def _probed(effort: Effort) -> int:
    """Tokens that the probes leave in the pool, at most."""
    suffixes = 2 * 3 * (2 + STEPS)
    return ROUNDS * PROBES * ((4096 + 8192) // effort.factor + suffixes)


def _with_decoding(dims: TinyDims, times: float) -> TinyDims:
    """Dimensions with which a decode step takes so many times as long."""
    vocab = dims.vocab * (1 + (times - 1) / HEAD_SHARE)
    steps = max(2, round(vocab / VOCAB_STEP))
    return dataclasses.replace(dims, vocab=steps * VOCAB_STEP)
