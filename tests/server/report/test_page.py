"""The page of evidence: it shows what was kept, and says what was not."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest
from fig5_report import simulated_report
from typer.testing import CliRunner

from kvflow_server.cli import app
from kvflow_server.report.page import Section, Table, write_page

KEPT = Path(__file__).resolve().parents[3] / "results"


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []
        self.pictures: list[str] = []

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.said.append(data.strip())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "img":
            self.pictures.append(dict(attrs)["src"] or "")


def _made(results: Path, out: Path) -> _Text:
    typed = ["report", "--results", str(results), "--out", str(out)]
    done = CliRunner().invoke(app, typed)
    assert done.exit_code == 0, done.output
    page = _Text()
    page.feed((out / "index.html").read_text())
    return page


def test_without_results_every_section_says_what_is_missing(tmp_path: Path) -> None:
    page = _made(tmp_path, tmp_path / "out")
    missing = [text for text in page.said if "has not been kept" in text]
    for name in (
        "paper-fig5",
        "paper-fig6",
        "paper-fig8",
        "paper-ablation",
        "paper-stock-policies",
        "paper-branches",
        "paper-dynamic",
        "simulated-figures",
        "mooncake",
        "engine",
        "soak",
        "sdk",
    ):
        assert any(name in text for text in missing), name
    assert page.pictures == []


def test_a_figure_is_shown_beside_the_papers_and_the_simulators(tmp_path: Path) -> None:
    results, out = tmp_path / "results", tmp_path / "out"
    results.mkdir()
    (results / "paper-fig5-quick.json").write_text(json.dumps(simulated_report()))
    page = _made(results, out)
    assert "1.916" in page.said, "the paper's"
    assert page.pictures == ["paper-fig5-quick.png"]
    assert all((out / name).exists() for name in page.pictures)
    assert any("kvflow bench paper --fig 5 --quick" in text for text in page.said)
    assert sum(text.endswith("%") for text in page.said) >= 24, "the errors"


def test_what_the_project_keeps_makes_a_page(tmp_path: Path) -> None:
    page = _made(KEPT, tmp_path)
    assert any("EMULATED" in text for text in page.said)
    assert all((tmp_path / name).exists() for name in page.pictures)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["report", "--results", str(tmp_path / "no")])
    assert done.exit_code == 2


def test_text_is_never_markup(tmp_path: Path) -> None:
    table = Table("<b>", ["a&b"], [["<script>"]])
    write_page(tmp_path / "p.html", "t", "l", [Section("x < y", parts=[table])])
    text = (tmp_path / "p.html").read_text()
    assert "<script>" not in text
    assert "x &lt; y" in text


@pytest.mark.parametrize("name", ["single-0.1gbps", "single-0.05gbps"])
def test_the_readmes_figures_are_among_the_kept_results(name: str) -> None:
    report = json.loads((KEPT / f"{name}.json").read_text())
    readme = (KEPT.parent / "README.md").read_text()
    shown = f"{report['spread']['kvflow_over_hicache']['median']:.2f} times"
    assert shown in readme


def test_traces_are_shown_with_what_could_be_had(tmp_path: Path) -> None:
    results, out = tmp_path / "results", tmp_path / "out"
    results.mkdir()
    pools = [
        {
            "pool": pool,
            "lru": 10,
            "kvflow": 10,
            "hit_rate": {"lru": 0.1, "kvflow": 0.1, "belady": 0.2},
            "fetched_over_optimum": over,
        }
        for pool, over in ((1000, 1.25), (2000, 1.125), (4000, 1.0))
    ]
    report = {"simulated": True, "traces": {"chats.jsonl": {"pools": pools}}}
    (results / "mooncake.json").write_text(json.dumps(report))
    page = _made(results, out)
    assert page.pictures == ["hits-chats.png"]
    assert any(
        "KVFlow finds exactly what LRU finds. With a pool of 1,000 tokens it brings in "
        "1.25 times what must be (hit rate 10.0%, 20.0% at best), the largest gap; from "
        "4,000 tokens on it is under 5%." in text
        for text in page.said
    )
