"""The simulator's results, drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .maps import Cell

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["save_figure_bars", "save_hit_rates", "save_maps", "save_sweep"]

NOTE = "Simulated: KVFlow's own policy on a model of the hardware, no GPU was used."
COLOURS = {
    "recompute": "#bc4b51",
    "hicache": "#f4a259",
    "protect": "#8d99ae",
    "evict": "#5b8e7d",
    "steps": "#6d597a",
    "kvflow": "#3d5a80",
    "ideal": "#4c956c",
}


def save_sweep(
    path: Path, quantity: str, seconds: Mapping[str, Sequence[tuple[float, float]]]
) -> None:
    """Seconds of a workflow over the quantity, a line for each system."""
    figure, axes = _new(1, 1, (7, 4.2))
    for system, points in seconds.items():
        xs, ys = zip(*points, strict=True)
        axes[0].plot(xs, ys, "o-", label=system, color=COLOURS.get(system))
    axes[0].set_xlabel(quantity)
    axes[0].set_ylabel("seconds per workflow (median)")
    axes[0].set_ylim(bottom=0)
    axes[0].legend(frameon=False)
    _save(figure, path, f"What {quantity} does")


def save_hit_rates(
    path: Path,
    title: str,
    pools: Sequence[int],
    rates: Mapping[str, Sequence[float]],
) -> None:
    """Hit rate over the pool, a line for each policy."""
    figure, axes = _new(1, 1, (7, 4.2))
    styles = {"lru": "s-", "kvflow": "x--", "belady": "o-"}
    for policy, values in rates.items():
        axes[0].plot(pools, values, styles.get(policy, "o-"), label=policy)
    axes[0].set_xscale("log")
    axes[0].set_xlabel("pool, tokens")
    axes[0].set_ylabel("share of prompt tokens found")
    axes[0].set_ylim(bottom=0)
    axes[0].legend(frameon=False)
    _save(figure, path, title)


def save_figure_bars(
    path: Path,
    title: str,
    labels: Sequence[str],
    speedups: Mapping[str, Sequence[float]],
    paper: Mapping[str, Sequence[float | None]],
) -> None:
    """Speed-ups over recomputation by case, the paper's as outlines on ours."""
    figure, axes = _new(1, 1, (max(7, 1.1 * len(labels)), 4.4))
    width = 0.8 / len(speedups)
    for number, (system, values) in enumerate(speedups.items()):
        xs = [case + (number - (len(speedups) - 1) / 2) * width for case in _of(labels)]
        axes[0].bar(xs, values, width, label=system, color=COLOURS.get(system))
        printed = [
            (x, value)
            for x, value in zip(xs, paper.get(system, ()), strict=False)
            if value is not None
        ]
        if printed:
            axes[0].bar(
                *zip(*printed, strict=True),
                width,
                fill=False,
                edgecolor="black",
                linewidth=1.2,
                label=f"{system}, as the paper prints it",
            )
    axes[0].axhline(1, color="grey", linewidth=0.8)
    axes[0].set_xticks(list(_of(labels)), labels, rotation=25, ha="right")
    axes[0].set_ylabel("speed-up over recomputation")
    axes[0].legend(frameon=False, fontsize=8)
    _save(figure, path, title)


def save_maps(path: Path, found: Sequence[Cell], title: str) -> None:
    """Two rows of maps: over HiCache, over recomputation; one column per output length.
    White is no difference, blue is faster, red is slower."""
    from matplotlib.colors import LogNorm

    outputs = sorted({cell.output for cell in found})
    figure, axes = _new(2, len(outputs), (3.4 * len(outputs) + 1, 6.4))
    for row, over in enumerate(("over_hicache", "over_recompute")):
        top = max(1.05, *(getattr(cell, over) for cell in found))
        for column, output in enumerate(outputs):
            some = [cell for cell in found if cell.output == output]
            _map(
                axes[row * len(outputs) + column],
                some,
                over,
                LogNorm(1 / top, top),
            )
            axes[row * len(outputs) + column].set_title(
                f"{over.replace('_', ' ')}, {output} tokens out", fontsize=9
            )
    _save(figure, path, title)


def _map(axes: Axes, found: Sequence[Cell], over: str, norm: Any) -> None:
    buses = sorted({cell.bus_gbps for cell in found})
    ratios = sorted({cell.pool_ratio for cell in found})
    values = {(c.bus_gbps, c.pool_ratio): float(getattr(c, over)) for c in found}
    table = [[values[bus, ratio] for bus in buses] for ratio in ratios]
    axes.imshow(table, origin="lower", cmap="RdBu", norm=norm, aspect="auto")
    for y, row in enumerate(table):
        for x, value in enumerate(row):
            dark = abs(norm(value) - 0.5) > 0.35
            colour = "white" if dark else "black"
            axes.text(
                x, y, f"{value:.2f}", ha="center", va="center", fontsize=7, color=colour
            )
    axes.set_xticks(range(len(buses)), [f"{bus:g}" for bus in buses])
    axes.set_yticks(range(len(ratios)), [f"{ratio:g}" for ratio in ratios])
    axes.set_xlabel("bus, GB/s")
    axes.set_ylabel("device pool over all fixed prompts")


def _of(labels: Sequence[str]) -> range:
    return range(len(labels))


def _new(rows: int, columns: int, size: tuple[float, float]) -> tuple[Figure, Any]:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(
        rows, columns, figsize=size, layout="constrained", squeeze=False
    )
    return figure, list(axes.flat)


def _save(figure: Figure, path: Path, title: str) -> None:
    from matplotlib import pyplot as plt

    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title)
    figure.supxlabel(NOTE, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)
