"""Who is calling: the run and the agent that the current code belongs to.

A context variable carries it through calls, `await` and tasks. A bare thread, an
executor or another framework's worker starts without it: `bind` takes it along.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from contextvars import ContextVar, Token, copy_context
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast

import msgspec
from msgspec.structs import replace

from .wire import FixedMark, check_fixed

if TYPE_CHECKING:
    from types import TracebackType

    from .run import Run

__all__ = [
    "Block",
    "Call",
    "Extent",
    "Scope",
    "bind",
    "current",
    "current_scope",
    "enter",
    "fixed",
    "opened",
    "surround",
    "within",
]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Call(msgspec.Struct, frozen=True):
    """Whose LLM calls the current code makes."""

    run: Run
    agent: str
    fixed: FixedMark | None = None


class Scope(msgspec.Struct, frozen=True):
    """The run that a new agent joins, and the agent that calls belong to."""

    run: Run | None = None
    call: Call | None = None


_EMPTY = Scope()
_SCOPE: ContextVar[Scope] = ContextVar("kvflow_scope", default=_EMPTY)


def current_scope() -> Scope:
    """The scope that the current code runs in; an empty one outside of any run."""
    return _SCOPE.get()


def current() -> Call | None:
    """The agent that is executing here, or None."""
    return _SCOPE.get().call


class Block(Generic[T]):
    """What can be entered with ``with`` as well as with ``async with``."""

    __slots__ = ()

    def __enter__(self) -> T:
        raise NotImplementedError

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> T:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.__exit__(kind, error, traceback)


class within(Block["Call | None"]):  # noqa: N801 - used like a function, as contextlib's own
    """Make `scope` the current one, as ``with``, ``async with`` or decorator."""

    __slots__ = ("_scope", "_tokens")

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._tokens: list[Token[Scope]] = []

    def __enter__(self) -> Call | None:
        self._tokens.append(_SCOPE.set(self._scope))
        return self._scope.call

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Left in another context than it was entered in, as an async generator that
        # someone else closes does: that context never saw our value.
        with suppress(ValueError):
            _SCOPE.reset(self._tokens.pop())

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        scope = self._scope
        return surround(function, lambda: _Given(scope))


def enter(run: Run, agent: str, fixed: FixedMark | None = None) -> within:
    """Calls made inside belong to `agent` of `run`.

    Only says who is calling; that the agent started or ended is told to the run.
    """
    return within(Scope(run, Call(run, agent, fixed)))


def fixed(mark: FixedMark | None) -> within:
    """Calls of the current agent inside the block have their fixed prompt end there.

    As ``with`` or ``async with``; None lets the server decide. Outside of an agent it
    does nothing. Raises `WireError` for a mark that cannot be sent.
    """
    if mark is not None:
        check_fixed(mark)
    scope = current_scope()
    return within(Scope(scope.run, scope.call and replace(scope.call, fixed=mark)))


def bind(function: Callable[P, R]) -> Callable[P, R]:
    """`function`, to be called in a thread or task that has no context of its own.

    ``pool.submit(kvflow.bind(work), item)``: every call sees the context in which
    `bind` was called, each in a copy of it.
    """
    if _is_lazy(function):
        # Its body runs in the context of whoever drives it: set ours inside.
        return within(current_scope())(function)
    context = copy_context()

    @functools.wraps(function)
    def bound(*args: P.args, **kwargs: P.kwargs) -> R:
        return context.copy().run(function, *args, **kwargs)

    return bound


class Extent:
    """One extent of an agent or a run, opened once and closed once.

    `scope` is current whenever code inside runs. A generator is left and entered
    again at each step, so the scope is set around every step and not once.
    """

    __slots__ = ()

    def open(self) -> Scope:
        """The scope that holds inside; called before any code inside runs."""
        raise NotImplementedError

    def close(self) -> None:
        """The code inside has ended, one way or another."""


class _Given(Extent):
    """A scope that exists already; nothing to open or close."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def open(self) -> Scope:
        return self._scope


class opened(AbstractContextManager[Scope]):  # noqa: N801 - as `within`
    """An extent around a block that runs through."""

    __slots__ = ("_extent", "_token")

    def __init__(self, extent: Extent) -> None:
        self._extent = extent

    def __enter__(self) -> Scope:
        scope = self._extent.open()
        self._token = _SCOPE.set(scope)
        return scope

    def __exit__(self, *exc_info: Any) -> None:
        try:  # noqa: SIM105 - `suppress` is an object more, in every call's way
            _SCOPE.reset(self._token)
        except ValueError:
            pass  # in another context than it was entered in: see `within`
        self._extent.close()


def surround(function: Callable[P, R], extent: Callable[[], Extent]) -> Callable[P, R]:
    """`function` with a new extent around every call, opened when its body begins.

    Sync and async functions, generators and async generators; what comes back is of
    the same kind, because frameworks look.
    """
    target = cast("Callable[..., Any]", function)
    if inspect.isasyncgenfunction(target):
        wrapped = _surround_async_generator(target, extent)
    elif inspect.isgeneratorfunction(target):
        wrapped = _surround_generator(target, extent)
    elif inspect.iscoroutinefunction(target):

        async def wrapped(*args: Any, **kwargs: Any) -> Any:
            with opened(extent()):
                return await target(*args, **kwargs)

    else:

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with opened(extent()):
                return target(*args, **kwargs)

    return cast("Callable[P, R]", functools.wraps(target)(wrapped))


def _is_lazy(function: Callable[..., Any]) -> bool:
    return (
        inspect.iscoroutinefunction(function)
        or inspect.isgeneratorfunction(function)
        or inspect.isasyncgenfunction(function)
    )


def _surround_generator(
    target: Callable[..., Any], extent: Callable[[], Extent]
) -> Callable[..., Any]:
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        generator = target(*args, **kwargs)
        around = extent()
        scope = around.open()
        advance: Callable[[], Any] = functools.partial(next, generator)
        try:
            while True:
                with within(scope):
                    try:
                        item = advance()
                    except StopIteration as stop:
                        return stop.value
                try:
                    advance = functools.partial(generator.send, (yield item))
                except GeneratorExit:
                    raise
                except BaseException as error:
                    advance = functools.partial(generator.throw, error)
        finally:
            try:
                with within(scope):
                    generator.close()
            finally:
                around.close()

    return wrapped


def _surround_async_generator(
    target: Callable[..., Any], extent: Callable[[], Extent]
) -> Callable[..., Any]:
    async def wrapped(*args: Any, **kwargs: Any) -> Any:
        generator = target(*args, **kwargs)
        around = extent()
        scope = around.open()
        advance: Callable[[], Any] = generator.__anext__
        try:
            while True:
                with within(scope):
                    try:
                        item = await advance()
                    except StopAsyncIteration:
                        return
                try:
                    advance = functools.partial(generator.asend, (yield item))
                except GeneratorExit:
                    raise
                except BaseException as error:
                    advance = functools.partial(generator.athrow, error)
        finally:
            try:
                with within(scope):
                    await generator.aclose()
            finally:
                around.close()

    return wrapped
