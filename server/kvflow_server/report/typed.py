"""The command that makes a report of `kvflow bench paper` again, from what it holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from kvflow_server.bench.paper import fig5, fig6, real, real_crowds
from kvflow_server.bench.paper.cases import cases_of
from kvflow_server.bench.paper.cli import (
    DEFAULT_MIXES,
    DEFAULT_TESTBEDS,
    all_cases,
)
from kvflow_server.bench.paper.courses import COURSES
from kvflow_server.bench.paper.fig5 import SYSTEMS_OF_FIG5
from kvflow_server.bench.paper.report_course import SYSTEMS_OF_A_COURSE

__all__ = ["typed_command"]

CROWDS = ("6", "8")


def typed_command(name: str, report: Mapping[str, Any]) -> str:
    """What to type; the report goes to ``results/<name>.json``."""
    figure = report["figure"]
    cases = cases_of(report)
    testbeds = list(dict.fromkeys(case.testbed for case in cases))
    mixes = list(dict.fromkeys(case.name for case in cases))
    own = SYSTEMS_OF_A_COURSE if figure in COURSES else SYSTEMS_OF_FIG5
    added = [system for system in cases[0].runs if system not in own] if cases else []
    options = [f"--fig {figure}", *(["--quick"] if _is_quick(report) else [])]
    if set(testbeds) != set(DEFAULT_TESTBEDS[figure]):
        options.append(f"--testbeds {','.join(testbeds)}")
    every = DEFAULT_MIXES.get(figure) or all_cases(figure, testbeds)
    if figure != "8" and set(mixes) != set(every):
        options.append(f"--mixes {','.join(mixes)}")
    if added:
        options.append(f"--systems {','.join(added)}")
    if figure == "8":
        options.append("--dataset FinQA.jsonl")
    return f"kvflow bench paper {' '.join(options)} --json results/{name}.json"


def _is_quick(report: Mapping[str, Any]) -> bool:
    effort = report["effort"]
    if report["figure"] in CROWDS:
        full = asdict(fig6.FULL if report["emulated"] else real_crowds.FULL)
    else:
        full = asdict(fig5.FULL if report["emulated"] else real.FULL)
    often = [key for key in ("runs", "blocks") if key in full]
    return any(_as_read(effort[key]) != _as_read(full[key]) for key in often)


def _as_read(value: Any) -> Any:
    """From JSON."""
    return list(value) if isinstance(value, tuple) else value
