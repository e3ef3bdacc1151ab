"""Where KVFlow helps, where it does not, and where it would hurt."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from kvflow_server.emulated.costs import Costs

from .experiment import compare
from .scenario import Scenario
from .server import ServerSize

__all__ = ["Cell", "Grid", "cells", "grid_report"]

SYSTEMS = ("recompute", "hicache", "kvflow")


@dataclass(frozen=True, slots=True)
class Grid:
    """Bus bandwidths (GB/s), device pools (over all fixed prompts) and output lengths
    (tokens) that are put together in every way."""

    bus_gbps: tuple[float, ...]
    pool_ratio: tuple[float, ...]
    output: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.bus_gbps) * len(self.pool_ratio) * len(self.output)


@dataclass(frozen=True, slots=True)
class Cell:
    """One point of the grid; speed-ups of KVFlow."""

    bus_gbps: float
    pool_ratio: float
    output: int
    over_hicache: float
    over_recompute: float


def cells(costs: Costs, scenario: Scenario, grid: Grid) -> Iterator[Cell]:
    """Simulate all of it. A pool is never smaller than two calls."""
    for bus, ratio, output in product(grid.bus_gbps, grid.pool_ratio, grid.output):
        shaped = dataclasses.replace(scenario, output=output)
        least = 2 * shaped.call_tokens
        size = ServerSize(
            pool=max(int(ratio * shaped.prompt_tokens), least),
            host=2 * shaped.prompt_tokens + least,
        )
        found = compare(costs.changed(bus_bytes_per_s=bus * 1e9), size, shaped, SYSTEMS)
        over_hicache = found.speedup("kvflow", "hicache")
        over_recompute = found.speedup("kvflow", "recompute")
        assert over_hicache is not None
        assert over_recompute is not None
        yield Cell(bus, ratio, output, over_hicache, over_recompute)


def grid_report(
    costs: Costs, scenario: Scenario, found: Sequence[Cell]
) -> dict[str, object]:
    """Plain values, with the best and the worst cell of each comparison named."""
    report: dict[str, object] = {
        "costs": costs.to_dict(),
        "scenario": scenario.to_dict(),
        "cells": [dataclasses.asdict(cell) for cell in found],
    }
    for over in ("over_hicache", "over_recompute"):
        ordered = sorted(found, key=lambda cell: float(getattr(cell, over)))
        report[over] = {
            "worst": dataclasses.asdict(ordered[0]),
            "best": dataclasses.asdict(ordered[-1]),
        }
    return report
