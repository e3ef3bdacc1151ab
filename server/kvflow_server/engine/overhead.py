"""What KVFlow costs the scheduler: the time spent in its own code, pass by pass."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import TracebackType

__all__ = ["Overhead", "quantile"]

Buckets = Mapping[int, int]
"""Upper bound of a bucket in nanoseconds -> number of passes."""


class Overhead:
    """Time of the scheduler thread spent in KVFlow's code, per scheduler pass.

    Put around each such piece of code as a context manager; pieces may nest. Only
    passes with something to do are counted: an idle scheduler makes thousands of empty
    ones a second, which would hide the others. Kept in buckets of at most 25%, so a
    quantile is too large by no more than that.
    """

    __slots__ = ("_buckets", "_clock", "_depth", "_entered", "_pending", "max_ns")

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._clock = clock
        self._depth = 0
        self._entered = 0
        self._pending = 0
        self._buckets: dict[int, int] = {}
        self.max_ns = 0

    def __enter__(self) -> Overhead:
        if not self._depth:
            self._entered = self._clock()
        self._depth += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._depth -= 1
        if not self._depth:
            self._pending += self._clock() - self._entered

    def end_pass(self, *, busy: bool) -> None:
        """The pass is over; it counts if it had requests."""
        spent, self._pending = self._pending, 0
        if busy:
            bound = _bound(spent)
            self._buckets[bound] = self._buckets.get(bound, 0) + 1
            self.max_ns = max(self.max_ns, spent)

    @property
    def p99_s(self) -> float:
        """What 99 of 100 passes stay within, seconds."""
        return quantile(self._buckets, 0.99) / 1e9

    def as_dict(self) -> dict[str, object]:
        """JSON values, in microseconds; `buckets_us` are (upper bound, passes)."""
        return {
            "passes": sum(self._buckets.values()),
            "p50_us": quantile(self._buckets, 0.5) / 1e3,
            "p99_us": quantile(self._buckets, 0.99) / 1e3,
            "max_us": self.max_ns / 1e3,
            "buckets_us": [
                [bound / 1e3, count] for bound, count in sorted(self._buckets.items())
            ],
        }


def quantile(buckets: Buckets, share: float) -> int:
    """The smallest bound that at least `share` of the passes stay within; 0 of none."""
    counts = sorted(buckets.items())
    wanted = share * sum(count for _, count in counts)
    seen = 0
    for bound, count in counts:
        seen += count
        if seen >= wanted:
            return bound
    return 0


def _bound(value: int) -> int:
    """The largest number in `value`'s bucket: its three highest bits and ones."""
    shift = max(value.bit_length() - 3, 0)
    return (((value >> shift) + 1) << shift) - 1
