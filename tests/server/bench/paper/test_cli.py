from __future__ import annotations

import pytest
from typer.testing import CliRunner

from kvflow_server.bench.cli import app


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--fig", "9"),
        ("--testbeds", "a100"),
        ("--systems", "vllm"),
        ("--mixes", "1/2/3"),
    ],
)
def test_what_does_not_exist_is_refused_by_its_option(option: str, value: str) -> None:
    result = CliRunner().invoke(app, ["paper", option, value])
    assert result.exit_code == 2
    assert option in result.output


def test_a_testbed_of_another_figure_is_refused() -> None:
    result = CliRunner().invoke(app, ["paper", "--fig", "5", "--testbeds", "h100-8b"])
    assert result.exit_code == 2
