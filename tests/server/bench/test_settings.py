from __future__ import annotations

import pytest

from kvflow_server.bench.settings import Settings, parse_dims
from kvflow_server.emulated.tiny import TinyDims


def test_the_defaults_hold_less_than_half_of_the_fixed_prompts() -> None:
    settings = Settings()
    assert settings.pool_tokens == 4812
    assert settings.pool_tokens < settings.agents * settings.fixed / 2


def test_the_ideal_pool_holds_every_token_of_every_run() -> None:
    settings = Settings(agents=3, fixed=100, dynamic=10, output=5, runs=2, pool_ratio=2)
    fixed = 3 * 100
    suffixes = (settings.runs + settings.warm_runs) * 3 * (10 + 5)
    assert settings.everything_tokens > fixed + suffixes


@pytest.mark.parametrize(
    ("option", "value"),
    [("agents", 0), ("runs", 0), ("pcie_gbps", 0.0), ("warm_runs", -1)],
)
def test_an_impossible_value_is_refused_by_its_option(
    option: str, value: float
) -> None:
    with pytest.raises(ValueError, match=f"--{option.replace('_', '-')}"):
        Settings(**{option: value})  # type: ignore[arg-type]


def test_a_pool_too_small_for_one_call_is_refused() -> None:
    with pytest.raises(ValueError, match="one call alone needs 1072"):
        Settings(pool_ratio=0.1)


def test_no_system_is_refused() -> None:
    with pytest.raises(ValueError, match="--systems"):
        Settings(systems=())


def test_the_report_carries_the_derived_sizes() -> None:
    plain = Settings(pcie_gbps=0.05).to_dict()
    assert plain["pcie_gbps"] == 0.05
    assert plain["pool_tokens"] == 4812
    assert plain["systems"] == list(Settings().systems)


def test_dims_override_the_defaults_one_by_one() -> None:
    assert parse_dims("layers=2, hidden=64") == TinyDims(layers=2, hidden=64)


@pytest.mark.parametrize(
    "text", ["depth=3", "layers", "layers=-1", "layers=0", "hidden=100"]
)
def test_a_bad_dimension_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=f"--model-dims.*{text.partition('=')[0]}"):
        parse_dims(text)
