"""A bar for each system, with its spread, as a PNG."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["save_bars"]

_TOKEN_COLOURS = {"device": "#4c956c", "host": "#f4a259", "recomputed": "#bc4b51"}


def save_bars(
    path: Path,
    seconds: Mapping[str, Sequence[float]],
    tokens: Mapping[str, Mapping[str, float]],
    *,
    title: str,
    note: str,
) -> None:
    """Draw `seconds` (per run, by system) beside where the prompt `tokens` came from.

    A bar is the median, its whisker runs from the fastest to the slowest run. `tokens`
    has, by system, the means of ``device``, ``host`` and ``recomputed`` per workflow.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
    _seconds(left, seconds)
    _tokens(right, tokens)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(axis="x", rotation=20)
    figure.suptitle(title)
    figure.supxlabel(note, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _seconds(axes: Axes, seconds: Mapping[str, Sequence[float]]) -> None:
    medians = [statistics.median(runs) for runs in seconds.values()]
    pairs = list(zip(seconds.values(), medians, strict=True))
    below = [middle - min(runs) for runs, middle in pairs]
    above = [max(runs) - middle for runs, middle in pairs]
    bars = axes.bar(
        list(seconds), medians, yerr=[below, above], capsize=4, color="#3d5a80"
    )
    axes.bar_label(bars, fmt="%.2f", label_type="center", color="white")
    axes.set_ylabel("seconds per workflow")


def _tokens(axes: Axes, tokens: Mapping[str, Mapping[str, float]]) -> None:
    names = list(tokens)
    base = [0.0] * len(names)
    for kind, colour in _TOKEN_COLOURS.items():
        counts = [tokens[name][kind] for name in names]
        axes.bar(names, counts, bottom=base, color=colour, label=kind)
        base = [low + count for low, count in zip(base, counts, strict=True)]
    axes.set_ylabel("prompt tokens per workflow")
    axes.legend(loc="upper center", ncols=3, bbox_to_anchor=(0.5, 1.12), frameon=False)
