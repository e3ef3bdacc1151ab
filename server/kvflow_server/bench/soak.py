"""The soak: many applications for a long time, and what is left when they are gone."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import httpx
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from kvflow_sdk.wire import STATE_PATH
from kvflow_server.edge.launcher import ServerProcess
from kvflow_server.emulated.tiny import SMALL_DIMS, TinyDims, tiny_model
from kvflow_server.engine.overhead import quantile

from .application import Applications, Tally
from .memory import MemoryLog
from .report import EMULATED, versions
from .single import terminable

__all__ = ["SoakReport", "SoakSettings", "show", "soak"]

SAMPLE_S = 1.0
WARM_SHARE = 1 / 3
"""Part of the time after which memory and overhead are looked at."""
MAX_GROWTH = 0.02
"""Of the memory, over the time looked at; judged from `JUDGED_MINUTES` on."""
JUDGED_MINUTES = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakSettings:
    """Raises `ValueError` naming the option."""

    minutes: float = 20.0
    clients: int = 32
    """Applications at the same time; each makes room for another after a few runs."""
    pool: int = 4096
    """Device pool in tokens: not enough for the prompts of a fifth of them."""
    host_ratio: float = 2.0
    pcie_gbps: float = 0.02
    lease_s: int = 10
    seed: int = 0
    dims: TinyDims = SMALL_DIMS

    def __post_init__(self) -> None:
        for name in ("minutes", "clients", "pcie_gbps", "lease_s"):
            if getattr(self, name) <= 0:
                option = name.replace("_", "-")
                raise ValueError(f"--{option}: above 0, not {getattr(self, name)}")
        if self.pool < 1024:
            raise ValueError(f"--pool: at least 1024, not {self.pool}")

    def server(self) -> ServerProcess:
        return ServerProcess(
            [
                *("--model-path", str(tiny_model(self.dims)), "--emulated"),
                *("--max-total-tokens", str(self.pool), "--context-length", "2048"),
                *("--hicache-ratio", str(self.host_ratio)),
                *("--emulated-pcie-gbps", str(self.pcie_gbps)),
                *("--chunked-prefill-size", "512", "--random-seed", "0"),
            ],
            env={"KVFLOW_LEASE_S": str(self.lease_s)},
        )


@dataclass(slots=True)
class SoakReport:
    """What happened; `problems` is empty when all is well."""

    settings: SoakSettings
    seconds: float
    interrupted: bool
    tally: Tally
    hung: int
    memory: dict[str, Any]
    overhead: dict[str, float]
    """Microseconds that KVFlow adds to a scheduler pass with work, after warming up."""
    left: dict[str, int]
    """Sizes of the step table and the prompts once every lease has ended."""
    state: Mapping[str, Any]
    """The server's last state report."""

    @property
    def problems(self) -> list[str]:
        found = list(self.tally.troubles)
        if self.hung:
            found.append(f"{self.hung} applications wait for an answer without end")
        if any(self.left.values()):
            found.append(f"left behind: {self.left}")
        pool = self.state["pool"]
        if pool["free"] + pool["evictable"] != pool["tokens"]:
            found.append(f"slots have leaked: {pool}")
        grown = self.memory["growth_mib"] / max(self.memory["warm_mib"], 1)
        if self.seconds >= 60 * JUDGED_MINUTES and grown > MAX_GROWTH:
            found.append(f"memory has grown by {grown:.1%} after warming up")
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the JSON report."""
        settings = {**asdict(self.settings), "dims": asdict(self.settings.dims)}
        times = sorted(self.tally.latencies) or [0.0]
        return {
            "settings": settings,
            "versions": versions(),
            "emulated": True,
            "seconds": self.seconds,
            "interrupted": self.interrupted,
            "applications": self.tally.applications,
            "workflows": self.tally.workflows,
            "requests": self.tally.requests,
            "abandoned": self.tally.abandoned,
            "failed": self.tally.failed,
            "hung": self.hung,
            "requests_per_second": self.tally.requests / self.seconds,
            "latency_s": {
                "median": statistics.median(times),
                "p99": times[int(0.99 * (len(times) - 1))],
                "max": times[-1],
            },
            "memory": self.memory,
            "scheduler_overhead_us": self.overhead,
            "left_behind": self.left,
            "counters": dict(self.state["counters"]),
            "problems": self.problems,
        }


def soak(settings: SoakSettings, console: Console) -> SoakReport:
    """Start a server, run the applications, and wait until everything is forgotten.

    Ctrl-C ends the applications early; what they came to is reported all the same.
    """
    with terminable(), settings.server() as server:
        watch = _Watch(settings, server)
        crowd = Applications(
            server.url, settings.clients, settings.seed, settings.dims.vocab
        )
        crowd.start()
        interrupted = False
        try:
            with _progress(console) as progress:
                watch.run(crowd.tally, progress)
        except KeyboardInterrupt:
            interrupted = True
            console.print("Stopping: the calls under way are awaited.")
        seconds = watch.seconds
        hung = crowd.stop()
        last = watch.state()
        left = _forgotten(server, settings.lease_s)
        return SoakReport(
            settings=settings,
            seconds=seconds,
            interrupted=interrupted,
            tally=crowd.tally,
            hung=hung,
            memory=watch.memory.report(WARM_SHARE * seconds),
            overhead=watch.overhead(last),
            left=left,
            state=watch.state(),
        )


class _Watch:
    """Looks at the server while the applications run."""

    def __init__(self, settings: SoakSettings, server: ServerProcess) -> None:
        self._settings = settings
        self._url = server.url
        self._start = time.monotonic()
        self._warm: dict[float, int] = {}
        """The overhead's buckets when warming up was over."""
        self.memory = MemoryLog(server.pid)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start

    def run(self, tally: Tally, progress: Progress) -> None:
        """Until the time is up."""
        total = 60 * self._settings.minutes
        task = progress.add_task("soak", total=total, detail="")
        warm = False
        while (now := self.seconds) < total:
            mib = self.memory.sample(now)
            if not warm and now >= WARM_SHARE * total:
                warm = True
                self._warm = _buckets(self.state())
            progress.update(
                task,
                completed=now,
                detail=f"{tally.requests:,} requests, {tally.failed} failed, "
                f"{mib:,.0f} MiB",
            )
            time.sleep(SAMPLE_S)

    def state(self) -> dict[str, Any]:
        return _state(self._url)

    def overhead(self, state: Mapping[str, Any]) -> dict[str, float]:
        now = _buckets(state)
        passes = {
            int(bound * 1e3): count - self._warm.get(bound, 0)
            for bound, count in now.items()
        }
        return {
            "passes": sum(passes.values()),
            "p50": quantile(passes, 0.5) / 1e3,
            "p99": quantile(passes, 0.99) / 1e3,
            "max_ever": float(state["overhead"]["max_us"]),
        }


def _state(url: str) -> dict[str, Any]:
    reply = httpx.get(f"{url}{STATE_PATH}", timeout=60, trust_env=False)
    found: dict[str, Any] = reply.raise_for_status().json()
    return found


def _buckets(state: Mapping[str, Any]) -> dict[float, int]:
    return dict(state["overhead"]["buckets_us"])


def _forgotten(server: ServerProcess, lease_s: float) -> dict[str, int]:
    """The sizes once all leases have ended; or those that are left 30 s later."""
    deadline = time.monotonic() + 2 * lease_s + 30
    while True:
        state = _state(server.url)
        sizes: dict[str, int] = state["sizes"]
        done = not any(sizes.values()) and not state["pool"]["loads_in_flight"]
        if done or time.monotonic() > deadline:
            return sizes
        time.sleep(0.5)


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[detail]}"),
        console=console,
    )


def show(report: SoakReport, console: Console) -> None:
    plain = report.to_dict()
    table = Table(title=f"Soak: {report.seconds / 60:.1f} minutes", show_header=False)
    latency, memory = plain["latency_s"], plain["memory"]
    overhead = plain["scheduler_overhead_us"]
    for name, value in (
        ("applications, at once", report.settings.clients),
        ("applications, in all", plain["applications"]),
        ("workflows", plain["workflows"]),
        ("requests", plain["requests"]),
        ("requests failed", plain["failed"]),
        ("requests per second", f"{plain['requests_per_second']:.1f}"),
        ("latency", f"{latency['median']:.2f} s, p99 {latency['p99']:.2f} s"),
        ("memory after warming up", f"{memory['warm_mib']:,.0f} MiB"),
        ("its slope", f"{memory['slope_mib_per_minute']:+.2f} MiB a minute"),
        (
            "added to a scheduler pass",
            f"median {overhead['p50']:,.0f} µs, p99 {overhead['p99']:,.0f} µs",
        ),
        ("left behind", sum(report.left.values())),
    ):
        table.add_row(name, str(value))
    console.print(table)
    for problem in report.problems:
        console.print(problem, style="bold red", markup=False, highlight=False)
    console.print(EMULATED, style="dim")
