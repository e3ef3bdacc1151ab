from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from kvflow_server.bench.plot import save_bars
from kvflow_server.bench.report import build_report, show, write_json
from kvflow_server.bench.results import Call, Workflow
from kvflow_server.bench.settings import Settings


def workflow(seconds: float, host: int = 3) -> Workflow:
    call = Call(
        agent="a",
        output=(7,),
        logprobs=(-0.5,),
        prompt=10,
        device=6,
        host=host,
        seconds=seconds,
    )
    return Workflow(seconds, (call,))


RESULTS = {
    "hicache": [workflow(3), workflow(4)],
    "kvflow": [workflow(2), workflow(2)],
}
COUNTERS = {
    "kvflow": {
        "prefetch_tokens": 1024.0,
        "late_join_tokens": 12.0,
        "d2h_tokens": 2.0,
        "d2h_bytes": 512.0,
    }
}


def test_the_json_has_the_promised_fields(tmp_path: Path) -> None:
    report = build_report(Settings(), RESULTS, COUNTERS, emulated=True)
    write_json(report, tmp_path / "new" / "report.json")
    read = json.loads((tmp_path / "new" / "report.json").read_text())
    assert set(read["systems"]["kvflow"]["workflow_s"]) >= {
        "mean",
        "min",
        "max",
        "runs",
    }
    assert read["systems"]["hicache"]["tokens"] == {
        "device": 6,
        "host": 3,
        "recomputed": 1,
    }
    assert read["speedup"] == {
        "kvflow_over_hicache": 1.75,
        "kvflow_over_recompute": None,
        "evict_over_hicache": None,
        "prewarm_over_cold": None,
        "unmarked_over_hicache": None,
    }
    assert read["ratio"]["kvflow_over_ideal"] is None
    assert read["outputs_identical"] is True
    assert read["spread"]["kvflow_over_hicache"]["max"] == 2
    assert read["systems"]["kvflow"]["counters"] == COUNTERS["kvflow"]
    down = COUNTERS["kvflow"]["d2h_bytes"]
    assert read["d2h_bytes_per_workflow"] == {"kvflow": down}
    assert read["settings"]["fixed"] == 1024


def test_the_host_tokens_of_eviction_alone_are_compared_with_stock() -> None:
    results = {"hicache": RESULTS["hicache"], "kvflow-evict": [workflow(3, host=2)] * 2}
    report = build_report(Settings(), results, {}, emulated=True)
    ratio = report["ratio"]
    assert isinstance(ratio, dict)
    assert ratio["evict_host_tokens_over_hicache"] == pytest.approx(2 / 3)


def test_the_tables_name_every_system_and_say_that_it_is_emulated() -> None:
    console = Console(record=True, width=120)
    show(console, RESULTS, COUNTERS, emulated=True)
    text = console.export_text()
    for word in ("hicache", "kvflow", "1,024", "1.750", "EMULATED", "identical"):
        assert word in text


def test_the_plot_is_a_png(tmp_path: Path) -> None:
    save_bars(
        tmp_path / "out" / "bars.png",
        {"a": [1.0, 2.0, 1.5], "b": [3.0]},
        {name: {"device": 1, "host": 2, "recomputed": 3} for name in "ab"},
        title="t",
        note="n",
    )
    assert (tmp_path / "out" / "bars.png").read_bytes().startswith(b"\x89PNG")
