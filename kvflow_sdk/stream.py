"""The step stream: snapshots to the servers, in the background.

One daemon thread per client, started by the first run. The caller only notes which run
something happened in; the thread asks that run for its newest snapshot, and of a bounded
number of runs it waits. A server that fails is left alone for a while, ever longer up to a bound;
nothing else happens.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

import msgspec

from . import wire
from .config import Config
from .counters import Counters
from .noted import Noted
from .prewarm import PREWARM_PATH, PrewarmRequest
from .target import Target, json_of, taken
from .wire import StepUpdate

if TYPE_CHECKING:
    from .channel import Channels
    from .run import Run

__all__ = ["Stream"]

log = logging.getLogger("kvflow")
log.addHandler(logging.NullHandler())

MAX_CHORES = 64
COALESCE_S = 0.01
"""Until a snapshot is sent that nothing else waited with. Whoever made it is about to
make a call, which will carry it or the next one, and goes on meanwhile without this
thread in its way."""
POLL_S = 0.02
LOOKS = 1
"""Looks by itself, `POLL_S` apart, that find nothing before the thread rests. While more
happens, nobody has to wake it, which costs as much as all else does. No more of them:
while a program waits for an answer, nothing is to be seen."""
_REFUSED = frozenset({400, 413, 422})
_NOT_KVFLOW = frozenset({404, 405, 501})
_NOT_ALLOWED = frozenset({401, 403})

_Job = Callable[["Channels"], None]


class Stream:
    """The background sender of one client. No method blocks, save `flush`, `close`."""

    def __init__(self, config: Config, counters: Counters) -> None:
        self._config = config
        self.counters = counters
        self._reset()
        _STREAMS.add(self)

    def _reset(self) -> None:
        # Re-entrant: the collector may end a forgotten client's stream anywhere.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._resting = False
        self._looks = 0
        self._targets: dict[str, Target] = {}
        self._noted = Noted(self._config.max_runs)
        self._flushing = 0
        self._probes: dict[str, Callable[[bool | None], None]] = {}
        self._chores: deque[Callable[[], None]] = deque(maxlen=MAX_CHORES)
        self._thread: threading.Thread | None = None
        self._busy = False
        self._closed = False

    def add(self, origin: str, root: str, api_key: str | None = None) -> None:
        """Send from now on to the server at `root` as well."""
        with self._changed:
            target = self._targets.setdefault(origin, Target(root, api_key))
            target.api_key = api_key or target.api_key

    def remove(self, origin: str) -> None:
        with self._changed:
            self._targets.pop(origin, None)

    def put(self, update: StepUpdate) -> None:
        """Send `update` when there is time."""
        with self._lock:
            if self._closed or not self._targets:
                return
            self._keep(update)
            if self._resting or self._thread is None:
                self._wake()

    def touch(self, run: Run) -> None:
        """Ask `run` for its newest snapshot, and send that, when there is time."""
        # Without the lock, which the thread may hold while it waits for the
        # interpreter's own: whoever gets here is about to make a call.
        if self._closed or not self._targets:
            return
        if self._noted.touch(run):
            self._drop_oldest()
        if self._resting or self._thread is None:
            with self._lock:
                self._wake()

    def prewarm(self, request: PrewarmRequest) -> None:
        """Send `request` when there is time and no snapshot waits."""
        with self._changed:
            if self._closed or not self._targets:
                return
            for target in self._targets.values():
                target.prompts.append(request)
            self._wake()

    def later(self, chore: Callable[[], None]) -> None:
        """Do `chore` when no snapshot waits; the oldest go if there are too many."""
        if self._closed:
            return
        self._chores.append(chore)
        if self._resting or self._thread is None:
            with self._lock:
                self._wake()

    def probe(self, root: str, tell: Callable[[bool | None], None]) -> None:
        """Ask, in the background, whether `root` is KVFlow, and `tell` the answer.

        None when it gave none, now.
        """
        with self._changed:
            if not self._closed:
                self._probes[root] = tell
                self._wake()

    def flush(self, timeout: float) -> bool:
        """Wait until all is sent that can be; False after `timeout` seconds."""
        with self._changed:
            self._flushing += 1
            self._changed.notify_all()
            try:
                return self._changed.wait_for(self._idle, timeout)
            finally:
                self._flushing -= 1

    def stop(self) -> None:
        """Take nothing more; the thread ends when all is sent that can be."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def close(self, timeout: float) -> None:
        """Stop, and wait for the thread for at most `timeout` seconds.

        Not for servers that did not take what they were sent last: a program whose
        server is gone ends when it would have ended without KVFlow.
        """
        self.stop()
        if self._thread is not None and self.answered:
            self._thread.join(timeout)

    @property
    def answered(self) -> bool:
        """Whether there is a server that took what it was sent last."""
        with self._lock:
            return any(not target.failures for target in self._targets.values())

    def _idle(self) -> bool:
        now = time.monotonic()
        waiting = (t for t in self._targets.values() if t.pending or t.prompts)
        mine = self._busy or self._noted or self._probes or self._chores
        return not (mine or any(t.not_before <= now for t in waiting))

    def _wake(self) -> None:
        if self._thread is None:
            thread = threading.Thread(
                target=self._work, name="kvflow-stream", daemon=True
            )
            try:
                thread.start()
            except RuntimeError as error:  # the interpreter is shutting down
                self.counters.error("start of the step stream", error)
                return
            self._thread = thread
        self._changed.notify_all()

    def _work(self) -> None:
        # Here, because importing it costs more than the rest of the SDK.
        from .channel import Channels

        with closing(Channels(self._config.timeout)) as http:
            while (job := self._next()) is not None:
                try:
                    job(http)
                except Exception as error:
                    self.counters.error("step stream", error)
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()

    def _next(self) -> _Job | None:
        """The next thing to do, waited for; None when the stream is closed."""
        with self._changed:
            while True:
                if self._noted.due(time.monotonic(), hurry=self._hurry):
                    self._busy = True
                    return self._collect
                if self._probes:
                    root = next(iter(self._probes))
                    self._busy = True
                    return functools.partial(self._ask, root, self._probes.pop(root))
                waiting = [t for t in self._targets.values() if t.pending or t.prompts]
                now = time.monotonic()
                target = min(waiting, key=lambda t: t.not_before, default=None)
                due = None if target is None or target.not_before > now else target
                if self._chores and not (due and due.pending):
                    self._busy = True
                    return _without_http(self._chores.popleft())
                if due is not None:
                    self._busy = True
                    if not due.pending:
                        prompt = due.prompts.popleft()
                        return functools.partial(self._post_prompt, due, prompt)
                    return functools.partial(self._post, due, due.take())
                if self._closed:
                    return None
                if self._looks:
                    self._looks -= 1
                    self._changed.wait(POLL_S)
                elif self._rest(now, None if target is None else target.not_before):
                    return _let_go_on

    def _rest(self, now: float, until: float | None) -> bool:
        """Wait to be woken, or for the time when something is to be done; returns
        whether somebody has woken this thread who is about to make a call."""
        due = [at for at in (until, self._noted.next_due()) if at is not None]
        self._resting = True
        # Else noted by somebody who did not see yet that this thread rests.
        unseen = self._noted.touched or self._chores
        woken = not unseen and self._changed.wait(
            max(0.0, min(due) - now) if due else None
        )
        self._resting = False
        return woken and not self._closed

    def _drop_oldest(self) -> None:
        with self._lock:
            if self._noted.drop_oldest():
                self.counters.add("steps.dropped")

    def _collect(self, _: Channels) -> None:
        """Let wait what runs have to say; worked out here, not where it happened."""
        now = time.monotonic()
        if self._noted.touched:
            self._looks = LOOKS
        updates = self._noted.take(now, hurry=self._hurry)
        with self._lock:
            for update, told in updates:
                self._keep(update, told)

    @property
    def _hurry(self) -> bool:
        return self._closed or self._flushing > 0

    def _keep(self, update: StepUpdate, told: str | None = None) -> None:
        """Let it wait for every server but the one at the origin `told`."""
        bound = self._config.max_runs
        untold = [t for origin, t in self._targets.items() if origin != told]
        lost = sum(target.keep(update, bound) for target in untold)
        if lost:
            self.counters.add("steps.dropped", lost)

    def _post(
        self, target: Target, batch: Sequence[StepUpdate], http: Channels
    ) -> None:
        status, text = self._send(target, batch, http)
        if status in _REFUSED and len(batch) > 1:
            # One bad snapshot must not take those of other runs with it.
            for update in batch:
                self._post(target, [update], http)
            return
        count = len(batch) if 200 <= status < 300 else taken(status, text, len(batch))
        if count is not None:
            target.recover()
            self.counters.add("steps.sent", count)
            if count < len(batch):
                self.counters.add("steps.over_cap", len(batch) - count)
        elif status in _REFUSED:
            self.counters.add("steps.refused", len(batch))
        else:
            self.counters.add("steps.failed")
            at_once = status in _NOT_KVFLOW | _NOT_ALLOWED
            with self._changed:
                target.fail(time.monotonic(), self._config.max_backoff, at_once=at_once)
                for update in batch:
                    target.keep(update, self._config.max_runs)

    def _post_prompt(
        self, target: Target, prompt: PrewarmRequest, http: Channels
    ) -> None:
        """Once only: it is a favour, and the call itself will come."""
        body = msgspec.json.encode(prompt)
        status, _ = self._send_body(target, PREWARM_PATH, body, http)
        sent = 200 <= status < 300
        self.counters.add("prompts.sent" if sent else "prompts.refused")

    def _send(
        self, target: Target, batch: Sequence[StepUpdate], http: Channels
    ) -> tuple[int, bytes]:
        body = wire.encode_envelope(batch)
        return self._send_body(target, wire.STEPS_PATH, body, http)

    def _send_body(
        self, target: Target, path: str, body: bytes, http: Channels
    ) -> tuple[int, bytes]:
        """The HTTP status, or 0 when there was no answer, and its body."""
        from .channel import FAILURES

        headers = {"content-type": "application/json"}
        if target.api_key:
            headers["authorization"] = f"Bearer {target.api_key}"
        try:
            status, text = http.request(
                "POST", target.root + path, body=body, headers=headers
            )
        except FAILURES as error:
            self._first(target, path, 0, error)
            return 0, b""
        if not 200 <= status < 300:
            self._first(target, path, status, text[:200].decode(errors="replace"))
        return status, text

    def _first(self, target: Target, path: str, status: int, detail: object) -> None:
        if target.failures == 0 and (path, status) not in target.said:
            target.said.add((path, status))
            log.info(
                "kvflow: %s%s %s; LLM calls are not affected (%s)",
                target.root,
                path,
                f"answered {status}" if status else "does not answer",
                detail,
            )

    def _ask(
        self, root: str, tell: Callable[[bool | None], None], http: Channels
    ) -> None:
        """Neither identity nor key goes along: this may be anybody's server."""
        from .channel import FAILURES

        self.counters.add("probes")
        is_kvflow: bool | None = None
        try:
            status, text = http.request("GET", root + wire.CAPABILITIES_PATH)
            if status == 200:
                is_kvflow = wire.speaks_kvflow(json_of(text))
            elif status in _NOT_KVFLOW | _NOT_ALLOWED:
                is_kvflow = False
        except FAILURES as error:
            log.debug("kvflow: no answer from %s (%s)", root, error)
        tell(is_kvflow)


def _without_http(chore: Callable[[], None]) -> _Job:
    return lambda _: chore()


def _let_go_on(http: Channels) -> None:
    time.sleep(COALESCE_S)


_STREAMS: weakref.WeakSet[Stream] = weakref.WeakSet()


def _flush_all() -> None:
    """Before the process ends: all streams together wait no longer than the bound."""
    streams = [stream for stream in _STREAMS if stream.answered]
    deadline = time.monotonic() + max((s._config.flush for s in streams), default=0.0)
    for stream in streams:
        stream.flush(max(0.0, deadline - time.monotonic()))


def _after_fork() -> None:
    # The thread stayed in the parent, and a lock may have been held there.
    for stream in list(_STREAMS):
        targets = stream._targets
        stream.counters._lock = threading.Lock()
        stream._reset()
        for origin, target in targets.items():
            stream.add(origin, target.root, target.api_key)


atexit.register(_flush_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
