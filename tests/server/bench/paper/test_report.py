from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from paper_reports import fig5_result
from rich.console import Console

from kvflow_server.bench.paper import fig5
from kvflow_server.bench.paper.fig5 import QUICK
from kvflow_server.bench.paper.plot import save_fig5
from kvflow_server.bench.paper.report import build_report, show
from kvflow_server.bench.paper.scale import Effort
from kvflow_server.bench.paper.testbeds import TESTBEDS, Mix
from kvflow_server.bench.report import make_console


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return build_report([fig5_result("a10g"), fig5_result("h100")], QUICK)


def test_all_twelve_mixes_have_seconds_and_speedups(report: dict[str, Any]) -> None:
    mixes = [mix for own in report["mixes"].values() for mix in own.values()]
    assert len(mixes) == 12
    for mix in mixes:
        assert {"recompute", "hicache", "kvflow", "ideal", "belady"} <= set(mix)
        assert mix["speedup"]["kvflow"] == pytest.approx(2.2)
        assert mix["speedup"]["kvflow_over_hicache"] == pytest.approx(1.5)


def test_mixes_go_by_the_papers_tokens(report: dict[str, Any]) -> None:
    mix = report["mixes"]["a10g"]["4096/32/32"]
    assert mix["paper"]["kvflow"] == 1.916


def test_the_bound_is_never_above_the_ideal_where_loads_are_short(
    report: dict[str, Any],
) -> None:
    mix = report["mixes"]["h100"]["8192/32/32"]
    assert mix["load_below_run"]
    assert mix["belady"] == mix["ideal"]


def test_a_mix_short_of_the_paper_is_named(report: dict[str, Any]) -> None:
    assert report["verdict"]["reach_the_paper"] == 11
    assert list(report["verdict"]["short_of_the_paper"]) == ["a10g 8192/32/32"]


def test_a_mix_slower_than_a_baseline_is_named() -> None:
    slow = build_report([fig5_result("h100", {"kvflow": 1.6})], QUICK)["verdict"]
    assert len(slow["slower_than_a_baseline"]) == 6
    assert len(slow["over_belady_by_5_percent"]) == 6


def test_the_report_says_that_it_is_emulated(report: dict[str, Any]) -> None:
    assert report["emulated"] is True
    assert "EMULATED" in report["note"]


def test_the_table_names_mixes_and_verdict(report: dict[str, Any]) -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    show(console, report)
    text = console.export_text()
    assert "8192/1024/1024" in text
    assert "11 of 12 mixes" in text
    assert "EMULATED" in text


def test_the_plot_is_a_png(report: dict[str, Any], tmp_path: Path) -> None:
    save_fig5(tmp_path / "new" / "fig5.png", report)
    assert (tmp_path / "new" / "fig5.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.full
@pytest.mark.timeout(900)  # four servers start one after the other
def test_figure_5_on_real_servers_keeps_the_proportions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mix = Mix(4096, 32, 32)
    small = replace(TESTBEDS["a10g"], fig5={mix: TESTBEDS["a10g"].fig5[mix]})
    monkeypatch.setitem(fig5.TESTBEDS, "a10g", small)
    effort = Effort(factor=16, call_s=(0.3, 1.0, 1.0), runs=(2, 1, 1), settling=1)
    results = fig5.measure(effort, make_console(), ("a10g",))
    found = build_report(results, effort)["mixes"]["a10g"][str(mix)]
    assert found["outputs_identical"]
    assert found["tokens"]["recompute"]["recomputed"] > 2000
    assert found["tokens"]["ideal"]["recomputed"] < 100
    # The device is held back: nothing is faster than the data sheet says.
    testbed = TESTBEDS["a10g"]
    seconds = effort.scale_of(testbed, mix).seconds
    assert found["recompute"] > 10 * testbed.prefill_s(4096) * seconds
    assert found["costs"]["decode_s"] > 0
