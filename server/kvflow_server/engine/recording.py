"""`kvflow record`: writes what this server sees as a trace (`engine.trace`).

The scheduler's first rank notes what arrives and when a call has ended; a thread of its
own hashes, encodes and writes it, at least once a second. Records keep the order of
arrival, so what came after a call is written when that call has ended.

Names and tokens leave the process only as keyed hashes, and the key is forgotten with
the process: a trace tells neither a client's id nor, to who can guess a text, that it was
in a prompt.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from kvflow_sdk.wire import StepUpdate

from .config import Recording
from .trace import (
    Record,
    RecordedCall,
    RecordedSteps,
    TraceWriter,
    Update,
    block_sizes,
)

__all__ = ["BLOCK", "Recorder"]

logger = logging.getLogger(__name__)

BLOCK = 64
"""Tokens of a block."""
FLUSH_S = 1.0
LOST_S = 5.0
"""A call that is nowhere on the scheduler for so long has been given up."""
MAX_PENDING = 1 << 16
"""Records that wait for an earlier call's end; above, it is written as it is."""
MAX_BACKLOG = 1 << 24
"""Tokens and records that wait for the writer; above, recording ends."""
_Value = TypeVar("_Value", int, float)
_HASH_BITS = 53
"""What every JSON reader reads exactly."""


@dataclass(slots=True, eq=False)
class _Seen:
    """What arrived; a call until it is over with its request."""

    t: float
    steps: Sequence[StepUpdate] = ()
    update: StepUpdate | None = None
    """That of a call's own agent."""
    req: Any = None
    namespace: bytes = b""
    """Prompts of two namespaces share nothing."""
    fixed: int = 0
    learned: bool = False
    last_there: float = 0.0
    took: float | None = None
    tokens: Sequence[int] = ()
    """Of the prompt."""
    answer: Sequence[int] = ()

    @property
    def weight(self) -> int:
        return 1 + len(self.tokens) + len(self.answer)


class Recorder:
    """Of one scheduler, on whose thread it is to be called. Raises `OSError` if the file
    cannot be written."""

    def __init__(self, recording: Recording) -> None:
        self.calls = 0
        """That were noted."""
        self._path = recording.path
        self._pending: deque[_Seen] = deque()
        """In the order of arrival: what the writer was not given yet."""
        self._live: dict[int, _Seen] = {}
        """id of a request -> what was noted of it."""
        self._start = time.monotonic()
        self._given = 0
        """Weight of all that the writer was given."""
        self._writer = _Writer(recording)
        self._writer.start()

    @property
    def active(self) -> bool:
        return self._writer.active

    def note_steps(self, updates: Sequence[StepUpdate]) -> None:
        """Step updates came by themselves."""
        if self.active and updates:
            self._pending.append(_Seen(self._now(), updates))

    def note_call(self, req: Any, updates: Sequence[StepUpdate]) -> None:
        """A request came, with `updates`, and has its tag if it gets one."""
        if not self.active or req.sampling_params.max_new_tokens == 0:
            return  # SGLang runs the prompt of an n > 1 call once, before the n.
        now = self._now()
        own = next((u for u in reversed(updates) if u.agent is not None), None)
        tag = getattr(req, "kvflow_tag", None)
        mark = own.fixed if own is not None else None
        names = (req.extra_key, req.cache_salt)
        seen = _Seen(
            now,
            [update for update in updates if update is not own],
            own,
            req,
            namespace=repr(names).encode() if any(names) else b"",
            fixed=tag.fixed_tokens if tag is not None else 0,
            learned=tag is not None and (mark is None or mark.assumed),
            last_there=now,
        )
        self._live[id(req)] = seen
        self._pending.append(seen)
        self.calls += 1

    def after_pass(self, there: Iterable[Any]) -> None:
        """A scheduler pass has ended, with these requests running and waiting."""
        if not self.active:
            self._pending.clear()
            self._live.clear()
            return
        if self._live:
            self._look_after(there)
        self._give()

    def close(self) -> None:
        """Write what is left, calls under way as they are."""
        for seen in list(self._live.values()):
            self._end(seen)
        self._give()
        self._writer.close()

    def as_dict(self) -> dict[str, Any]:
        """For the state report."""
        size, active = self._writer.size, self.active
        return {
            "path": self._path,
            "active": active,
            "calls": self.calls,
            "bytes": size,
        }

    def _now(self) -> float:
        return time.monotonic() - self._start

    def _look_after(self, there: Iterable[Any]) -> None:
        now = self._now()
        for req in there:
            if (known := self._live.get(id(req))) is not None:
                known.last_there = now
        for seen in list(self._live.values()):
            if seen.req.finished():
                seen.took = now - seen.t
                self._end(seen)
            elif now - seen.last_there > LOST_S:
                self._end(seen)
        if len(self._pending) > MAX_PENDING and self._pending[0].req is not None:
            self._end(self._pending[0])

    def _end(self, seen: _Seen) -> None:
        req, seen.req = seen.req, None
        del self._live[id(req)]
        # Copied here: the request may live on, and the writer has a thread of its own.
        seen.tokens = req.origin_input_ids[:]
        seen.answer = req.output_ids[:]

    def _give(self) -> None:
        """Hand to the writer what no earlier call holds up."""
        writer = self._writer
        while self._pending and self._pending[0].req is None:
            seen = self._pending.popleft()
            self._given += seen.weight
            writer.queue.append(seen)
        if self._given - writer.done > MAX_BACKLOG:
            writer.end(f"the disk is too slow: {MAX_BACKLOG} tokens wait to be written")


class _Writer(threading.Thread):
    """Turns what was seen into lines of the file."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(name="kvflow-record", daemon=True)
        self.queue: deque[_Seen] = deque()
        self.done = 0
        """Weight of all that was taken from the queue."""
        self.active = True
        self._recording = recording
        source = f"kvflow {version('kvflow')}"
        self._file = TraceWriter(Path(recording.path), block=BLOCK, source=source)
        self._key = secrets.token_bytes(32)
        self._closing = threading.Event()

    @property
    def size(self) -> int:
        return self._file.size

    def run(self) -> None:
        try:
            while self.active:
                closing = self._closing.wait(FLUSH_S)
                self._write()
                if closing:
                    break
        except (
            Exception
        ) as error:  # a full disk, or a fault of ours: never the server's
            self.end(repr(error))
        self._file.close()

    def close(self) -> None:
        """Write what is queued, and end."""
        self._closing.set()
        self.join()
        self.active = False

    def end(self, why: str) -> None:
        """Record no more; what the file holds is whole."""
        if self.active:
            self.active = False
            logger.warning("Recording to %s has ended: %s", self._recording.path, why)

    def _write(self) -> None:
        records: list[Record] = []
        while self.queue:
            seen = self.queue.popleft()
            records += self._records(seen)
            self.done += seen.weight
            time.sleep(0)  # the scheduler's thread may have the interpreter now
            if len(records) >= 256 or not self.queue:
                self._file.write(records)
                records = []
            if self._file.size >= self._recording.max_bytes:
                limit = f"{self._recording.max_bytes >> 20} MB (KVFLOW_RECORD_MB)"
                self.end(f"it has reached its limit of {limit}")
                return

    def _records(self, seen: _Seen) -> list[Record]:
        steps = [
            RecordedSteps(t=seen.t, update=self._update(update))
            for update in seen.steps
        ]
        if not seen.tokens:
            return [*steps]
        prompt, output = len(seen.tokens), len(seen.answer)
        call = RecordedCall(
            t=seen.t,
            prompt=prompt,
            output=output,
            blocks=self._blocks(seen),
            answer=output > 0,
            fixed=min(seen.fixed, prompt),
            learned=seen.learned,
            took=seen.took,
            update=self._update(seen.update) if seen.update is not None else None,
        )
        return [*steps, call]

    def _update(self, update: StepUpdate) -> Update:
        client = update.client.encode(errors="surrogatepass")
        run = update.run.encode(errors="surrogatepass")
        return Update(
            client=_number(self._hash(client)),
            run=_number(self._hash(self._hash(client) + run)),
            seq=update.seq,
            agent=_text(update.agent) if update.agent is not None else None,
            steps=_named(update.steps),
            likelihood=_named(update.likelihood),
            final=update.final,
            partial=update.partial,
        )

    def _blocks(self, seen: _Seen) -> list[int]:
        tokens = array("q", seen.tokens)
        tokens.extend(seen.answer)
        data = tokens.tobytes()
        fixed = min(seen.fixed, len(seen.tokens))
        blocks, end, chain = [], 0, self._hash(seen.namespace)
        for size in block_sizes(len(tokens), fixed, BLOCK):
            start, end = end, end + size * tokens.itemsize
            chain = self._hash(chain + data[start:end])
            blocks.append(_number(chain))
        return blocks

    def _hash(self, data: bytes) -> bytes:
        return blake2b(data, key=self._key, digest_size=16).digest()


def _named(values: dict[str, _Value] | None) -> dict[str, _Value] | None:
    return None if values is None else {_text(k): v for k, v in values.items()}


def _text(name: str) -> str:
    """A name as UTF-8 can have it: half a surrogate pair, which JSON lets in, is none."""
    return name.encode(errors="replace").decode()


def _number(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "big") >> (64 - _HASH_BITS)
