"""The `kvflow` command stays light and hands over exactly what it was given."""

from __future__ import annotations

import subprocess
import sys
from typing import NoReturn

import pytest
from typer.testing import CliRunner

from kvflow_server.cli import app
from kvflow_server.edge import serve as serving


class LaunchedError(Exception):
    """Stands where the process would become SGLang; holds the plan."""

    def __init__(self, plan: serving.LaunchPlan) -> None:
        super().__init__()
        self.plan = plan


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> None:
    def launch(plan: serving.LaunchPlan) -> NoReturn:
        raise LaunchedError(plan)

    monkeypatch.setattr(serving, "launch", launch)


def serve(*args: str) -> tuple[serving.LaunchPlan, str]:
    result = CliRunner().invoke(app, ["serve", "--emulated", *args])
    assert isinstance(result.exception, LaunchedError), result.output
    return result.exception.plan, result.stderr


@pytest.mark.usefixtures("launched")
def test_unknown_flags_keep_their_order_and_values() -> None:
    given = ("--tp", "2", "--port=1", "--log-level", "warning", "--trust-remote-code")
    made, _ = serve("--model-path", "m", *given)
    assert made.argv[: 2 + len(given)] == ("--model-path", "m", *given)


@pytest.mark.usefixtures("launched")
def test_kvflow_flags_do_not_reach_sglang() -> None:
    made, _ = serve(
        "--model-path", "m", "--kvflow-mode", "evict", "--emulated-pcie-gbps", "0.2"
    )
    assert not [word for word in made.argv if "kvflow-mode" in word or "pcie" in word]
    assert made.env["KVFLOW_MODE"] == "evict"


@pytest.mark.usefixtures("launched")
def test_emulation_is_said_with_its_bandwidth() -> None:
    _, said = serve("--model-path", "m", "--emulated-pcie-gbps", "0.2")
    assert "EMULATED accelerator" in said
    assert "0.2 GB/s" in said


@pytest.mark.usefixtures("launched")
def test_added_flags_are_printed() -> None:
    made, said = serve("--model-path", "m")
    for flag in made.added:
        assert flag[0] in said


def test_a_refusal_is_a_usage_error_that_names_the_flag() -> None:
    result = CliRunner().invoke(
        app, ["serve", "--emulated", "--model-path", "m", "--no-hicache"]
    )
    assert result.exit_code == 2
    assert "--no-hicache" in result.output


def test_importing_the_command_line_stays_light() -> None:
    script = (
        "import sys, kvflow_server.cli; "
        "heavy = {'torch', 'sglang', 'transformers', 'openai', 'matplotlib'}; "
        "sys.exit(bool(heavy & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
