"""The simulator against measurements: whose error it is told to be, it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fig5_report import simulated_report
from typer.testing import CliRunner

from kvflow_server.bench.paper.testbeds import Mix
from kvflow_server.cli import app
from kvflow_server.sim.check import agreements


def test_a_machine_is_found_from_what_two_systems_took() -> None:
    found = agreements(simulated_report())
    assert len(found) == 6 * 4
    assert max(abs(one.error) for one in found) < 0.01


def test_a_system_that_took_longer_than_predicted_is_named() -> None:
    def noise(system: str, mix: Mix) -> float:
        return 1.25 if (system, str(mix)) == ("kvflow", "8192/32/32") else 1.0

    worst = max(agreements(simulated_report(noise)), key=lambda one: abs(one.error))
    assert (worst.system, worst.mix) == ("kvflow", "8192/32/32")
    assert worst.error == pytest.approx(1 / 1.25 - 1, abs=0.01)


def test_the_command_shows_the_worst(tmp_path: Path) -> None:
    measured, report = tmp_path / "fig5.json", tmp_path / "check.json"
    measured.write_text(json.dumps(simulated_report()))
    typed = ["simulate", "check", str(measured), "--json", str(report)]
    done = CliRunner().invoke(app, typed)
    assert done.exit_code == 0, done.output
    assert "worst:" in done.output
    assert len(json.loads(report.read_text())["all"]) == 24


def test_another_report_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text("{}")
    done = CliRunner().invoke(app, ["simulate", "check", str(other)])
    assert done.exit_code == 2
    assert "not a report of" in done.output
