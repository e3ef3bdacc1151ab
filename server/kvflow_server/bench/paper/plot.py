"""Figure 5 as bars: the paper's speed-ups beside ours, as a PNG."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    testbeds = report["mixes"]
    figure, grid = plt.subplots(
        len(testbeds),
        1,
        figsize=(10, 4 * len(testbeds)),
        layout="constrained",
        squeeze=False,
    )
    for axes, (name, mixes) in zip(grid[:, 0], testbeds.items(), strict=True):
        _panel(axes, mixes)
        if name == next(iter(testbeds)):
            axes.legend(ncols=5, loc="upper center", bbox_to_anchor=(0.5, 1.24))
        about = report["testbeds"][name]
        axes.set_title(f"{about['device']['name']}, {about['model']['name']}")
    factor = report["effort"]["factor"]
    figure.supxlabel(f"{report['note']} Token counts divided by {factor}.", fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _panel(axes: Axes, mixes: Mapping[str, Any]) -> None:
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
        label = "_" if index else "bound (Belady), here"
        axes.plot(ends, [mix["speedup"]["belady"]] * 2, "k--", lw=1, label=label)
    axes.axhline(1, color="grey", lw=0.8)
    axes.set_xticks(range(len(mixes)), list(mixes))
    axes.set_xlabel("tokens of the paper: fixed / dynamic / output")
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
