"""One application instance towards its KVFlow servers.

A client's id is the right to steer its cache entries, so it goes only to servers
that the user configured or that answered the probe as KVFlow. The probe runs in the
background; until it has answered, and with any other server, calls stay plain.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import context, wire
from .config import Config, is_openai, origin_of, server_root
from .counters import Counters
from .likelihood import Transitions
from .prewarm import AgentPrompt, prewarm_requests
from .run import Run
from .stream import Stream
from .wire import FixedMark

if TYPE_CHECKING:
    from .drift.watch import DriftWatch
    from .graph import AgentStepGraph

__all__ = [
    "Client",
    "call_headers",
    "default_client",
    "tag_request",
    "usable_client",
]

MAX_SERVERS = 64
"""Servers whose answer to the probe is remembered."""
UNANSWERED_TTL = 10.0
"""Seconds after which a server that gave no answer may be asked again."""

_RUNS_A_MODEL = ("/completions", "/responses")
"""How the URLs of the OpenAI endpoints end that run a model on a prompt."""

_BY_ID: weakref.WeakValueDictionary[str, Client] = weakref.WeakValueDictionary()
_counters = Counters()


class Client:
    """An application instance; most programs need no more than the default one.

    `server` is the base URL of a KVFlow server, with or without ``/v1``; `name` a
    readable beginning of the id. Raises `ConfigError`.
    """

    def __init__(
        self,
        server: str | None = None,
        *,
        name: str | None = None,
        config: Config | None = None,
    ) -> None:
        if config is None:
            config = Config.load(server=server, client_name=name)
        else:
            config = replace(
                config,
                server=server or config.server,
                client_name=name or config.client_name,
            )
        self.config = config
        self.counters = Counters()
        self._lock = threading.Lock()
        self._configured: set[str] = set()
        self._told: dict[str, str | None] = {}
        self._answers: dict[str, _Answer] = {}
        self.transitions = Transitions(config.learned) if config.learn else None
        self._stream = Stream(config, self.counters)
        self._drift: DriftWatch | None = None
        # A thread must not keep a forgotten client; what waits is still sent.
        weakref.finalize(self, self._stream.stop)
        if self.transitions is not None:
            weakref.finalize(self, self.transitions.save)
        self._itself = weakref.ref(self)
        self._renew()
        if config.server is not None:
            self.configure(config.server)

    def _renew(self) -> None:
        """Take a new id; `_BY_ID` still finds this client by an older one."""
        prefix = f"{self.config.client_name}-" if self.config.client_name else ""
        self.id = prefix + secrets.token_hex(16)
        _BY_ID[self.id] = self

    @property
    def drift(self) -> DriftWatch:
        """What compares the prompts of this client's agents."""
        if self._drift is None:
            # Here, because a program whose calls are not tagged does not need it.
            from .drift.watch import DriftWatch

            self._drift = DriftWatch()
        return self._drift

    def watch(self, agent: str, body: Mapping[str, Any]) -> None:
        """`agent` makes a call with this request: look for drift, in the background."""
        if not self.config.drift_warnings:
            return
        try:
            drift = self._drift or self.drift
            if drift.wants(agent):
                chore = partial(_look_for_drift, drift, self.counters, agent, body)
                self._stream.later(chore)
        except Exception as error:
            self.counters.error("drift warnings", error)

    def start_run(self, graph: AgentStepGraph | None = None) -> Run:
        """A new run of a workflow, whose snapshots go to the servers."""
        outbox = None if self.config.disable else self._stream
        run = Run(graph, client=self.id, outbox=outbox, transitions=self.transitions)
        run.owner = self._itself
        return run

    def prewarm(
        self, graph: AgentStepGraph | None, prompts: Mapping[str, AgentPrompt]
    ) -> None:
        """As `kvflow.register`, for this client."""
        steps: Mapping[str, int] = {agent: n for n, agent in enumerate(prompts, 1)}
        if graph is not None:
            first = Run(graph, client=self.id, transitions=self.transitions).snapshot()
            steps = first.steps or {}
        for request in prewarm_requests(self.id, steps, prompts):
            if not self.config.disable:
                self._stream.prewarm(request)

    def configure(self, base_url: str, *, api_key: str | None = None) -> None:
        """`base_url` is a KVFlow server: the user said so. Raises `ConfigError`.

        Ignored for the OpenAI company's own server.
        """
        if self._told.get(base_url, "") == api_key:
            return  # every call of a KVFlow object says so again
        origin = origin_of(base_url)
        if is_openai(origin):
            return
        said, own = api_key, self.config.server
        if own is not None and self.config.api_key and origin == origin_of(own):
            api_key = self.config.api_key
        with self._lock:
            self._configured.add(origin)
            self._answers.pop(origin, None)
            if len(self._told) >= MAX_SERVERS:
                self._told.clear()
            self._told[base_url] = said
        self._stream.add(origin, server_root(base_url), api_key)

    def knows(self, base_url: str) -> bool:
        """Whether the server at `base_url` was configured or is known as KVFlow.

        Never waits: a server that nobody asked yet is asked in the background, and
        until it has answered this is False.
        """
        origin = origin_of(base_url)
        if origin in self._configured:
            return True
        if self.config.disable or is_openai(origin):
            return False
        now = time.monotonic()
        with self._lock:
            answer = self._answers.get(origin)
            if answer is not None and now < answer.expires:
                return answer.is_kvflow
            if answer is None and len(self._answers) >= MAX_SERVERS:
                self._stream.remove(oldest := next(iter(self._answers)))
                del self._answers[oldest]
            # While the answer is on its way, and when it never comes, the last holds.
            known = answer is not None and answer.is_kvflow
            self._answers[origin] = _Answer(known, now + UNANSWERED_TTL)
        self._stream.probe(server_root(base_url), _Told(self, origin, base_url))
        return known

    def flush(self, timeout: float) -> bool:
        """Wait until what can be sent is sent; False after `timeout` seconds."""
        return self._stream.flush(timeout)

    def close(self) -> None:
        """Send what can be sent within `Config.flush` seconds, and end the stream.

        What was learned is written to its file, if it has one.
        """
        self._stream.close(self.config.flush)
        if self.transitions is not None:
            self.transitions.save()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        # Not the id: it is the right to steer, and this text ends in logs.
        name = self.config.client_name
        return f"<kvflow.Client name={name!r} servers={sorted(self._configured)}>"


class _Answer:
    """What is known of a server that was not configured."""

    __slots__ = ("expires", "is_kvflow")

    def __init__(self, is_kvflow: bool, expires: float) -> None:
        self.is_kvflow = is_kvflow
        self.expires = expires


class _Told:
    """Takes the answer of a probe to its client, if that still exists."""

    def __init__(self, client: Client, origin: str, base_url: str) -> None:
        self._client = weakref.ref(client)
        self._origin = origin
        self._root = server_root(base_url)

    def __call__(self, is_kvflow: bool | None) -> None:
        client = self._client()
        if client is None:
            return
        ttl = UNANSWERED_TTL if is_kvflow is None else client.config.probe_ttl
        with client._lock:
            if self._origin in client._configured:
                return
            if self._origin not in client._answers:
                return  # so many others were asked since that this one was forgotten
            answer = _Answer(bool(is_kvflow), time.monotonic() + ttl)
            client._answers[self._origin] = answer
        if is_kvflow:
            client._stream.add(self._origin, self._root)
        else:
            client._stream.remove(self._origin)


def owner_of(run: Run) -> Client | None:
    """The client in this process that started `run`."""
    owner = run.owner
    return _BY_ID.get(run.client) if owner is None else owner()


def call_headers(
    base_url: str,
    *,
    configured: bool = False,
    api_key: str | None = None,
    fixed: FixedMark | None = None,
    body: object = None,
) -> Mapping[str, str]:
    """The headers that tell the server at `base_url` who makes this call.

    Empty outside of an agent, and for a server that is not known as KVFlow.
    `configured`: the user pointed a KVFlow object at this server. `fixed`: where its
    fixed prompt ends, if the user has not said so. `body`: the request, looked at for
    drift in the background, so it must not change any more. Never raises, never waits.
    """
    call = context.current()
    if call is None:
        return {}
    counters = _counters
    try:
        client = owner_of(call.run)
        if client is None or client.config.disable:
            return {}
        counters = client.counters
        # What was told before needs no other look: every call comes by here.
        if not configured or client._told.get(base_url, "") != api_key:
            if configured:
                client.configure(base_url, api_key=api_key)
            if not client.knows(base_url):
                return {}
        value = _header_of(call, base_url, fixed)
    except Exception as error:
        counters.error("in-band metadata", error)
        return {}
    counters.add("calls.tagged")
    if type(body) is dict or isinstance(body, Mapping):
        client.watch(call.agent, body)
    return {wire.HEADER: value}


def tag_request(options: Any, headers: Callable[[], Mapping[str, str]]) -> Any:
    """Add `headers` to the openai client's `options` of a request, and return them: where
    it runs a model inside of an agent, and the caller has not said whose call it is."""
    if (
        context.current() is None
        or options.method.lower() != "post"
        or not options.url.endswith(_RUNS_A_MODEL)
    ):
        return options
    # Not given at all when the caller passed no headers.
    theirs = options.headers if isinstance(options.headers, Mapping) else {}
    if any(name.lower() == wire.HEADER for name in theirs):
        return options
    if ours := headers():
        options.headers = {**theirs, **ours}
    return options


def _header_of(call: context.Call, base_url: str, fixed: FixedMark | None) -> str:
    update = call.run.snapshot(agent=call.agent, fixed=call.fixed or fixed)
    value, whole = wire.fit_header(update)
    if whole:
        call.run.told(update, base_url)
    return value


def _look_for_drift(
    drift: DriftWatch, counters: Counters, agent: str, body: Mapping[str, Any]
) -> None:
    try:
        drift.see(agent, body)
    except Exception as error:
        counters.error("drift warnings", error)


_default: Client | None = None
_default_lock = threading.Lock()


def default_client() -> Client:
    """The client of this process, configured by the environment.

    Raises `ConfigError` when a variable has a value that cannot be used.
    """
    global _default
    if _default is None:
        with _default_lock:
            if _default is None:
                _default = Client()
    return _default


def usable_client(client: Client | None = None) -> Client | None:
    """`client` or the default one; None when KVFlow is off or cannot be configured."""
    try:
        chosen = client or default_client()
    except Exception as error:
        _counters.error("configuration", error)
        return None
    return None if chosen.config.disable else chosen


def _after_fork() -> None:
    # A child process is another application instance, with runs of its own.
    global _default_lock
    _default_lock = threading.Lock()
    _counters._lock = threading.Lock()
    for client in list(_BY_ID.values()):
        client._lock = threading.Lock()
        client._drift = None
        if client.transitions is not None:
            client.transitions.after_fork()
        client._renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
