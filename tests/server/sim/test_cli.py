"""`kvflow simulate`, as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvflow_server.cli import app

SMALL = ("--agents", "4", "--fixed", "512", "--output", "4", "--runs", "2")
SIZES = ("--pool-tokens", "1400", "--host-tokens", "8000")


def _typed(*args: str) -> str:
    done = CliRunner().invoke(app, ["simulate", *args])
    assert done.exit_code == 0, done.output
    return done.output


def _refused(*args: str) -> str:
    done = CliRunner().invoke(app, ["simulate", *args])
    assert done.exit_code == 2
    return " ".join(done.output.replace("│", " ").split())


def test_a_workload_is_compared_and_reported(tmp_path: Path) -> None:
    report, plot = tmp_path / "out" / "r.json", tmp_path / "p.png"
    shown = _typed(*SMALL, *SIZES, "--json", str(report), "--plot", str(plot))
    assert "kvflow" in shown
    found = json.loads(report.read_text())
    assert found["simulated"] is True
    assert found["speedup"]["kvflow_over_recompute"] > 1
    assert found["belady_s"] <= found["systems"]["kvflow"]["workflow_s"] * 1.0001
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_a_faster_bus_helps_hicache(tmp_path: Path) -> None:
    report = tmp_path / "r.json"
    swept = ("--sweep", "bus-gbps=0.2,20", "--systems", "hicache")
    _typed(*SMALL, *SIZES, *swept, "--json", str(report))
    slow, fast = json.loads(report.read_text())["steps"]
    assert (
        fast["systems"]["hicache"]["workflow_s"]
        < slow["systems"]["hicache"]["workflow_s"]
    )


def test_a_map_names_its_worst_cell(tmp_path: Path) -> None:
    report, plot = tmp_path / "r.json", tmp_path / "p.png"
    grid = ("--bus-gbps", "1,8", "--pool-ratio", "0.5,1.2", "--output", "4,16")
    shown = _typed(
        "map", "--fixed", "512", *grid, "--json", str(report), "--plot", str(plot)
    )
    assert "worst over hicache" in shown
    found = json.loads(report.read_text())
    assert len(found["cells"]) == 8
    worst = found["over_hicache"]["worst"]
    assert worst["over_hicache"] == min(c["over_hicache"] for c in found["cells"])
    assert plot.exists()


def test_a_figure_stands_beside_the_papers(tmp_path: Path) -> None:
    report = tmp_path / "r.json"
    _typed("paper", "--fig", "branches", "--json", str(report))
    alone, _ = json.loads(report.read_text())["figures"]["branches"]
    assert alone["paper"]["kvflow"] == 1.42
    assert alone["speedup"]["kvflow_over_recompute"] > 1


def _mooncake(path: Path, calls: int = 6) -> Path:
    """Two prompts of two blocks, in turns."""
    lines = [
        {
            "timestamp": 1000 * n,
            "input_length": 1024,
            "output_length": 4,
            "hash_ids": [10 * (n % 2), 10 * (n % 2) + 1],
        }
        for n in range(calls)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_trace_is_served_by_each_system(tmp_path: Path) -> None:
    trace, report = _mooncake(tmp_path / "t.jsonl"), tmp_path / "r.json"
    sizes = ("--pool-tokens", "1500", "--systems", "recompute,hicache,kvflow")
    shown = _typed("--trace", str(trace), *sizes, "--json", str(report))
    assert "hit rate" in shown
    found = json.loads(report.read_text())["systems"]
    assert {one["calls"] for one in found.values()} == {6}
    assert found["recompute"]["hit_rate"] < found["hicache"]["hit_rate"]
    assert found["kvflow"]["tokens"] == found["hicache"]["tokens"], "no metadata"


def test_a_faster_trace_ends_sooner(tmp_path: Path) -> None:
    trace, seconds = _mooncake(tmp_path / "t.jsonl"), []
    for speed in ("1", "2"):
        report = tmp_path / f"{speed}.json"
        args = ("--trace", str(trace), "--speed", speed, "--systems", "kvflow")
        _typed(*args, "--json", str(report))
        seconds.append(json.loads(report.read_text())["systems"]["kvflow"]["seconds"])
    assert seconds[1] < seconds[0]


def test_profiles_and_systems_are_listed() -> None:
    assert "h100-llama3-8b" in _typed("profiles")
    assert "hicache" in _typed("systems")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--profile", "tpu"), "profile 'tpu' is unknown, use a10g"),
        (("--systems", "lru"), "system 'lru' is unknown, use ideal"),
        (("--sweep", "colour=1"), "'colour' cannot be swept, use bus-gbps"),
        (("--sweep", "horizon=far"), "is not horizon=NUMBER"),
        (("--agents", "0"), "agents: at least 1, not 0"),
        (("--pool-tokens", "100"), "one call alone needs 4160"),
        (("--trace", "nowhere.jsonl"), "No such file"),
        (("--trace", __file__, "--speed", "0"), "speed: above 0, not 0"),
        (("--trace", __file__), "line 1"),
        (("--horizon", "-1"), "horizon: at least 0, not -1"),
        (("paper", "--fig", "9"), "'9' is unknown, use 5"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(
    args: tuple[str, ...], said: str
) -> None:
    assert said in _refused(*args)


def test_hit_rates_of_a_trace_are_shown_and_reported(tmp_path: Path) -> None:
    trace, report = tmp_path / "t.jsonl", tmp_path / "r.json"
    line = {"timestamp": 0, "input_length": 600, "output_length": 4, "hash_ids": [0, 1]}
    trace.write_text(f"{json.dumps(line)}\n" * 2)
    shown = _typed("hits", str(trace), "--pools", "1e3,500", "--json", str(report))
    assert "49.9%" in shown
    found = json.loads(report.read_text())["traces"]["t.jsonl"]["pools"]
    assert [(pool["pool"], pool["too_long"]) for pool in found] == [(1000, 0), (500, 2)]
    assert found[0]["lru"] == found[0]["kvflow"] == found[0]["belady"] == 599


def test_pools_and_traces_that_make_no_sense_are_named(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    assert "No such file" in _refused("hits", str(trace))
    trace.write_text("{}")
    assert "line 1: kvflow_trace" in _refused("hits", str(trace))
    assert "pools: 'x' is no number" in _refused("hits", str(trace), "--pools", "x")
