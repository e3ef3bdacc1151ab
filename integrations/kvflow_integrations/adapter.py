"""The contract that every framework's module fulfils.

* ``wrap(app, *, client=None, name=None)`` returns an object that behaves as `app` and
  is tracked; `app` itself stays as it is. ``unwrap(wrapped)`` returns that `app`. Where
  a framework only works on the very object, `wrap` changes it and returns it, and
  ``unwrap`` restores every attribute.
* **Static graph.** ``step_graph(app, name=None)`` compiles what the program declares to
  an `AgentStepGraph`: a node's triggers are an OR over groups, each an AND over
  predecessors; what a program may choose is ``conditional``, what it does not declare
  and is only assumed, ``unknown``. None when nothing is declared: what comes next is
  then learned from what happens.
* **Run.** ``client.start_run(graph)`` at the beginning of every execution of the
  workflow, ``run.finish()`` at its end, however it ends. A run that waits for an answer
  is paused, not finished, and resumed by the answer.
* **Nodes.** ``run.start(node)`` and ``run.end(node)`` around every execution of a node,
  ``run.suspend(node)`` for one that will be repeated. A framework with supersteps says
  ``run.superstep(*nodes)`` before each; ``run.fire(*nodes)`` says what has been
  triggered where that is known before it starts.
* **Calls.** The agent of an LLM call is the one that `kvflow_sdk.context.enter` (or
  `within`) made current where the call is made. Clients of `kvflow_sdk.openai` tag
  themselves; other OpenAI clients are tagged by `kvflow_sdk.client.call_headers`.
* What a framework makes necessary to patch goes through `Patches`, is inert outside
  of a KVFlow run, and is undone when the last wrapped object is unwrapped.
* What the integration does not understand is said once, as a `KVFlowWarning` that
  names the construct and the node; the run goes on with what is understood.
* Nothing of KVFlow ever raises into a run.
"""

from __future__ import annotations

import functools
import logging
import threading
import types
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from kvflow_sdk.client import Client, usable_client
from kvflow_sdk.graph import AgentStepGraph

__all__ = [
    "Adapter",
    "Attachment",
    "KVFlowWarning",
    "Notices",
    "Patches",
    "SharedPatches",
    "on_same_state",
    "tracked_class",
    "tracked_subclass",
]

_App = TypeVar("_App")
_ABSENT = object()

_logger = logging.getLogger("kvflow")


class KVFlowWarning(UserWarning):
    """Something in a workflow is not fully understood; it runs all the same."""


class Adapter(Protocol):
    """What a module of this package offers."""

    def wrap(
        self, app: _App, *, client: Client | None = None, name: str | None = None
    ) -> _App:
        """`app` with tracking attached; `name` prefixes its agents.

        Does not change `app`. Raises `UnsupportedError` for an object or a framework
        version that it cannot handle.
        """
        ...

    def step_graph(self, app: object, name: str | None = None) -> AgentStepGraph | None:
        """What `app` declares, with the names that `wrap` would give its agents.

        None when it declares nothing. Raises `UnsupportedError` as `wrap` does.
        """
        ...

    def unwrap(self, app: _App) -> _App:
        """The very object that `wrap` was given; anything else is returned as is."""
        ...


class Patches:
    """Replaced attributes, and what was there before: (object, name, original)."""

    def __init__(self) -> None:
        self._originals: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Set `name` on `owner` until `undo`."""
        # An inherited attribute is restored by deleting ours, not by pinning it.
        self._originals.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, value)

    def undo(self) -> None:
        """Restore everything, the latest first."""
        while self._originals:
            owner, name, original = self._originals.pop()
            if original is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, original)


class SharedPatches:
    """Patches that several wrapped objects need: made for the first, undone by the last.

    `install` sets them.
    """

    def __init__(self, install: Callable[[Patches], None]) -> None:
        self._install = install
        self._patches = Patches()
        self._users = 0
        self._lock = threading.Lock()

    def acquire(self) -> None:
        """One more wrapped object."""
        with self._lock:
            if self._users == 0:
                self._install(self._patches)
            self._users += 1

    def release(self) -> None:
        """One less; call it once for each `acquire`."""
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._patches.undo()


class Attachment:
    """What belongs to one wrapped object; adapters add to it what they need."""

    def __init__(self, original: Any, client: Client | None) -> None:
        self.original = original
        """What ``unwrap`` gives back."""
        self.client = client
        """The one that the user named."""
        self.released = False
        """Unwrapped: no run is tracked any more."""
        self._lock = threading.Lock()

    def usable(self) -> Client | None:
        """The client to report to; None once released, and when KVFlow is off."""
        return None if self.released else usable_client(self.client)

    def count(self, what: str, error: BaseException) -> None:
        """Something of KVFlow's failed; the run goes on."""
        client = usable_client(self.client)
        if client is not None:
            client.counters.error(what, error)

    def release(self, *patches: SharedPatches) -> None:
        """Track no run from now on, and give up the `patches`; once."""
        with self._lock:
            first, self.released = not self.released, True
        if first:
            for shared in patches:
                shared.release()


def tracked_class(mixin: Any, kind: Any, *slots: str) -> type[Any]:
    """The class of wrapped objects of the class `kind`: `mixin` in front of it."""
    return _tracked_class(mixin, kind, slots)


@functools.cache
def _tracked_class(mixin: Any, kind: Any, slots: tuple[str, ...]) -> type[Any]:
    return tracked_subclass(mixin, kind, {"__slots__": slots} if slots else {})


def tracked_subclass(
    mixin: type[Any], kind: type[Any], namespace: Mapping[str, Any]
) -> type[Any]:
    """A subclass of both with the names of `namespace`, that calls itself `kind`."""

    def fill(body: dict[str, Any]) -> None:
        body.update(
            namespace,
            __module__=kind.__module__,
            __qualname__=kind.__qualname__,
            __doc__=kind.__doc__,
        )

    return types.new_class(kind.__name__, (mixin, kind), exec_body=fill)


def on_same_state(original: Any, mixin: type[Any], attachment: object) -> Any:
    """A tracked object that has the very ``__dict__`` of `original`, and the
    `attachment` in a slot of its own, ``_kvflow``."""
    tracked: Any = object.__new__(tracked_class(mixin, type(original), "_kvflow"))
    tracked._kvflow = attachment
    tracked.__dict__ = original.__dict__
    return tracked


class Notices:
    """Warnings about one wrapped object, each said once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._said: set[str] = set()

    def warn(self, text: str, *, stacklevel: int = 2) -> None:
        """For use while wrapping: ``-W error`` may turn it into an exception."""
        if self._first(text):
            warnings.warn(f"kvflow: {text}", KVFlowWarning, stacklevel + 1)

    def warn_in_run(self, text: str) -> None:
        """For use during a run: never raises."""
        if not self._first(text):
            return
        try:
            warnings.warn(f"kvflow: {text}", KVFlowWarning, stacklevel=2)
        except KVFlowWarning:
            _logger.warning("kvflow: %s", text)

    def _first(self, text: str) -> bool:
        with self._lock:
            if text in self._said:
                return False
            self._said.add(text)
            return True
