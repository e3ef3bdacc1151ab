"""`kvflow lint` on programs that know nothing of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvflow_server.lint import app

PROGRAM = """
import asyncio, sys, threading
from http.server import BaseHTTPRequestHandler, HTTPServer
import httpx

class Answer(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200); self.send_header("content-length", "2")
        self.end_headers(); self.wfile.write(b"{}")
    def log_message(self, *args): pass

server = HTTPServer(("127.0.0.1", 0), Answer)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}/v1/"
def body(n):
    text = f"Now: 14:03:{n:02}. " + "Answer briefly and cite what you used. " * 8
    return {"messages": [{"role": "system", "content": text}]}

async def later():
    async with httpx.AsyncClient() as client:
        await client.post(url + "chat/completions", json=body(2))

with httpx.Client() as client:
    for n in range(2):
        assert client.post(url + "chat/completions", json=body(n)).json() == {}
    client.post(url + "embeddings", json={"prompt": "not a call of a model"})
asyncio.run(later())
sys.exit(int(sys.argv[1]))
"""


def lint(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(args))
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.output


def program(tmp_path: Path, code: int) -> list[str]:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return ["--", sys.executable, str(path), str(code)]


def test_a_programs_sync_and_async_calls_are_seen(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    code, _ = lint("--json", str(report), *program(tmp_path, 0))
    assert code == 1
    (agent,) = json.loads(report.read_text())["agents"]
    assert agent["calls"] == 3
    assert [drift["kind"] for drift in agent["drifts"]] == ["timestamp"]


def test_a_failing_programs_status_is_its_own(tmp_path: Path) -> None:
    assert lint(*program(tmp_path, 7))[0] == 7


def test_no_text_in_the_report_when_asked(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    code, output = lint(
        "--no-text", "--exit-zero", "--json", str(report), *program(tmp_path, 0)
    )
    assert code == 0
    assert "14:03" not in report.read_text() + output


def test_a_file_without_drift_passes(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text('{"prompt": "Why gold?"}\n' * 2)
    code, output = lint(str(path))
    assert code == 0
    assert "agent 1" in output


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["no-such-file.jsonl"], "no-such-file.jsonl"),
        (["--", "no-such-program"], "no-such-program"),
        (["--tokenizer", "no-such-tokenizer", "x.jsonl"], "no-such-tokenizer"),
    ],
)
def test_what_cannot_be_read_is_named(args: list[str], said: str) -> None:
    code, output = lint(*args)
    assert code == 2
    assert said in output


def test_a_sitecustomize_of_the_programs_own_still_runs(tmp_path: Path) -> None:
    from kvflow_sdk.drift.recording import environment

    (tmp_path / "sitecustomize.py").write_text("print('own')\n")
    env = environment(tmp_path / "requests.jsonl")
    site = env["PYTHONPATH"].partition(":")[0]
    done = subprocess.run(
        [sys.executable, "-c", "print('program')"],
        env={**env, "PYTHONPATH": f"{site}:{tmp_path}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["own", "program"]
    assert done.stderr == ""
