"""The page, put together."""

from __future__ import annotations

import json
from pathlib import Path

from .page import Section, Table, write_page
from .paper import PAPER_SECTIONS
from .sections import EMULATED_SECTIONS, Results, cost_section
from .simulated import SIMULATED_SECTIONS
from .traces import traces_section

__all__ = ["build_report"]

_LEAD = (
    "Everything here comes from raw results that are kept as JSON, each made by the "
    "command beside it. Nothing was measured on a GPU: on the EMULATED accelerator the "
    "scheduler, the radix tree, the model's arithmetic and the copies are real, on CPU "
    "cores, and the bus is a rate limit; SIMULATED times come from a model of the "
    "hardware, in which every decision is made by KVFlow's own policy code."
)


def build_report(folder: Path, out: Path) -> Path:
    """Write ``index.html`` and its pictures to `out`; its path."""
    results = Results(folder, out)
    sections = [
        make(results)
        for make in (
            *EMULATED_SECTIONS,
            *PAPER_SECTIONS,
            *SIMULATED_SECTIONS,
            traces_section,
            cost_section,
        )
    ]
    page = out / "index.html"
    write_page(
        page, "KVFlow: the evidence", _LEAD, [*sections, _versions_section(folder)]
    )
    return page


def _versions_section(folder: Path) -> Section:
    """What each result was made with."""
    rows = []
    for path in sorted(folder.glob("*.json")):
        report = json.loads(path.read_text(encoding="utf-8"))
        kind = "simulated" if report.get("simulated") else "emulated"
        made = report.get("versions") or {}
        rows.append([path.name, kind, ", ".join(f"{k} {v}" for k, v in made.items())])
    table = Table("Raw results", ["file", "kind", "made with"], rows)
    return Section("Machine and versions", parts=[table])
