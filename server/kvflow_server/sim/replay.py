"""A recorded trace against a running server.

Prompts are random tokens that share what their hashes share: a block's tokens follow
from its hash alone. Answers have the recorded lengths, but their tokens are the model's,
so a prompt that went on from an answer shares with it only what came before.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import httpx

from kvflow_sdk.wire import (
    CAPABILITIES_PATH,
    STEPS_PATH,
    FixedMark,
    StepUpdate,
    speaks_kvflow,
    to_envelope,
)
from kvflow_server.engine.trace import Record, RecordedCall, RecordedSteps, Update

from .trace import Latency, Prompts

__all__ = ["ReplayError", "ReplayOptions", "ReplayResult", "replay"]

FIRST_TOKEN = 260
"""Below are the special tokens and the bytes of most vocabularies."""
TIMEOUT_S = 600.0
MAX_ERRORS = 5


class ReplayError(RuntimeError):
    """The server cannot be reached."""


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    speed: float = 1.0
    """Times as fast as recorded."""
    fast: bool = False
    """Wait for no recorded time: a call is sent once the calls of its run that had
    ended before it have, `concurrency` at a time."""
    concurrency: int = 64
    """Of `fast`."""
    hints: bool = True
    """Send the recorded metadata, if the server is KVFlow."""
    vocabulary: int = 512
    """Tokens are below; every model has as many."""
    api_key: str | None = None

    def __post_init__(self) -> None:
        if not 0 < self.speed < float("inf"):
            raise ValueError(f"speed: above 0, not {self.speed:g}")
        if self.concurrency < 1:
            raise ValueError(f"concurrency: at least 1, not {self.concurrency}")
        if self.vocabulary <= FIRST_TOKEN:
            raise ValueError(f"vocabulary: above {FIRST_TOKEN}, not {self.vocabulary}")


@dataclass(slots=True)
class ReplayResult:
    """What came of it; filled as it goes on. Tokens are those of prompts."""

    hints: bool = False
    """Metadata was sent."""
    calls: int = 0
    """That were answered."""
    failed: int = 0
    updates_failed: int = 0
    errors: list[str] = field(default_factory=list)
    """The first few."""
    device: int = 0
    host: int = 0
    prompt: int = 0
    seconds: float = 0.0
    late_s: float = 0.0
    """The most that a record was sent after its time."""
    latencies: array[float] = field(default_factory=lambda: array("d"))
    recorded: array[float] = field(default_factory=lambda: array("d"))
    """What the same calls took when they were recorded, as far as that is known."""

    @property
    def hit_rate(self) -> float:
        return (self.device + self.host) / self.prompt if self.prompt else 0.0

    def fail(self, why: str) -> None:
        if len(self.errors) < MAX_ERRORS:
            self.errors.append(why)

    def to_dict(self) -> dict[str, Any]:
        """Latencies are null where there is none."""
        latency, before = Latency.of(self.latencies), Latency.of(self.recorded)
        return {
            "hints": self.hints,
            "calls": self.calls,
            "failed": self.failed,
            "updates_failed": self.updates_failed,
            "errors": self.errors,
            "tokens": {
                "device": self.device,
                "host": self.host,
                "recomputed": self.prompt - self.device - self.host,
            },
            "hit_rate": self.hit_rate,
            "seconds": self.seconds,
            "late_s": self.late_s,
            "latency_s": latency.to_dict() if latency is not None else None,
            "recorded_latency_s": before.to_dict() if before is not None else None,
        }


async def replay(
    trace: Prompts,
    url: str,
    options: ReplayOptions,
    result: ReplayResult,
    done: Callable[[], None] = lambda: None,
) -> None:
    """Send the trace to the server at `url`; `done` is called after each record.

    A call that fails is counted. Raises `ReplayError` if nobody is there, `TraceError`.
    """
    headers = {}
    if options.api_key is not None:
        headers["authorization"] = f"Bearer {options.api_key}"
    unlimited = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    async with httpx.AsyncClient(
        base_url=url,
        headers=headers,
        timeout=TIMEOUT_S,
        limits=unlimited,
        trust_env=False,
    ) as http:
        result.hints = options.hints and await _is_kvflow(http, url)
        start = time.perf_counter()
        try:
            await _Replay(http, trace.block, options, result, done).run(trace)
        finally:
            result.seconds = time.perf_counter() - start


async def _is_kvflow(http: httpx.AsyncClient, url: str) -> bool:
    try:
        reply = await http.get(CAPABILITIES_PATH)
        return reply.status_code == 200 and speaks_kvflow(reply.json())
    except (httpx.TransportError, httpx.InvalidURL) as error:
        raise ReplayError(f"no server at {url}: {error}") from error
    except ValueError:
        return False


class _Replay:
    def __init__(
        self,
        http: httpx.AsyncClient,
        block: int,
        options: ReplayOptions,
        result: ReplayResult,
        done: Callable[[], None],
    ) -> None:
        self._http = http
        self._block = block
        self._options = options
        self._result = result
        self._done = done
        self._room = asyncio.Semaphore(options.concurrency)
        self._name = f"replay-{secrets.token_hex(16)}"
        """Clients are new ones: nobody else shall steer what they own."""
        self._runs: dict[tuple[int, int], list[tuple[float, asyncio.Task[None]]]] = {}
        """Calls of a run under way, and when they ended in the recording."""

    async def run(self, trace: Iterable[Record]) -> None:
        start = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for record in trace:
                if self._options.fast:
                    await self._room.acquire()
                else:
                    await self._await(start + record.t / self._options.speed)
                before = self._before(record)
                task = tasks.create_task(self._send(record, before))
                self._note(record, task)

    async def _await(self, then: float) -> None:
        late = time.perf_counter() - then
        self._result.late_s = max(self._result.late_s, late)
        # Even when it is late: answers must be read, too.
        await asyncio.sleep(max(0.0, -late))

    def _before(self, record: Record) -> list[asyncio.Task[None]]:
        """The calls that must have ended before this record may be sent."""
        if not self._options.fast or record.update is None:
            return []
        calls = self._runs.get((record.update.client, record.update.run), ())
        return [task for ended, task in calls if ended <= record.t]

    def _note(self, record: Record, task: asyncio.Task[None]) -> None:
        if not isinstance(record, RecordedCall) or record.update is None:
            return
        key = record.update.client, record.update.run
        calls = [entry for entry in self._runs.get(key, ()) if not entry[1].done()]
        self._runs[key] = [*calls, (record.t + (record.took or 0.0), task)]
        task.add_done_callback(lambda _: self._forget(key))

    def _forget(self, key: tuple[int, int]) -> None:
        if all(task.done() for _, task in self._runs.get(key, ())):
            self._runs.pop(key, None)

    async def _send(self, record: Record, before: list[asyncio.Task[None]]) -> None:
        if before:
            await asyncio.wait(before)
        try:
            if isinstance(record, RecordedCall):
                await self._call(record)
            elif self._result.hints:
                await self._tell(record)
        finally:
            if self._options.fast:
                self._room.release()
        self._done()

    async def _tell(self, steps: RecordedSteps) -> None:
        envelope = to_envelope([self._update(steps.update)])
        try:
            reply = await self._http.post(STEPS_PATH, json=envelope)
            reply.raise_for_status()
        except httpx.HTTPError as error:
            self._result.updates_failed += 1
            self._result.fail(_said(error))

    async def _call(self, call: RecordedCall) -> None:
        body: dict[str, Any] = {
            "input_ids": self._tokens(call),
            "sampling_params": {
                "temperature": 0,
                "max_new_tokens": max(call.output, 1),
                "ignore_eos": True,
            },
        }
        if self._result.hints and call.update is not None:
            marked = call.fixed and not call.learned
            mark = FixedMark(tokens=call.fixed) if marked else None
            body["kv_hints"] = to_envelope([self._update(call.update, mark)])
        start = time.perf_counter()
        try:
            reply = await self._http.post("/generate", json=body)
            reply.raise_for_status()
            meta = reply.json()["meta_info"]
        except (httpx.HTTPError, KeyError, TypeError, ValueError) as error:
            self._result.failed += 1
            self._result.fail(_said(error))
            return
        self._note_answer(call, meta, time.perf_counter() - start)

    def _note_answer(
        self, call: RecordedCall, meta: dict[str, Any], seconds: float
    ) -> None:
        result = self._result
        result.calls += 1
        result.latencies.append(seconds)
        if call.took is not None:
            result.recorded.append(call.took)
        cached = meta.get("cached_tokens_details") or {}
        result.device += cached.get("device", meta.get("cached_tokens", 0))
        result.host += cached.get("host", 0)
        result.prompt += call.prompt

    def _update(self, update: Update, mark: FixedMark | None = None) -> StepUpdate:
        return update.to_wire(f"{self._name}-{update.client}", str(update.run), mark)

    def _tokens(self, call: RecordedCall) -> list[int]:
        vocabulary = self._options.vocabulary
        spans = call.spans(self._block)
        return [t for name, _, n in spans for t in tokens_of(name, n, vocabulary)]


@lru_cache(maxsize=4096)
def tokens_of(block: int, count: int, vocabulary: int) -> tuple[int, ...]:
    """The first tokens of a block; the same in every process."""
    draw = random.Random(block)
    return tuple(draw.choices(range(FIRST_TOKEN, vocabulary), k=count))


def _said(error: Exception) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        return f"status {error.response.status_code}: {error.response.text[:200]}"
    return f"{type(error).__name__}: {error}"
