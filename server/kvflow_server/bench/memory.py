"""Resident memory of a server's processes over time."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["MemoryLog", "slope"]

MIB = 1 << 20


@dataclass(slots=True)
class MemoryLog:
    """Samples of the process `pid` and everything below it."""

    pid: int
    samples: list[tuple[float, float]] = field(default_factory=list)
    """(seconds, MiB of all processes together)."""

    def sample(self, seconds: float) -> float:
        """Take one sample; returns its MiB. A process that ends meanwhile counts 0."""
        import psutil

        total = 0.0
        for process in _family(self.pid):
            try:
                total += process.memory_info().rss / MIB
            except psutil.NoSuchProcess:
                continue
        self.samples.append((seconds, total))
        return total

    def report(self, warm_after: float) -> dict[str, Any]:
        """MiB; the slope is that of the samples after `warm_after` seconds."""
        warm = [sample for sample in self.samples if sample[0] >= warm_after]
        tenth = max(1, len(warm) // 10)
        ends = [
            statistics.median(mib for _, mib in part) if part else 0.0
            for part in (warm[:tenth], warm[-tenth:])
        ]
        return {
            "samples": [[round(s, 1), round(mib, 1)] for s, mib in self.samples],
            "warm_after_s": warm_after,
            "warm_mib": ends[0],
            "end_mib": ends[1],
            "growth_mib": ends[1] - ends[0],
            "slope_mib_per_minute": 60 * slope(warm),
        }


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the least-squares line; 0 where there are not two different abscissas."""
    if len({x for x, _ in points}) < 2:
        return 0.0
    return float(statistics.linear_regression(*zip(*points, strict=True)).slope)


def _family(pid: int) -> list[Any]:
    import psutil

    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
