"""`kvflow record` is `kvflow serve` with two variables set, or says why not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kvflow_server.cli import app


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("KVFLOW_RECORD", "KVFLOW_RECORD_MB"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("COLUMNS", "400")
    return tmp_path / "trace.jsonl"


def record(*args: object) -> Result:
    return CliRunner().invoke(app, ["record", *map(str, args)])


def test_all_behind_the_file_goes_to_serve(out: Path) -> None:
    # Refused by `serve`, so no server starts.
    result = record("--limit-mb", 7, out, "--emulated", "--no-hicache")
    assert result.exit_code == 2
    assert "--no-hicache leaves nothing to prefetch from" in result.output
    assert os.environ["KVFLOW_RECORD"] == str(out)
    assert os.environ["KVFLOW_RECORD_MB"] == "7"


def test_a_file_that_is_there_is_replaced_only_on_demand(out: Path) -> None:
    out.write_text("precious")
    result = record(out, "--emulated", "--no-hicache")
    assert "is there; --force replaces it" in result.output
    result = record("--force", out, "--emulated", "--no-hicache")
    assert "--no-hicache leaves nothing" in result.output


def test_a_folder_that_is_not_there_is_named(out: Path) -> None:
    result = record(out.parent / "none" / "t.jsonl", "--emulated")
    assert result.exit_code == 2
    assert "cannot be written" in result.output


def test_stock_sglang_is_refused(out: Path) -> None:
    result = record(out, "--kvflow-stock")
    assert result.exit_code == 2
    assert "--kvflow-mode off" in result.output
