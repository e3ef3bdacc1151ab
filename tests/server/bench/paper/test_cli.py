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


@pytest.mark.parametrize(
    ("fig", "mixes"), [("6", "4096/32/32"), ("5", "512x20"), ("6", "512x128")]
)
def test_a_mix_of_another_figure_or_testbed_is_refused(fig: str, mixes: str) -> None:
    args = ["paper", "--fig", fig, "--testbeds", "h100", "--mixes", mixes]
    result = CliRunner().invoke(app, args)
    assert result.exit_code == 2
    assert "--mixes" in result.output
