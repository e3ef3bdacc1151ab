"""Any number of systems as bars: speed-ups over one of them, and latencies of crowds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from .camera_ready import BREAKDOWN, BREAKDOWN_TESTBED
from .cases import Case, cases_of
from .testbeds import CROWDED, TESTBEDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["save_latency", "save_systems", "small_print", "titled"]

_COLOURS = {
    "recompute": "#bc4b51",
    "hicache": "#6c8ebf",
    "hicache-lfu": "#8fa9cf",
    "hicache-slru": "#4a6d9e",
    "hicache-priority": "#2f4b73",
    "kvflow-protect": "#b9b3a5",
    "kvflow-evict": "#8fbf9f",
    "kvflow-steps": "#6d597a",
    "kvflow-no-skip": "#e6b566",
    "kvflow-unlearnt": "#e6a57e",
    "kvflow": "#d9752b",
    "ideal": "#4c956c",
}
_DARK = {
    _COLOURS[name]
    for name in ("recompute", "hicache-slru", "hicache-priority", "kvflow-steps")
}
_LINES = {"kvflow-evict": ":", "kvflow": "-."}
_FILLED = 0.84
"""Of the way from one group to the next."""


@dataclass(frozen=True, slots=True)
class _Bar:
    """One for each group."""

    label: str
    colour: str | None
    heights: Sequence[float | None]
    errors: tuple[Sequence[float], Sequence[float]] | None = None
    """Below and above."""
    printed: bool = False
    """By the paper."""


def save_systems(path: Path, report: Mapping[str, Any], base: str) -> None:
    """Speed-ups over the system `base`: a panel for each testbed, a group of bars for
    each case. Error bars run over the quartiles of the pairs; the paper gives none.

    Over recomputation the paper's bars stand beside ours, over HiCache the camera-ready's
    breakdown as lines, where there are such numbers.
    """
    panels = _by_testbed(report)
    with _Figure(path, report, len(panels)) as figure:
        for axes, (testbed, cases) in zip(figure.axes, panels.items(), strict=True):
            _groups(axes, cases, _speedups(cases, base))
            _optimum(axes, cases, base)
            if base == "hicache" and testbed == BREAKDOWN_TESTBED:
                _breakdown(axes)
            axes.axhline(1, color="grey", lw=0.8)
            _words(axes, cases, f"speed-up over {_spoken(base)}")


def save_latency(path: Path, report: Mapping[str, Any]) -> None:
    """Of the workflows of crowds: bars up to the median, a line from there to p99."""
    panels = _by_testbed(report)
    with _Figure(path, report, len(panels)) as figure:
        for axes, cases in zip(figure.axes, panels.values(), strict=True):
            bars = []
            for system in cases[0].runs:
                found = [case.entry["latency"][system] for case in cases]
                middle = [latency["p50"] for latency in found]
                above = [latency["p99"] - latency["p50"] for latency in found]
                errors = ([0.0] * len(found), above)
                colour = _COLOURS.get(system)
                bars.append(_Bar(system, colour, middle, errors))
            _groups(axes, cases, bars)
            _words(axes, cases, "seconds of a workflow: p50, line to p99")


def _by_testbed(report: Mapping[str, Any]) -> dict[str, list[Case]]:
    panels: dict[str, list[Case]] = {}
    for case in cases_of(report):
        panels.setdefault(case.testbed, []).append(case)
    return panels


def _speedups(cases: Sequence[Case], base: str) -> list[_Bar]:
    bars = []
    for system in cases[0].runs:
        if system in (base, "ideal", "recompute"):
            continue
        paper = [case.paper(system) if base == "recompute" else None for case in cases]
        if any(paper):
            label = f"{system}, {_source(cases[0])}"
            bars.append(_Bar(label, _COLOURS.get(system), paper, printed=True))
        spreads = [case.over(system, base) for case in cases]
        errors = (
            [spread.median - spread.q1 for spread in spreads],
            [spread.q3 - spread.median for spread in spreads],
        )
        middle = [spread.median for spread in spreads]
        bars.append(_Bar(f"{system}, here", _COLOURS.get(system), middle, errors))
    return bars


def _source(case: Case) -> str:
    return "paper, branches = 1" if case.figure == "branches" else "paper"


def _groups(axes: Axes, cases: Sequence[Case], bars: Sequence[_Bar]) -> None:
    width = _FILLED / len(bars)
    for place, bar in enumerate(bars):
        shift = (place - (len(bars) - 1) / 2) * width
        shown = [(i, h) for i, h in enumerate(bar.heights) if h is not None]
        drawn = axes.bar(
            [index + shift for index, _ in shown],
            [height for _, height in shown],
            width,
            label=bar.label,
            color=bar.colour,
            alpha=0.45 if bar.printed else 1,
            hatch="///" if bar.printed else None,
            edgecolor="white",
            yerr=bar.errors,
            capsize=2,
        )
        labels = axes.bar_label(drawn, fmt="%.2f", label_type="center", rotation=90)
        for label in labels:
            label.set(fontsize=6.5, color="white" if bar.colour in _DARK else "black")
    axes.set_xticks(range(len(cases)), [case.name for case in cases])
    beside = max(0.6, (3 - len(cases)) / 2)  # few groups are no wider than many
    axes.set_xlim(-beside, len(cases) - 1 + beside)


def _optimum(axes: Axes, cases: Sequence[Case], base: str) -> None:
    bounded = all(case.least_tokens is not None for case in cases)
    name = "bound (Belady), here" if bounded else "never evicts, here"
    for index, case in enumerate(cases):
        height = case.optimum_over(base)
        ends = index - _FILLED / 2, index + _FILLED / 2
        axes.plot(ends, [height] * 2, "k--", lw=1, label="_" if index else name)


def _breakdown(axes: Axes) -> None:
    names = {"kvflow-evict": "eviction alone", "kvflow": "and prefetching"}
    for system, value in BREAKDOWN.items():
        label = f"{names[system]}, camera-ready: {value:g}"
        style = _LINES[system]
        axes.axhline(value, color=_COLOURS[system], ls=style, lw=1.4, label=label)


def _words(axes: Axes, cases: Sequence[Case], ylabel: str) -> None:
    of = "fixed x workflows at a time" if cases[0].crowd else "fixed / dynamic / output"
    axes.set_title(titled(cases[0].testbed), loc="left")
    axes.set_xlabel(f"tokens of the paper: {of}")
    axes.set_ylabel(ylabel)
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))


def titled(name: str) -> str:
    """A testbed with its device and model."""
    testbed = CROWDED[name].testbed if name in CROWDED else TESTBEDS[name]
    return f"{name}: {testbed.device.name}, {testbed.model.name}"


def small_print(report: Mapping[str, Any]) -> str:
    """What is emulated."""
    effort = report["effort"]
    factor = effort.get("factor") or effort["scale"]["factor"]
    return f"{report['note']} Token counts divided by {factor}."


def _spoken(system: str) -> str:
    return {"recompute": "recomputation", "hicache": "HiCache"}.get(system, system)


class _Figure:
    """Panels one above the other; saved on the way out, if all went well."""

    def __init__(self, path: Path, report: Mapping[str, Any], panels: int) -> None:
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib import pyplot as plt

        self._path = path
        self._figure, grid = plt.subplots(
            panels, 1, figsize=(11, 4 * panels), layout="constrained", squeeze=False
        )
        self.axes: list[Axes] = list(grid[:, 0])
        self._figure.supxlabel(fill(small_print(report), 150), fontsize=8)

    def __enter__(self) -> _Figure:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        from matplotlib import pyplot as plt

        if kind is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._figure.savefig(self._path, dpi=130)
        plt.close(self._figure)
