"""Figure 5 as bars: the paper's speed-ups beside ours, as a PNG."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from .bars import small_print, titled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["save_fig5"]

_BARS = (
    ("HiCache, paper", "#c9d6e3", "hicache", True),
    ("HiCache, here", "#6c8ebf", "hicache", False),
    ("KVFlow, paper", "#f3c9a5", "kvflow", True),
    ("KVFlow, here", "#d9752b", "kvflow", False),
)
_WIDTH = 0.2


def save_fig5(path: Path, report: Mapping[str, Any]) -> None:
    """Draw what `build_report` returned: a panel for each testbed.

    Error bars run over the quartiles of the paired workflows; the paper gives none.
    """
    panels = {}
    for name, mixes in report["mixes"].items():
        about = report["testbeds"][name]
        title = f"{about['device']['name']}, {about['model']['name']}"
        panels[title] = {
            mix: entry | {"bound": entry["speedup"]["belady"]}
            for mix, entry in mixes.items()
        }
    words = ("tokens of the paper: fixed / dynamic / output", "bound (Belady), here")
    _save(path, panels, words, report)


def save_fig6(path: Path, report: Mapping[str, Any]) -> None:
    """Draw what `build_report6` returned; quartiles of the paired blocks."""
    panels = {}
    for name, crowds in report["crowds"].items():
        panels[titled(name)] = {
            crowd: entry
            | {
                "bound": entry["speedup"]["ideal_over_recompute"],
                "speedup": {
                    system: entry["speedup"][f"{system}_over_recompute"]
                    for system in ("hicache", "kvflow")
                },
            }
            for crowd, entry in crowds.items()
        }
    words = ("fixed tokens x workflows at a time, of the paper", "never evicts, here")
    _save(path, panels, words, report)


def _save(
    path: Path,
    panels: Mapping[str, Mapping[str, Any]],
    axis: tuple[str, str],
    report: Mapping[str, Any],
) -> None:
    """`axis`: what is under the panels, and what the dashed line is."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, grid = plt.subplots(
        len(panels),
        1,
        figsize=(10, 4 * len(panels)),
        layout="constrained",
        squeeze=False,
    )
    for axes, (title, entries) in zip(grid[:, 0], panels.items(), strict=True):
        _panel(axes, entries, axis)
        if title == next(iter(panels)):
            axes.legend(ncols=5, loc="upper center", bbox_to_anchor=(0.5, 1.24))
        axes.set_title(title)
    figure.supxlabel(fill(small_print(report), 130), fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _panel(axes: Axes, mixes: Mapping[str, Any], words: tuple[str, str]) -> None:
    for place, (label, colour, system, of_paper) in enumerate(_BARS):
        at = [index + (place - 1.5) * _WIDTH for index in range(len(mixes))]
        source = "paper" if of_paper else "speedup"
        heights = [mix[source][system] for mix in mixes.values()]
        bars = axes.bar(
            at,
            heights,
            _WIDTH,
            label=label,
            color=colour,
            yerr=None if of_paper else _errors(mixes, system, heights),
            capsize=3,
        )
        axes.bar_label(bars, fmt="%.2f", fontsize=7, label_type="center")
    for index, mix in enumerate(mixes.values()):
        ends = index - 2 * _WIDTH, index + 2 * _WIDTH
        label = "_" if index else words[1]
        axes.plot(ends, [mix["bound"]] * 2, "k--", lw=1, label=label)
    axes.axhline(1, color="grey", lw=0.8)
    axes.set_xticks(range(len(mixes)), list(mixes))
    axes.set_xlabel(words[0])
    axes.set_ylabel("speed-up over recomputation")
    axes.spines[["top", "right"]].set_visible(False)


def _errors(
    mixes: Mapping[str, Any], system: str, heights: list[float]
) -> list[list[float]]:
    spreads = [mix["spread"][f"{system}_over_recompute"] for mix in mixes.values()]
    pairs = list(zip(spreads, heights, strict=True))
    return [
        [height - spread["q1"] for spread, height in pairs],
        [spread["q3"] - height for spread, height in pairs],
    ]
