"""What goes wrong in KVFlow's own code stays there: SGLang's loop never sees it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import ParamSpec

from .counters import Counters
from .overhead import Overhead

__all__ = ["Guard"]

logger = logging.getLogger(__name__)

_P = ParamSpec("_P")
_MAX_PLACES = 64
"""Errors that are logged, by kind and place; further ones are only counted."""


class Guard:
    """Put around each piece of KVFlow's code that runs on the scheduler's thread.

    Times the piece (`Overhead`). What it raises is counted (`internal_errors`), logged
    once for each place, and ends there: the code behind the block goes on as stock
    SGLang would. In debug mode it is raised, for tests to see it.
    """

    __slots__ = ("_counters", "_overhead", "_places", "strict")

    def __init__(self, overhead: Overhead, counters: Counters, *, strict: bool) -> None:
        self._overhead = overhead
        self._counters = counters
        self._places: set[tuple[str, str, int]] = set()
        self.strict = strict

    def __enter__(self) -> None:
        self._overhead.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self._overhead.__exit__(kind, error, trace)
        if error is None or self.strict or not isinstance(error, Exception):
            return False
        self._record(error)
        return True

    def absorb(self, error: Exception) -> None:
        """The same from a caller's ``except``, where a `with` would cost too much."""
        if self.strict:
            raise error
        self._record(error)

    def wrap(self, callback: Callable[_P, None]) -> Callable[_P, None]:
        """The callback within the guard, for those that SGLang's code runs into."""

        @wraps(callback)
        def guarded(*args: _P.args, **kwargs: _P.kwargs) -> None:
            with self:
                callback(*args, **kwargs)

        return guarded

    def _record(self, error: Exception) -> None:
        self._counters.internal_errors += 1
        place = _place(error)
        if place not in self._places and len(self._places) < _MAX_PLACES:
            self._places.add(place)
            logger.error(
                "KVFlow failed and goes on as SGLang would (further ones of this kind "
                "are only counted)",
                exc_info=error,
            )


def _place(error: Exception) -> tuple[str, str, int]:
    trace, line = error.__traceback__, 0
    file = ""
    while trace is not None:
        file, line = trace.tb_frame.f_code.co_filename, trace.tb_lineno
        trace = trace.tb_next
    return type(error).__name__, file, line
