"""The prompts and the order of a replay; tests/server/e2e replays on a real server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvflow_server.cli import app
from kvflow_server.edge.launcher import free_port
from kvflow_server.engine.trace import RecordedCall, TraceWriter
from kvflow_server.sim.replay import FIRST_TOKEN, ReplayOptions, tokens_of


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    writer = TraceWriter(path, block=16, source="test")
    writer.write([RecordedCall(t=0.0, prompt=20, output=1, blocks=[1, 2])])
    writer.close()
    return path


def test_a_block_s_tokens_follow_from_its_hash() -> None:
    assert tokens_of(7, 100, 512) == tokens_of(7, 100, 512)
    assert tokens_of(7, 100, 512) != tokens_of(8, 100, 512)


def test_a_shorter_block_of_the_same_hash_begins_alike() -> None:
    assert tokens_of(7, 100, 512)[:30] == tokens_of(7, 30, 512)


def test_tokens_are_those_that_every_model_has() -> None:
    assert set(tokens_of(7, 10_000, 512)) == set(range(FIRST_TOKEN, 512))


@pytest.mark.parametrize(
    ("option", "value"), [("speed", 0), ("concurrency", 0), ("vocabulary", 260)]
)
def test_an_option_out_of_range_is_named(option: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"^{option}: "):
        ReplayOptions(**{option: value})  # type: ignore[arg-type]


def test_a_server_that_is_not_there_is_named(trace: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    result = CliRunner().invoke(app, ["replay", str(trace), "--url", url])
    assert result.exit_code == 1
    assert f"no server at {url}" in "".join(result.output.split("\n"))


def test_a_wrong_trace_is_refused_before_anything_is_sent(trace: Path) -> None:
    lines = trace.read_text().splitlines()
    broken = json.dumps(json.loads(lines[1]) | {"prompt": 0})
    trace.write_text(f"{lines[0]}\n{broken}\n")
    result = CliRunner().invoke(app, ["replay", str(trace)])
    assert result.exit_code == 1
    assert "line 2: prompt" in " ".join(result.output.split())
