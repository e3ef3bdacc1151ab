"""The sections of `kvflow bench paper`, from reports that its own builders have made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from paper_reports import course_report, crowd_results, fig5_result, peer_results

from kvflow_server.bench.paper import fig5, fig6
from kvflow_server.bench.paper.cases import cases_of
from kvflow_server.bench.paper.report import build_report
from kvflow_server.bench.paper.report6 import build_report6
from kvflow_server.report.page import Picture, Section, Table
from kvflow_server.report.paper import PAPER_SECTIONS
from kvflow_server.report.sections import Results
from kvflow_server.report.typed import typed_command
from kvflow_server.report.verdicts import verdict

PARTS = {
    "kvflow-protect": 1.45,
    "kvflow-evict": 1.3,
    "kvflow-steps": 1.1,
    "kvflow-no-skip": 1.02,
}
STOCK = {"hicache-lfu": 1.4, "hicache-slru": 1.45, "hicache-priority": 1.2}


@pytest.fixture(scope="module")
def sections(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Section]:
    """By the file that each shows."""
    folder = tmp_path_factory.mktemp("results")
    reports = {
        "paper-fig6-quick": build_report6(crowd_results(), fig6.QUICK),
        "paper-fig8": build_report6(peer_results(), fig6.FULL, "8"),
        "paper-branches": course_report("branches"),
        "paper-dynamic": course_report("dynamic"),
        "paper-ablation": build_report([fig5_result("h100", PARTS)], fig5.QUICK),
        "paper-stock-policies": build_report([fig5_result("a10g", STOCK)], fig5.FULL),
    }
    for name, report in reports.items():
        (folder / f"{name}.json").write_text(json.dumps(report))
    results = Results(folder, folder / "out")
    made = [make(results) for make in PAPER_SECTIONS]
    shown = {
        command.rpartition("results/")[2].removesuffix(".json"): section
        for section in made
        for command in section.commands
    }
    for section in made:
        for part in section.parts:
            if isinstance(part, Picture):
                assert (folder / "out" / part.name).exists()
    return shown


def tables(section: Section) -> list[Table]:
    return [part for part in section.parts if isinstance(part, Table)]


def rows_of(table: Table) -> list[dict[str, str]]:
    """By title; of two alike the second has a *."""
    heads: list[str] = []
    for head in table.head:
        heads.append(f"{head}*" if head in heads else head)
    return [dict(zip(heads, row, strict=True)) for row in table.rows]


def test_a_crowd_has_throughput_latency_and_the_papers(
    sections: Mapping[str, Section],
) -> None:
    section = sections["paper-fig6-quick"]
    rows = rows_of(tables(section)[0])
    row = next(
        r for r in rows if r["case"] == "512x20, here 20" and r["system"] == "kvflow"
    )
    assert row["workflows/s"] == "5.00"
    assert (row["p50, s"], row["p99, s"]) == ("4.00", "4.00")
    assert row["over recompute"] == "1.500 (1.500 to 1.500)"
    assert (row["paper"], row["paper*"]) == ("1.136", "1.030")
    assert row["times the seconds of never evicting"] == "1.000"
    pictures = [part.name for part in section.parts if isinstance(part, Picture)]
    assert pictures == ["paper-fig6-quick.png", "paper-fig6-quick-latency.png"]


def test_peer_is_a_section_of_its_own(sections: Mapping[str, Section]) -> None:
    cases = {row["case"] for row in rows_of(tables(sections["paper-fig8"])[0])}
    assert cases == {"399x16, here 20", "399x128, here 20"}


def test_branches_say_which_numbers_the_paper_has(
    sections: Mapping[str, Section],
) -> None:
    section = sections["paper-branches"]
    assert any("no number" in text for text in section.text)
    rows = rows_of(tables(section)[0])
    kvflow = {row["case"]: row for row in rows if row["system"] == "kvflow"}
    assert kvflow["4096/32/32"]["paper"] == "1.420"
    assert kvflow["4096/32/32"]["paper*"] == "1.240"
    assert kvflow["8192/32/32"]["paper"] == ""
    assert "(" in kvflow["8192/32/32"]["tokens brought in (least)"]


def test_the_ablation_has_a_column_for_each_part(
    sections: Mapping[str, Section],
) -> None:
    rows = rows_of(tables(sections["paper-ablation"])[0])
    assert rows[0]["kvflow-evict"] == "1.154 (1.154 to 1.154)"
    assert rows[-1]["kvflow-evict"] == "1.11"
    assert rows[-1]["kvflow"] == "1.29"


def test_every_section_says_what_is_emulated(sections: Mapping[str, Section]) -> None:
    assert len(sections) == 7
    assert all("Emulated" in section.text[0] for section in sections.values())


def test_a_stock_policy_that_is_faster_is_named() -> None:
    report = build_report([fig5_result("a10g", STOCK | {"kvflow": 1.3})], fig5.QUICK)
    (table,) = verdict("x", cases_of(report))
    slower = rows_of(table)[0]
    assert slower["reached"] == "0 of 6"
    words = "a10g 4096/32/32 0.923 (0.923 to 0.923, n = 3) of hicache-priority"
    assert words in slower["not reached: KVFlow's, what was asked"]


def test_what_is_short_of_the_paper_is_named_and_over_hicache_too() -> None:
    report = build_report([fig5_result("a10g")], fig5.QUICK)
    rows = rows_of(verdict("x", cases_of(report))[0])
    short = {row[""]: row["reached"] for row in rows}
    assert short["the paper's speed-up over recomputation"] == "5 of 6"
    assert short["the paper's speed-up over HiCache"] == "5 of 6"


def test_a_crowd_whose_slowest_are_slower_is_named() -> None:
    report = build_report6(crowd_results({"kvflow": 5.5}), fig6.QUICK)
    late = rows_of(verdict("x", cases_of(report))[0])[1]
    assert late["reached"] == "0 of 4"
    words = "h100 512x20 5.50 s, hicache 5.00 s"
    assert words in late["not reached: KVFlow's, what was asked"]


def test_a_mode_that_is_faster_than_the_whole_is_named() -> None:
    report = course_report("dynamic", {"kvflow-unlearnt": 0.9})
    rows = rows_of(verdict("x", cases_of(report))[0])
    modes = next(row for row in rows if "own modes" in row[""])
    assert modes["reached"] == "1 of 2"
    assert "of kvflow-unlearnt" in modes["not reached: KVFlow's, what was asked"]


@pytest.mark.parametrize(
    ("name", "typed"),
    [
        ("paper-fig6-quick", "--fig 6 --quick --json results/paper-fig6-quick.json"),
        ("paper-fig8", "--fig 8 --dataset FinQA.jsonl --json"),
        ("paper-branches", "--fig branches --quick --json"),
        ("paper-dynamic", "--fig dynamic --quick --testbeds h100 --json"),
        (
            "paper-ablation",
            "--fig 5 --quick --testbeds h100 --systems kvflow-protect,kvflow-evict,"
            "kvflow-steps,kvflow-no-skip --json",
        ),
        (
            "paper-stock-policies",
            "--fig 5 --testbeds a10g --systems hicache-lfu,hicache-slru,"
            "hicache-priority --json",
        ),
    ],
)
def test_the_command_makes_the_report_again(
    sections: Mapping[str, Section], name: str, typed: str
) -> None:
    (command,) = sections[name].commands
    assert command.startswith(f"kvflow bench paper {typed}")


def test_only_some_mixes_are_said_in_the_command() -> None:
    report: dict[str, Any] = build_report([fig5_result("h100")], fig5.FULL)
    mixes = report["mixes"]["h100"]
    report["mixes"]["h100"] = {"8192/32/32": mixes["8192/32/32"]}
    assert "--testbeds h100 --mixes 8192/32/32 --json" in typed_command("x", report)
