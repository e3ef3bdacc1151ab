"""One reading of all reports, and the bars that are drawn of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from paper_reports import course_report, crowd_results, fig5_result, peer_results

from kvflow_server.bench.paper import fig5, fig6
from kvflow_server.bench.paper.bars import save_latency, save_systems
from kvflow_server.bench.paper.cases import Case, cases_of
from kvflow_server.bench.paper.cli import _plot
from kvflow_server.bench.paper.report import build_report
from kvflow_server.bench.paper.report6 import build_report6

PARTS = {"kvflow-steps": 1.2, "kvflow-evict": 1.3, "kvflow-no-skip": 1.1}


def read(report: dict[str, Any]) -> dict[str, Any]:
    """As it comes from a file."""
    found: dict[str, Any] = json.loads(json.dumps(report))
    return found


@pytest.fixture(scope="module")
def reports() -> dict[str, dict[str, Any]]:
    every = {
        "5": build_report([fig5_result("a10g"), fig5_result("h100")], fig5.QUICK),
        "6": build_report6(crowd_results(), fig6.QUICK),
        "8": build_report6(peer_results(), fig6.QUICK, "8"),
        "branches": course_report("branches"),
        "dynamic": course_report("dynamic"),
    }
    return {name: read(report) for name, report in every.items()}


def test_ratios_are_those_that_the_reports_have(
    reports: dict[str, dict[str, Any]],
) -> None:
    for name in ("6", "8", "branches", "dynamic"):
        for case in cases_of(reports[name]):
            for base in ("recompute", "hicache"):
                told = case.entry["speedup"][f"kvflow_over_{base}"]
                assert case.over("kvflow", base).median == pytest.approx(told)
    for case in cases_of(reports["5"]):
        told = case.entry["speedup"]["kvflow_over_hicache"]
        assert case.over("kvflow", "hicache").median == pytest.approx(told)


def test_the_optimum_is_that_of_the_reports(reports: dict[str, dict[str, Any]]) -> None:
    for name in ("5", "branches", "dynamic"):
        for case in cases_of(reports[name]):
            share = case.over_optimum("kvflow").median
            assert share == pytest.approx(case.entry["kvflow_over_belady"])
            best = case.entry["recompute"] / case.entry["belady"]
            assert case.optimum_over("recompute") == pytest.approx(best)


def test_of_a_crowd_the_optimum_is_never_to_evict(
    reports: dict[str, dict[str, Any]],
) -> None:
    crowd = cases_of(reports["6"])[0]
    assert crowd.least_tokens is None
    assert crowd.over_optimum("hicache").median == 1.25


def one(reports: dict[str, dict[str, Any]], figure: str, name: str) -> Case:
    return next(case for case in cases_of(reports[figure]) if str(case) == name)


def test_branches_stand_beside_one_branch_where_that_is_printed(
    reports: dict[str, dict[str, Any]],
) -> None:
    printed = one(reports, "branches", "h100 4096/32/32")
    assert printed.paper("kvflow") == 1.42
    assert printed.paper_over_hicache() == pytest.approx(1.24)
    assert one(reports, "branches", "h100 8192/32/32").paper("kvflow") is None
    assert one(reports, "5", "h100 4096/32/32").paper("kvflow") == 1.427


def test_what_is_brought_in_counts_copies_ahead_of_time(
    reports: dict[str, dict[str, Any]],
) -> None:
    case = one(reports, "5", "h100 4096/32/32")
    assert case.brought_in("kvflow") == 10 * 3 + 512
    assert case.brought_in("hicache") == 10 * 3


def test_systems_are_in_one_order_and_unknown_ones_last() -> None:
    seconds = {"kvflow-new": 1.0, "hicache-slru": 1.4}
    report = build_report([fig5_result("h100", seconds)], fig5.QUICK)
    assert list(cases_of(report)[0].runs) == [
        *("recompute", "hicache", "hicache-slru", "kvflow", "ideal", "kvflow-new")
    ]


@pytest.mark.parametrize("figure", ["5", "6", "8", "branches", "dynamic"])
def test_every_figure_has_a_plot(
    reports: dict[str, dict[str, Any]], figure: str, tmp_path: Path
) -> None:
    _plot(figure, tmp_path / "new" / "plot.png", reports[figure])
    assert (tmp_path / "new" / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_parts_are_drawn_over_hicache_and_latencies_of_crowds(tmp_path: Path) -> None:
    ablation = build_report([fig5_result("h100", PARTS)], fig5.QUICK)
    save_systems(tmp_path / "parts.png", ablation, "hicache")
    save_latency(tmp_path / "late.png", build_report6(crowd_results(), fig6.QUICK))
    for name in ("parts.png", "late.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
