"""Traces on the simulator: what was recorded, served again by any machine and policy.

Calls arrive when they were recorded to arrive (open loop), whatever the simulated server
makes of the earlier ones; each may be scaled in time.
"""

from __future__ import annotations

import statistics
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec

from kvflow_sdk.wire import FixedMark, StepUpdate
from kvflow_server.emulated.costs import Costs
from kvflow_server.engine.trace import (
    Record,
    RecordedCall,
    RecordedSteps,
    Trace,
    TraceError,
    Update,
    opened,
)

from .experiment import SYSTEMS
from .mooncake import MooncakeTrace
from .requests import Answer, Call
from .server import Server, ServerSize

__all__ = [
    "Latency",
    "Prompts",
    "Summary",
    "TraceResult",
    "open_trace",
    "play",
    "scan",
    "simulate_trace",
    "update_of",
]

TRACED = ("recompute", "hicache", "kvflow")
"""Names of `SYSTEMS` that a trace is served by unless others are named."""


class Prompts(Protocol):
    """A trace of either format; may be read again and again."""

    path: Path

    @property
    def block(self) -> int: ...

    def __iter__(self) -> Iterator[Record]: ...


def open_trace(path: Path) -> Prompts:
    """A trace of ours, or one of Mooncake's; the first line tells.

    Raises `TraceError`, `OSError`.
    """
    with opened(path) as lines:
        line = lines.readline()
    try:
        first = msgspec.json.decode(line)
    except msgspec.DecodeError as error:
        raise TraceError(path, 1, "line", str(error)) from error
    if isinstance(first, Mapping) and "hash_ids" in first:
        return MooncakeTrace(path)
    return Trace(path)


@dataclass(frozen=True, slots=True)
class Summary:
    """What a trace holds."""

    calls: int = 0
    updates: int = 0
    """Step updates that came by themselves."""
    seconds: float = 0.0
    """Of the last record."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    longest: int = 0
    """Tokens of a prompt with its answer."""

    def to_dict(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in self.__slots__}


def scan(trace: Prompts) -> Summary:
    """Read it through. Raises `TraceError`."""
    calls = updates = prompt = output = longest = 0
    seconds = 0.0
    for record in trace:
        seconds = record.t
        if isinstance(record, RecordedSteps):
            updates += 1
            continue
        calls += 1
        prompt += record.prompt
        output += record.output
        longest = max(longest, record.prompt + record.output)
    return Summary(calls, updates, seconds, prompt, output, longest)


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds."""

    mean: float
    p50: float
    p90: float
    p99: float
    most: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Latency | None:
        """None of nothing."""
        if not seconds:
            return None
        ordered = sorted(seconds)
        at = [ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.9, 0.99, 1)]
        return cls(statistics.fmean(ordered), *at)

    def to_dict(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class TraceResult:
    """What one system made of a trace. Tokens are those of prompts."""

    system: str
    calls: int = 0
    too_long: int = 0
    """Calls that no empty pool of this size could serve; they were left out."""
    device: int = 0
    """Tokens found on the device."""
    host: int = 0
    """Tokens loaded from host memory for the call."""
    prompt: int = 0
    seconds: float = 0.0
    """Until the last call was answered."""
    latencies: array[float] = field(default_factory=lambda: array("d"))
    counters: dict[str, float] = field(default_factory=dict)

    @property
    def hit_rate(self) -> float:
        """Share of the prompt tokens that were not computed."""
        return (self.device + self.host) / self.prompt if self.prompt else 0.0

    def note(self, answer: Answer) -> None:
        self.calls += 1
        self.device += answer.device
        self.host += answer.host
        self.prompt += answer.prompt
        self.latencies.append(answer.ended - answer.arrived)

    def to_dict(self) -> dict[str, object]:
        """`tokens` adds up to the prompts'; `latency_s` is null without any call."""
        latency = Latency.of(self.latencies)
        return {
            "system": self.system,
            "calls": self.calls,
            "too_long": self.too_long,
            "tokens": {
                "device": self.device,
                "host": self.host,
                "recomputed": self.prompt - self.device - self.host,
            },
            "hit_rate": self.hit_rate,
            "seconds": self.seconds,
            "latency_s": latency.to_dict() if latency is not None else None,
            "counters": self.counters,
        }


def play(
    server: Server, trace: Prompts, result: TraceResult, *, speed: float = 1.0
) -> None:
    """Serve the trace, `speed` times as fast as it was recorded, until all is answered.

    Holds the calls that are on the server and one more. Raises `TraceError`.
    """
    _Player(server, trace, result, speed).next()
    result.seconds = server.run()
    result.counters = dict(server.cache.counters.as_dict())


class _Player:
    def __init__(
        self, server: Server, trace: Prompts, result: TraceResult, speed: float
    ) -> None:
        self._server = server
        self._records = iter(trace)
        self._block = trace.block
        self._result = result
        self._speed = speed

    def next(self) -> None:
        """Let the next record happen when its time has come."""
        record = next(self._records, None)
        if record is not None:
            then = record.t / self._speed
            self._server.at(then, partial(self._happens, record))

    def _happens(self, record: Record) -> None:
        if isinstance(record, RecordedSteps):
            self._server.cache.apply_update(update_of(record.update))
        elif record.prompt + max(record.output, 1) >= self._server.size.pool:
            self._result.too_long += 1
        else:
            self._server.submit(self._call(record))
        self.next()

    def _call(self, record: RecordedCall) -> Call:
        update = None
        if record.update is not None:
            update = update_of(record.update, record.fixed)
        return Call(
            spans=record.spans(self._block),
            prompt=record.prompt,
            output=max(record.output, 1),
            answered=self._result.note,
            whole=record.whole(self._block) if record.answer else None,
            update=update,
            fixed=record.fixed,
        )


def update_of(update: Update, fixed: int = 0) -> StepUpdate:
    """What the client said; names in place of numbers."""
    mark = FixedMark(tokens=fixed) if fixed else None
    return update.to_wire(str(update.client), str(update.run), mark)


def simulate_trace(
    path: Path,
    costs: Costs,
    size: ServerSize,
    systems: Sequence[str] = TRACED,
    *,
    speed: float = 1.0,
) -> dict[str, TraceResult]:
    """The trace on each of the `systems`, by their names in `SYSTEMS`.

    Raises `KeyError` for an unknown system, `TraceError` for a wrong trace, `OSError`
    for a file that cannot be read, `ValueError` for a speed that is not above 0.
    """
    if not 0 < speed < float("inf"):
        raise ValueError(f"speed: above 0, not {speed:g}")
    trace = open_trace(path)
    everything = 0
    results = {}
    for name in systems:
        system = SYSTEMS[name]
        if not system.evicts and not everything:
            found = scan(trace)
            everything = found.prompt_tokens + found.output_tokens + found.calls + 1
        server = Server(costs, system.sized(size, everything), system.config)
        results[name] = TraceResult(name)
        play(server, trace, results[name], speed=speed)
    return results
