"""One execution of an ``@sgl.function``, from its start to its last model call.

SGLang runs a function lazily: ``run`` returns once the function has said what it wants,
while a worker thread still calls the model. So an agent executes until its function has
returned *and* every call that it asked for, in forks too, is over. That is known before
anyone who waits for a result goes on, so the next agent never overtakes the end of the
one before.
"""

from __future__ import annotations

import contextvars
import copy
import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sglang.lang.ir import SglExpr, SglExprList, SglGen, SglSelect

from kvflow_sdk.agent import Execution
from kvflow_sdk.client import Client
from kvflow_sdk.context import Call, within

__all__ = ["Program", "hook_submit", "hook_worker", "program_of"]

_ATTRIBUTE = "_kvflow_program"
_current: contextvars.ContextVar[Program | None] = contextvars.ContextVar(
    "kvflow_sgl_program", default=None
)


class Program:
    """Counts what `agent` still has to do. Safe in any thread."""

    def __init__(self, agent: str, client: Client | None) -> None:
        self.agent = agent
        self._execution = Execution(agent, None, client)
        self._lock = threading.Lock()
        self._returned = False
        self._failed = False
        self._asked = 0
        self._ended = False
        self.call: Call | None = None

    @contextmanager
    def started(self) -> Iterator[None]:
        """The current code, and every thread that SGLang starts in it, is this agent."""
        scope = self._execution.open()
        self.call = scope.call
        token = _current.set(self)
        try:
            with within(scope):
                yield
        except BaseException:
            self.returned()
            raise
        finally:
            _current.reset(token)

    def tracked(self, program: Any) -> Any:
        """`program`, an SglFunction, that tells when its function has returned."""
        function, context = program.func, contextvars.copy_context()
        caller = threading.get_ident()

        @functools.wraps(function)
        def func(*args: Any, **kwargs: Any) -> Any:
            try:
                if threading.get_ident() == caller:
                    return function(*args, **kwargs)
                # Streaming runs it in a thread that SGLang gives no context.
                return context.run(function, *args, **kwargs)
            finally:
                self.returned()

        made = copy.copy(program)
        made.func = func
        return made

    def asked(self, calls: int) -> None:
        with self._lock:
            self._asked += calls

    def returned(self) -> None:
        """The function asks for nothing more."""
        self._tell(returned=True)

    def answered(self) -> None:
        """One call of the model is over."""
        self._tell(calls=1)

    def failed(self) -> None:
        """SGLang gave the program up; what it still asked for will not come."""
        self._tell(failed=True)

    def _tell(
        self, *, calls: int = 0, returned: bool = False, failed: bool = False
    ) -> None:
        with self._lock:
            self._asked -= calls
            self._returned |= returned
            self._failed |= failed
            over = self._returned and (self._failed or self._asked <= 0)
            if not over or self._ended:
                return
            self._ended = True
        self._execution.close()


def program_of(executor: Any) -> Program | None:
    """The program that a StreamExecutor works for, if that is tracked."""
    found: Program | None = vars(executor).get(_ATTRIBUTE)
    return found


def hook_submit(submit: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """``StreamExecutor.submit`` that counts the calls of the model; inert without one.

    The first thing submitted says whose executor it is; forks are made by the function,
    so they find it in their context as well.
    """

    @functools.wraps(submit)
    def hooked(executor: Any, expr: Any) -> None:
        program = program_of(executor) or _current.get()
        if program is not None:
            vars(executor)[_ATTRIBUTE] = program
            program.asked(_calls(expr))
        try:
            submit(executor, expr)
        except BaseException:
            # Without a worker thread it runs here, and breaks off here.
            if program is not None:
                program.failed()
            raise

    return hooked


def hook_worker(work: Callable[[Any], None]) -> Callable[[Any], None]:
    """``StreamExecutor._thread_worker_func`` that tells when it broke off."""

    @functools.wraps(work)
    def hooked(executor: Any) -> None:
        try:
            work(executor)
        finally:
            program = program_of(executor)
            if program is not None and executor.error_ is not None:
                program.failed()

    return hooked


def _calls(expr: SglExpr | str) -> int:
    if isinstance(expr, SglExprList):
        return sum(map(_calls, expr.expr_list))
    return int(isinstance(expr, SglGen | SglSelect))
