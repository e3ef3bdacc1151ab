"""Copy streams and events for a machine without an accelerator.

This module has the shape of a torch device module (`torch.cuda`), so it is put
where SGLang expects one. A `Stream` is one worker thread with a queue: what is
submitted runs later, in order, while the caller goes on. The compute stream is the
calling thread itself, because eager CPU arithmetic is finished when it returns.

Semantics follow CUDA: an event waits for the latest record at the time of the wait,
an event never recorded is complete, and a fault on a stream is sticky: every later
`query` or `synchronize` on that stream raises it.
"""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

__all__ = [
    "COMPUTE",
    "Event",
    "Stream",
    "current_stream",
    "stream",
    "synchronize",
]

Task = Callable[[], None]


class _Marker:
    """One recording of an event: set when its stream has come to it."""

    __slots__ = ("done", "error", "time")

    def __init__(self) -> None:
        self.done = threading.Event()
        self.error: BaseException | None = None
        self.time = 0.0

    def set(self, error: BaseException | None = None) -> None:
        self.time = time.monotonic()
        self.error = error
        self.done.set()

    def wait(self) -> None:
        self.done.wait()
        self.check()

    def check(self) -> None:
        if self.error is not None:
            raise RuntimeError("a copy failed on an emulated stream") from self.error


class Event:
    """A point in a stream's work, like `torch.cuda.Event`."""

    def __init__(
        self,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
    ) -> None:
        if interprocess:
            raise NotImplementedError("emulated events stay in one process")
        self.enable_timing = enable_timing
        self._marker: _Marker | None = None

    def record(self, stream: Stream | None = None) -> None:
        """Mark the present end of `stream`'s work (default: the current stream)."""
        self._marker = marker = _Marker()
        (stream or current_stream())._mark(marker)

    def query(self) -> bool:
        """Whether all work before the latest record is done. Raises its fault."""
        marker = self._marker
        if marker is None:
            return True
        if not marker.done.is_set():
            return False
        marker.check()
        return True

    def wait(self, stream: Stream | None = None) -> None:
        """Let `stream` (default: the current one) wait for the latest record."""
        if self._marker is not None:
            (stream or current_stream())._await(self._marker)

    def synchronize(self) -> None:
        """Block the calling thread until the latest record. Raises its fault."""
        if self._marker is not None:
            self._marker.wait()

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds between two completed events that were made for timing."""
        if not (self.enable_timing and end.enable_timing):
            raise RuntimeError("both events must be made with enable_timing=True")
        if self._marker is None or end._marker is None:
            raise RuntimeError("both events must be recorded first")
        if not (self.query() and end.query()):
            raise RuntimeError("both events must be complete first")
        return (end._marker.time - self._marker.time) * 1e3


class _Worker:
    """The thread behind a stream; lives until the stream is collected."""

    def __init__(self, name: str) -> None:
        self.tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self.error: BaseException | None = None
        self.unblocked_at = 0.0
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        # A second OpenMP team would spin on the cores that the model computes on.
        torch.set_num_threads(1)
        while (task := self.tasks.get()) is not None:
            task()

    def guard(self, task: Task) -> None:
        """Run `task` unless an earlier one failed; keep the first failure."""
        if self.error is None:
            try:
                task()
            except BaseException as error:  # a dead worker would hang its waiters
                self.error = error


class Stream:
    """A queue of work done in order by one thread, like `torch.cuda.Stream`."""

    def __init__(self, device: object = None, priority: int = 0) -> None:
        self._worker = _Worker(f"kvflow-stream-{id(self):x}")
        self._finalizer = weakref.finalize(self, self._worker.tasks.put, None)
        self._finalizer.atexit = False

    @property
    def unblocked_at(self) -> float:
        """When this stream last came out of a wait, on the monotonic clock."""
        return self._worker.unblocked_at

    def submit(self, task: Task) -> None:
        """Queue `task`; returns at once."""
        worker = self._worker
        worker.tasks.put(lambda: worker.guard(task))

    def record_event(self, event: Event | None = None) -> Event:
        """Record `event` (or a new one) on this stream and return it."""
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        """Let later work on this stream wait for `event`."""
        event.wait(self)

    def wait_stream(self, stream: object) -> None:
        """Let later work on this stream wait for all present work of `stream`.

        A stream of another kind (`torch.cpu`'s) does its work on the caller's
        thread, so that work is already done.
        """
        if isinstance(stream, Stream):
            self.wait_event(stream.record_event())

    def query(self) -> bool:
        """Whether all work submitted so far is done. Raises a fault."""
        return self.record_event().query()

    def synchronize(self) -> None:
        """Block the caller until all work submitted so far is done."""
        self.record_event().synchronize()

    def _mark(self, marker: _Marker) -> None:
        worker = self._worker
        worker.tasks.put(lambda: marker.set(worker.error))

    def _await(self, marker: _Marker) -> None:
        worker = self._worker

        def wait() -> None:
            marker.wait()
            worker.unblocked_at = max(worker.unblocked_at, marker.time)

        self.submit(wait)


class _ComputeStream(Stream):
    """The calling thread: what is submitted is done when `submit` returns."""

    def __init__(self) -> None:
        self._unblocked_at = 0.0

    @property
    def unblocked_at(self) -> float:
        return self._unblocked_at

    def submit(self, task: Task) -> None:
        task()

    def _mark(self, marker: _Marker) -> None:
        marker.set()

    def _await(self, marker: _Marker) -> None:
        marker.wait()
        self._unblocked_at = max(self._unblocked_at, marker.time)


COMPUTE = _ComputeStream()
_local = threading.local()


def current_stream(device: object = None) -> Stream:
    """The stream that work of this thread goes to; the compute stream by default."""
    found: Stream = getattr(_local, "stream", COMPUTE)
    return found


@contextmanager
def stream(stream: Stream) -> Iterator[Stream]:
    """Send this thread's copies and event records to `stream` inside the block."""
    before = current_stream()
    _local.stream = stream
    try:
        yield stream
    finally:
        _local.stream = before


def synchronize(device: object = None) -> None:
    """Block until the current stream is done. The compute stream always is."""
    current_stream().synchronize()
