"""An endpoint and its tracked copy.

The copy shares everything with the user's endpoint except its class: a subclass that
puts KVFlow's envelope into the body of each call. What else is needed, which function
runs, is patched in SGLang's interpreter and inert for all other endpoints:

    interpreter.run_program         a function starts
    interpreter.run_program_batch   its threads take the caller's context along
    StreamExecutor.submit           it asks for calls of the model
    StreamExecutor._thread_worker_func   it broke off
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from typing import Any

from sglang.lang import interpreter
from sglang.lang.backend.runtime_endpoint import RuntimeEndpoint

from kvflow_integrations import adapter
from kvflow_integrations.adapter import Patches, SharedPatches, tracked_class
from kvflow_sdk import wire
from kvflow_sdk.client import Client, owner_of, usable_client
from kvflow_sdk.context import Scope, current_scope, within
from kvflow_sdk.errors import WireError

from .boundary import declared
from .execution import Program, hook_submit, hook_worker, program_of

__all__ = ["Attachment", "TrackedEndpoint", "attach", "release"]

_SCOPE = "_kvflow_scope"


class Attachment(adapter.Attachment):
    """What belongs to one wrapped endpoint."""

    def __init__(
        self, original: RuntimeEndpoint, client: Client | None, name: str | None
    ) -> None:
        super().__init__(original, client)
        self._name = name
        ours = usable_client(client)
        if ours is not None:
            self._introduce(ours)

    def _introduce(self, client: Client) -> None:
        """Whoever wraps an endpoint says that its server is KVFlow."""
        try:
            client.configure(self.original.base_url, api_key=self.original.api_key)
        except Exception as error:
            # SGLang fails in the call; so does this.
            client.counters.error("base URL of an endpoint", error)

    def program(self, program: Any) -> Program | None:
        """A new execution of the SglFunction `program`; None when KVFlow is off."""
        client = self.usable()
        if client is None:
            return None
        name = getattr(program.func, "__name__", "function")
        agent = f"{self._name}|{name}" if self._name else name
        try:
            wire.check_name(agent, "agent")
        except WireError as error:
            client.counters.error("name of a function", error)
            return None
        return Program(agent, self.client)

    def tag(self, executor: Any, body: dict[str, Any]) -> None:
        """Say in `body`, a request to /generate, who makes it. Never raises."""
        program = program_of(executor)
        if program is None or program.call is None or self.released:
            return
        client = owner_of(program.call.run)
        if client is None:
            return
        try:
            if client.config.disable:
                return
            # The run may be of another client than the endpoint.
            self._introduce(client)
            mark = declared(executor) if "text" in body else None
            update = program.call.run.snapshot(agent=program.agent, fixed=mark)
            if "kv_hints" not in body:
                body["kv_hints"] = wire.to_envelope([update])
                program.call.run.told(update, self.original.base_url)
        except Exception as error:
            client.counters.error("in-band metadata", error)
        else:
            client.counters.add("calls.tagged")


class TrackedEndpoint(RuntimeEndpoint):
    """Mixed into the class of a wrapped endpoint."""

    _kvflow: Attachment

    def _add_images(self, s: Any, data: dict[str, Any]) -> None:
        # Every body of a call goes through here, just before it is sent.
        super()._add_images(s, data)
        self._kvflow.tag(s, data)

    def generate(self, s: Any, sampling_params: Any) -> Any:
        try:
            return super().generate(s, sampling_params)
        finally:
            _answered(s)

    def generate_stream(self, s: Any, sampling_params: Any) -> Iterator[Any]:
        try:
            yield from super().generate_stream(s, sampling_params)
        finally:
            _answered(s)

    def select(self, s: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().select(s, *args, **kwargs)
        finally:
            _answered(s)


def _answered(executor: Any) -> None:
    program = program_of(executor)
    if program is not None:
        program.answered()


def attach(attachment: Attachment) -> Any:
    """The tracked copy of ``attachment.original``."""
    original = attachment.original
    tracked: Any = object.__new__(tracked_class(TrackedEndpoint, type(original)))
    tracked.__dict__.update(vars(original))
    tracked._kvflow = attachment
    _patches.acquire()
    return tracked


def release(attachment: Attachment) -> None:
    """The copy is tracked no more; the last one takes the patches with it."""
    attachment.release(_patches)


def _install(patches: Patches) -> None:
    executor = interpreter.StreamExecutor
    for owner, name, hook in (
        (interpreter, "run_program", _hook_run),
        (interpreter, "run_program_batch", _hook_batch),
        (executor, "submit", hook_submit),
        (executor, "_thread_worker_func", hook_worker),
    ):
        patches.set(owner, name, hook(getattr(owner, name)))


_patches = SharedPatches(_install)


def _attachment_of(backend: Any) -> Attachment | None:
    backend = getattr(backend, "endpoint", backend)
    return backend._kvflow if isinstance(backend, TrackedEndpoint) else None


def _hook_run(run_program: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run_program)
    def hooked(program: Any, backend: Any, *args: Any, **kwargs: Any) -> Any:
        attachment = _attachment_of(backend)
        ours = None if attachment is None else attachment.program(program)
        if ours is None:
            return run_program(program, backend, *args, **kwargs)
        scope: Scope = vars(program).get(_SCOPE) or current_scope()
        with within(scope), ours.started():
            return run_program(ours.tracked(program), backend, *args, **kwargs)

    return hooked


def _hook_batch(run_batch: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run_batch)
    def hooked(program: Any, backend: Any, *args: Any, **kwargs: Any) -> Any:
        if _attachment_of(backend) is not None:
            # The threads of the batch have no context: each finds the scope here.
            program = copy.copy(program)
            setattr(program, _SCOPE, current_scope())
        return run_batch(program, backend, *args, **kwargs)

    return hooked
