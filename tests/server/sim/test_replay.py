"""The prompts and the order of a replay; tests/server/e2e replays on a real server."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kvflow_server.cli import app
from kvflow_server.edge.launcher import free_port
from kvflow_server.engine.trace import RecordedCall, Trace, TraceWriter, Update
from kvflow_server.sim.replay import (
    FIRST_TOKEN,
    ReplayOptions,
    ReplayResult,
    replay,
    tokens_of,
)


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


class Listener(ThreadingHTTPServer):
    """Takes calls, and answers each when it is let to; knows nothing of KVFlow."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.asked = threading.Semaphore(0)
        self.bodies: list[dict[str, Any]] = []
        self.answer = threading.Event()
        self.overlap = 0
        """Calls that came while another one was not answered."""
        self.open = 0
        self.status = 200


class _Handler(BaseHTTPRequestHandler):
    server: Listener

    def do_GET(self) -> None:
        self.send_error(404)

    def do_POST(self) -> None:
        server = self.server
        length = int(self.headers["content-length"])
        server.bodies.append(json.loads(self.rfile.read(length)))
        server.overlap += server.open > 0
        server.open += 1
        server.asked.release()
        server.answer.wait()
        server.open -= 1
        text = json.dumps({"meta_info": {"cached_tokens": 3}}).encode()
        self.send_response(server.status)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def listener() -> Iterator[Listener]:
    server = Listener()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.answer.set()
    server.shutdown()
    thread.join()
    server.server_close()


def _run_of(agents: int, run: int, path: Path) -> Trace:
    """A run whose calls followed each other, with an eternity between them."""
    writer = TraceWriter(path, block=16, source="test")
    for number in range(agents):
        update = Update(client=1, run=run, seq=number, agent=str(number))
        call = RecordedCall(
            t=1e6 * number,
            prompt=20,
            output=5,
            blocks=[1, number + 2],
            took=1.0,
            update=update,
        )
        writer.write([call])
    writer.close()
    return Trace(path)


def test_fast_waits_for_no_time_but_for_the_calls_before(
    listener: Listener, trace: Path
) -> None:
    listener.answer.set()
    result = ReplayResult()
    asyncio.run(
        replay(_run_of(4, 1, trace), listener.url, ReplayOptions(fast=True), result)
    )
    assert (result.calls, result.device, result.prompt) == (4, 12, 80)
    assert listener.overlap == 0
    first, second, *_ = listener.bodies
    assert first["input_ids"][:16] == second["input_ids"][:16]
    assert first["input_ids"][16:] != second["input_ids"][16:]
    assert first["sampling_params"]["max_new_tokens"] == 5
    assert "kv_hints" not in first, "nobody there speaks KVFlow"


def test_calls_that_fail_are_counted_and_shown(listener: Listener, trace: Path) -> None:
    listener.answer.set()
    listener.status = 503
    done = CliRunner().invoke(app, ["replay", str(trace), "--url", listener.url])
    assert done.exit_code == 1
    assert "1 calls and 0 step updates failed" in done.output
    assert "status 503" in done.output


def test_ctrl_c_ends_it_and_keeps_what_was_measured(
    listener: Listener, trace: Path, tmp_path: Path
) -> None:
    report = tmp_path / "r.json"
    _run_of(2, 1, trace)  # the second call is due in eleven days
    command = ["replay", str(trace), "--url", listener.url, "--json", str(report)]
    process = subprocess.Popen(
        [sys.executable, "-m", "kvflow_server.cli", *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    listener.asked.acquire()
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    found = json.loads(report.read_text())
    assert (found["interrupted"], found["calls"], found["failed"]) == (True, 0, 0)
