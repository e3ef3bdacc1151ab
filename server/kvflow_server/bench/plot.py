"""A bar for each system, with its spread, as a PNG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

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
    import statistics

    from matplotlib import pyplot as plt

    names = list(seconds)
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
    medians = [statistics.median(seconds[name]) for name in names]
    whiskers = [
        [mid - min(seconds[name]) for name, mid in zip(names, medians, strict=True)],
        [max(seconds[name]) - mid for name, mid in zip(names, medians, strict=True)],
    ]
    bars = left.bar(names, medians, yerr=whiskers, capsize=4, color="#3d5a80")
    left.bar_label(bars, fmt="%.2f", padding=3, label_type="center", color="white")
    left.set_ylabel("seconds per workflow")
    base = [0.0] * len(names)
    for kind, colour in _TOKEN_COLOURS.items():
        counts = [tokens[name][kind] for name in names]
        right.bar(names, counts, bottom=base, color=colour, label=kind)
        base = [low + count for low, count in zip(base, counts, strict=True)]
    right.set_ylabel("prompt tokens per workflow")
    right.legend(loc="upper center", ncols=3, bbox_to_anchor=(0.5, 1.12), frameon=False)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(axis="x", rotation=20)
    figure.suptitle(title)
    figure.supxlabel(note, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)
