"""Requests per second of KVFlow against stock SGLang, on a tree that is full of leaves.

Two real servers take turns, block by block, under the same requests. What is compared
is the server's own work, so everything the client sends is made before it is timed.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import httpx
import msgspec
import psutil

from kvflow_sdk.wire import FixedMark, StepUpdate, to_envelope
from kvflow_server.edge.launcher import ServerProcess
from kvflow_server.emulated.tiny import SPECIAL_TOKENS, TinyDims, tiny_model

from .results import Spread

__all__ = ["Throughput", "ThroughputSettings", "measure_throughput"]

CLIENTS, AGENTS = 8, 8
FIXED, DYNAMIC, OUTPUT = 96, 16, 8
"""Tokens of a request; what follows the fixed prompt is one leaf of the tree."""
DIMS = TinyDims(hidden=256, layers=4, heads=4, kv_heads=4, intermediate=704)
TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class ThroughputSettings:
    leaves: int = 2000
    concurrency: int = 32
    blocks: int = 8
    block_requests: int = 256

    @property
    def pool_tokens(self) -> int:
        """Room for the prompts and the leaves, and for what runs."""
        prompts = CLIENTS * AGENTS * FIXED
        running = self.concurrency * (FIXED + DYNAMIC + OUTPUT)
        return prompts + self.leaves * (DYNAMIC + OUTPUT) + running


@dataclass(frozen=True, slots=True)
class Throughput:
    """Each sample is one block of requests."""

    settings: ThroughputSettings
    rps: dict[str, Spread]
    ratio: Spread
    """KVFlow's requests per second over stock's, of the same block."""
    cpu_ratio: Spread
    """KVFlow's scheduler CPU seconds over stock's, of the same block."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "rps_ratio": self.ratio.median,
            "scheduler_cpu_ratio": self.cpu_ratio.median,
            "throughput": asdict(self) | {"pool_tokens": self.settings.pool_tokens},
        }


def measure_throughput(
    settings: ThroughputSettings, progress: Callable[[str], None]
) -> Throughput:
    """Raises `ServerError` if a server does not start."""
    model = str(tiny_model(DIMS))
    progress("starting two servers")
    common = [
        *("--model-path", model),
        *("--max-total-tokens", str(settings.pool_tokens)),
        *("--max-running-requests", str(settings.concurrency)),
        *("--hicache-ratio", "1.5", "--hicache-write-policy", "write_through"),
        *("--emulated-pcie-gbps", "0", "--random-seed", "0", "--sleep-on-idle"),
    ]
    with (
        ServerProcess([*common, "--kvflow-mode", "full"]) as kvflow,
        ServerProcess([*common, "--kvflow-stock"]) as stock,
    ):
        return asyncio.run(
            _measure(settings, {"kvflow": kvflow, "stock": stock}, progress)
        )


async def _measure(
    settings: ThroughputSettings,
    servers: dict[str, ServerProcess],
    progress: Callable[[str], None],
) -> Throughput:
    load = _Load()
    limits = httpx.Limits(max_connections=settings.concurrency)
    async with httpx.AsyncClient(timeout=TIMEOUT_S, limits=limits) as http:
        progress(f"filling two trees with {settings.leaves} leaves")
        await asyncio.gather(
            *(
                _block(http, server.url, bodies, settings.concurrency)
                for server, bodies in zip(
                    servers.values(),
                    zip(*load.bodies(settings.leaves), strict=True),
                    strict=True,
                )
            )
        )
        rps: dict[str, list[float]] = {name: [] for name in servers}
        cpu: dict[str, list[float]] = {name: [] for name in servers}
        for turn in range(settings.blocks):
            progress(f"measuring, block {turn + 1} of {settings.blocks}")
            both = list(zip(*load.bodies(settings.block_requests), strict=True))
            pairs = list(zip(servers, both, strict=True))
            for name, bodies in pairs if turn % 2 else reversed(pairs):
                server = servers[name]
                before, start = _scheduler_cpu(server.pid), time.perf_counter()
                await _block(http, server.url, bodies, settings.concurrency)
                rps[name].append(len(bodies) / (time.perf_counter() - start))
                cpu[name].append(_scheduler_cpu(server.pid) - before)
    return Throughput(
        settings,
        {name: Spread.of(values) for name, values in rps.items()},
        _ratio(rps),
        _ratio(cpu),
    )


def _ratio(samples: dict[str, list[float]]) -> Spread:
    pairs = zip(samples["kvflow"], samples["stock"], strict=True)
    return Spread.of([ours / theirs for ours, theirs in pairs])


async def _block(
    http: httpx.AsyncClient, url: str, bodies: tuple[bytes, ...], concurrency: int
) -> None:
    """Send all of `bodies`, so many at a time, and wait for the last answer."""
    queue = iter(bodies)

    async def worker() -> None:
        for body in queue:
            reply = await http.post(
                f"{url}/generate",
                content=body,
                headers={"Content-Type": "application/json"},
            )
            reply.raise_for_status()

    await asyncio.gather(*(worker() for _ in range(concurrency)))


class _Load:
    """Requests of workflows: every client runs its agents one after the other."""

    def __init__(self) -> None:
        self._draw = random.Random(0)
        self._prompts = [
            [self._tokens(FIXED) for _ in range(AGENTS)] for _ in range(CLIENTS)
        ]
        self._count = 0

    def bodies(self, count: int) -> Iterator[tuple[bytes, bytes]]:
        """The same requests with metadata and without."""
        for _ in range(count):
            turn, client = divmod(self._count, CLIENTS)
            run, agent = divmod(turn, AGENTS)
            self._count += 1
            body: dict[str, Any] = {
                "input_ids": [*self._prompts[client][agent], *self._tokens(DYNAMIC)],
                "sampling_params": {
                    "temperature": 0,
                    "max_new_tokens": OUTPUT,
                    "ignore_eos": True,
                },
            }
            silent = msgspec.json.encode(body)
            body["kv_hints"] = _hints(client, run, agent)
            yield msgspec.json.encode(body), silent

    def _tokens(self, count: int) -> list[int]:
        low = len(SPECIAL_TOKENS)
        return [self._draw.randrange(low, DIMS.vocab) for _ in range(count)]


def _hints(client: int, run: int, agent: int) -> dict[str, Any]:
    name = f"client-{client:032x}"
    updates = [
        StepUpdate(
            client=name,
            run=f"run-{run}",
            seq=agent + 1,
            agent=f"agent {agent}",
            steps={f"agent {n}": n - agent for n in range(agent, AGENTS)},
            fixed=FixedMark(tokens=FIXED),
        )
    ]
    if run > 1:
        updates.insert(
            0, StepUpdate(client=name, run=f"run-{run - 2}", seq=1 << 20, final=True)
        )
    return to_envelope(updates)


def _scheduler_cpu(server_pid: int) -> float:
    """CPU seconds of the server's scheduler process so far."""
    for process in psutil.Process(server_pid).children(recursive=True):
        if "scheduler" in " ".join(process.cmdline()):
            times = process.cpu_times()
            return float(times.user + times.system)
    raise RuntimeError("the server has no scheduler process")
