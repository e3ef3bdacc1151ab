"""What the page shows: each section from the raw results that it is about.

A section that misses a result says so, and nothing is shown that no run has made.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .page import Picture, Section, Table

__all__ = ["EMULATED_SECTIONS", "Report", "Results", "cost_section", "number"]

Report = Mapping[str, Any]


class Results:
    """The JSON files of one folder, and where the page and its pictures go."""

    def __init__(self, folder: Path, out: Path) -> None:
        self.folder = folder
        self.out = out

    def get(self, name: str, section: Section) -> Any:
        """The report ``<name>.json``; None, and the section says so, if there is none."""
        path = self.folder / f"{name}.json"
        if not path.exists():
            section.missing.append(path.name)
            return None
        return json.loads(path.read_text(encoding="utf-8"))

    def names(self, pattern: str) -> list[str]:
        """Stems of the files that match, sorted."""
        return sorted(path.stem for path in self.folder.glob(f"{pattern}.json"))

    def picture(self, name: str, about: str, draw: Callable[[Path], None]) -> Picture:
        """Draw ``<name>.png`` beside the page."""
        draw(self.out / f"{name}.png")
        return Picture(f"{name}.png", about)


def number(value: Any, digits: int = 2) -> str:
    """Shown; nothing for None."""
    return "" if value is None else f"{value:,.{digits}f}"


def _spread(report: Report, name: str) -> str:
    spread = report["spread"].get(name)
    if spread is None:
        return ""
    return f"{spread['median']:.2f} ({spread['q1']:.2f} to {spread['q3']:.2f})"


_SINGLE = (
    ("kvflow_over_hicache", "over HiCache"),
    ("kvflow_over_recompute", "over recomputation"),
    ("kvflow_over_ideal", "of ideal's time"),
    ("kvflow_over_steps", "over the paper's policy"),
    ("kvflow_over_unlearnt", "over unlearnt likelihoods"),
    ("evict_over_hicache", "eviction alone over HiCache"),
    ("silent_over_hicache", "without metadata, over HiCache"),
    ("unmarked_over_marked", "unmarked, of marked prompts' time"),
    ("unmarked_over_hicache", "unmarked over HiCache"),
    ("prewarm_over_cold", "first run: pre-warmed over cold"),
)


def single_section(results: Results) -> Section:
    """`kvflow bench single` in all that was kept of it."""
    section = Section(
        "One workflow, measured on the emulated accelerator",
        [
            "Ten agents one after the other, a device pool too small for their fixed "
            "prompts. Medians of paired runs, with their quartiles: the systems take "
            "turns, workflow by workflow.",
        ],
        ["kvflow bench single --json results/single-….json"],
    )
    rows = []
    for name in results.names("single-*"):
        report = results.get(name, section)
        shape = report["settings"]
        rows.append(
            [
                name.removeprefix("single-"),
                f"{shape['fixed']}/{shape['dynamic']}/{shape['output']}",
                f"{shape['pcie_gbps']:g}",
                *(_spread(report, key) for key, _ in _SINGLE),
                "yes" if report["outputs_identical"] else "NO",
            ]
        )
    head = ["run", "fixed/dynamic/output", "bus, GB/s", *(t for _, t in _SINGLE)]
    section.parts.append(Table("Speed-ups of KVFlow", [*head, "same outputs"], rows))
    return section


def cost_section(results: Results) -> Section:
    """What KVFlow costs where it is on."""
    section = Section(
        "What it costs",
        ["Every figure beside its goal. Ratios are to stock SGLang in the same run."],
        [
            "kvflow bench engine --json results/engine.json",
            "kvflow bench admission --json results/admission.json",
            "kvflow bench soak --minutes 20 --json results/soak.json",
            "kvflow bench soak --minutes 3 --json results/soak-quiet.json",
            "kvflow bench sdk --json results/sdk.json",
        ],
    )
    rows: list[list[str]] = []
    for name, read in _COSTS.items():
        if report := results.get(name, section):
            rows += read(report)
    section.parts.append(Table("Measured", ["", "measured", "goal"], rows))
    return section


Rows = list[list[str]]


def _engine_rows(engine: Report) -> Rows:
    stock, leaves = engine["stock_evict_ms"], engine["size"]["leaves"]
    ratios = {
        "requests/s over stock's": ("rps_ratio", "0.95"),
        "scheduler CPU over stock's": ("scheduler_cpu_ratio", "1.03"),
    }
    return [
        [f"eviction of 8 of {leaves:,} leaves, ms", number(engine["evict_ms"], 3), "1"],
        ["the same, stock (Python core)", number(stock["python"], 3), ""],
        ["the same, stock (Rust core)", number(stock["rust"], 3), ""],
        ["step update of 20 agents, ms", number(engine["update_ms"], 3), "0.3"],
        ["bytes per tagged node", number(engine["bytes_per_node"], 0), "500"],
        *(
            [title, number(engine.get(key), 3), goal]
            for title, (key, goal) in ratios.items()
        ),
    ]


def _admission_rows(admission: Report) -> Rows:
    return [
        [
            "a lone request over HiCache's, "
            f"{mix['fixed']}/{mix['dynamic']}/{mix['output']}",
            number(mix["ratio"]["median"], 3),
            "1.02",
        ]
        for mix in admission["mixes"]
    ]


def _soak_rows(soak: Report) -> Rows:
    return [
        ["soak: minutes", number(soak["seconds"] / 60, 1), "20"],
        ["soak: requests, failed", f"{soak['requests']:,}, {soak['failed']}", "0"],
        ["soak: what was wrong", "; ".join(soak["problems"]) or "nothing", ""],
    ]


def _quiet_soak_rows(soak: Report) -> Rows:
    """Of a machine that had nothing else to do: only there do times say something."""
    added = soak["scheduler_overhead_us"]
    title = "soak: KVFlow's share of a scheduler pass, ms"
    return [
        [f"{title}, {name}", number(added[key] / 1e3, 2), ""]
        for name, key in (("median", "p50"), ("99th percentile", "p99"))
    ]


def _sdk_rows(sdk: Report) -> Rows:
    return [
        [
            f"SDK, {agents} agents, ms per call",
            number(sdk.get(f"call_overhead_ms_{agents}"), 3),
            goal,
        ]
        for agents, goal in ((50, "0.2"), (500, "1"))
    ]


_COSTS = {
    "engine": _engine_rows,
    "admission": _admission_rows,
    "soak": _soak_rows,
    "soak-quiet": _quiet_soak_rows,
    "sdk": _sdk_rows,
}
EMULATED_SECTIONS = (single_section,)
