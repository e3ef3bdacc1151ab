from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from paper_reports import crowd_results
from rich.console import Console

from kvflow_server.bench.paper import fig6
from kvflow_server.bench.paper.fig6 import QUICK, CrowdEffort
from kvflow_server.bench.paper.plot import save_fig6
from kvflow_server.bench.paper.report6 import build_report6, show6
from kvflow_server.bench.paper.scale import Scale
from kvflow_server.bench.paper.testbeds import CROWDED
from kvflow_server.bench.report import make_console


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return build_report6(crowd_results(), QUICK)


def test_all_four_crowds_are_reported(report: dict[str, Any]) -> None:
    assert [list(own) for own in report["crowds"].values()] == [
        ["512x20", "1024x10"],
        ["512x128", "1024x64"],
    ]


def test_throughput_latency_and_speedup_are_there(report: dict[str, Any]) -> None:
    crowd = report["crowds"]["h100"]["512x20"]
    assert crowd["throughput"]["kvflow"] == 5.0
    assert crowd["latency"]["kvflow"] == {"p50": 4.0, "p99": 4.0, "n": 60}
    assert crowd["speedup"]["kvflow_over_recompute"] == 1.5
    assert crowd["speedup"]["kvflow_over_hicache"] == 1.25
    assert crowd["paper"]["kvflow"] == 1.136


def test_a_crowd_slower_than_a_baseline_is_named(report: dict[str, Any]) -> None:
    assert report["verdict"]["slower_than_a_baseline"] == {}
    slow = build_report6(crowd_results({"kvflow": 6.0}), QUICK)["verdict"]
    assert len(slow["slower_than_a_baseline"]) == 4
    assert len(slow["short_of_the_paper"]) == 4


def test_the_table_says_how_many_there_were(report: dict[str, Any]) -> None:
    console = Console(width=160, record=True, file=io.StringIO())
    show6(console, report)
    text = console.export_text()
    assert "512x128, here 20 at the same time" in text
    assert "EMULATED" in text


def test_the_plot_is_a_png(report: dict[str, Any], tmp_path: Path) -> None:
    save_fig6(tmp_path / "fig6.png", report)
    assert (tmp_path / "fig6.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.full
@pytest.mark.timeout(900)  # four servers start one after the other
def test_a_tiny_figure_6_on_real_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = CROWDED["h100-8b"]
    crowd = next(iter(whole.fig6))
    few = replace(whole, thinned=32, fig6={crowd: whole.fig6[crowd]})
    monkeypatch.setitem(fig6.CROWDED, "h100-8b", few)
    effort = CrowdEffort(Scale(16, 1 / 16), blocks=1, rounds=1)
    systems = ("ideal", "recompute", "kvflow")
    found = fig6.measure(effort, make_console(), ("h100-8b",), systems)
    entry = build_report6(found, effort)["crowds"]["h100-8b"][str(crowd)]
    assert entry["concurrency"] == 4
    assert entry["latency"]["kvflow"]["n"] == 4
    assert (
        entry["tokens"]["recompute"]["recomputed"]
        > (entry["tokens"]["kvflow"]["recomputed"])
    )
