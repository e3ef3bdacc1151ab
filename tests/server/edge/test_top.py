"""`kvflow top`: rates, the screen, and what it says where there is no KVFlow."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from kvflow_server.cli import app
from kvflow_server.edge.launcher import free_port
from kvflow_server.edge.top import Reading, rates, view

NOTHING = {"in_gpu": 0, "loading": 0, "offloading": 0, "backed_up": 0}


def state(**counters: float) -> dict[str, Any]:
    """As a server gives it, with one client of two agents."""
    return {
        "config": {"mode": "full"},
        "pool": {
            "tokens": 1000,
            "free": 200,
            "evictable": 500,
            "loads_in_flight": 1,
            "host_tokens": 4000,
            "host_free": 1000,
        },
        "clients": {
            "0123456789ab": {
                "agents": {
                    "writer": agent(1, {"tokens": 100, **NOTHING, "backed_up": 100}),
                    "planner": agent(0, {"tokens": 80, **NOTHING, "in_gpu": 80}),
                    "[red]": agent(None),
                }
            }
        },
        "clients_left_out": 3,
        "counters": {"prefetch_tokens": 0, **counters},
        "dropped_metadata": {"run": 2},
        "refused_updates": {"steps": 4},
        "sizes": {"clients": 4, "runs": 5, "agents": 6, "prompts": 2},
    }


def agent(steps: int | None, *prompts: dict[str, int]) -> dict[str, Any]:
    return {"steps": steps, "steps_of_next_run": None, "prompts": list(prompts)}


def screen(before: Reading | None, now: Reading, **options: Any) -> str:
    console = Console(width=120, file=io.StringIO(), color_system=None)
    with console.capture() as capture:
        console.print(view("http://here", before, now, **{"rows": None, **options}))
    return capture.get()


def test_rates_are_growth_per_second() -> None:
    before = Reading(10.0, state(prefetch_tokens=100))
    after = Reading(14.0, state(prefetch_tokens=300, skipped_s=2.0))
    assert rates(before, after) == {"prefetch_tokens": 50.0, "skipped_s": 0.5}


def test_a_server_that_was_started_again_has_no_rates() -> None:
    before = Reading(10.0, state(prefetch_tokens=100))
    assert rates(before, Reading(11.0, state(prefetch_tokens=5))) == {}


def test_the_first_screen_shows_totals_and_the_second_rates() -> None:
    first = Reading(0.0, state(prefetch_tokens=5000))
    assert "5,000 issued" in screen(None, first)
    assert "since the start" in screen(None, first)
    second = screen(first, Reading(2.0, state(prefetch_tokens=5400)))
    assert "200 issued" in second
    assert "per second" in second


def test_the_screen_shows_where_each_prompt_is_the_nearest_first() -> None:
    lines = screen(None, Reading(0.0, state())).splitlines()
    rows = {
        name: line for line in lines for name in ("planner", "writer") if name in line
    }
    assert lines.index(rows["planner"]) < lines.index(rows["writer"])
    assert "█" * 24 in rows["planner"]
    assert "░" * 24 in rows["writer"]


def test_the_pool_is_drawn_to_scale() -> None:
    text = screen(None, Reading(0.0, state()))
    device = next(line for line in text.splitlines() if "device" in line)
    assert "300 in use, 500 cached, 200 free of 1,000 tokens" in device
    assert device.count("█") == 19  # 24 · 0.8
    assert device.count("·") == 5


def test_a_name_cannot_paint_the_screen() -> None:
    assert "[red]" in screen(None, Reading(0.0, state()))


def test_what_does_not_fit_is_counted() -> None:
    text = screen(None, Reading(0.0, state()), rows=1)
    assert "writer" not in text
    assert "2 more agents, 3 more clients" in text


class Answer(BaseHTTPRequestHandler):
    status = 200
    body = b""

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.send_header("content-length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_args: object) -> None:
        pass


@pytest.fixture
def serving() -> Iterator[Callable[[int, bytes], str]]:
    """Starts an HTTP server that gives one answer; returns its URL."""
    started = []

    def start(status: int, body: bytes) -> str:
        handler = type("OneAnswer", (Answer,), {"status": status, "body": body})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        started.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield start
    for server in started:
        server.shutdown()
        server.server_close()


def top(*args: str) -> Any:
    return CliRunner().invoke(app, ["top", "--once", *args])


def test_json_is_one_line_with_the_state(
    serving: Callable[[int, bytes], str],
) -> None:
    url = serving(200, json.dumps(state()).encode())
    result = top(url, "--json")
    assert result.exit_code == 0
    (line,) = result.stdout.splitlines()
    assert json.loads(line) == {"url": url, "rates": {}, "state": state()}


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (404, b'{"detail": "Not Found"}', "is not a KVFlow server"),
        (404, b'{"error": {"message": "KVFlow is not chosen"}}', "is not chosen"),
        (200, b"<html>hello</html>", "is not a KVFlow server"),
        (200, b'{"counters": 1}', "is not a KVFlow server"),
        (200, b"[1]", "is not a KVFlow server"),
        (401, b"no", "wants a key"),
        (500, b"", "answered with 500"),
    ],
)
def test_another_server_is_named_as_one(
    serving: Callable[[int, bytes], str], status: int, body: bytes, said: str
) -> None:
    result = top(serving(status, body))
    assert result.exit_code == 1
    assert said in " ".join(result.stderr.split())


@pytest.mark.parametrize("url", ["nonsense", "ftp://here", "http://here:port", ""])
def test_what_is_no_url_is_said(url: str) -> None:
    result = top(url)
    assert result.exit_code == 1
    assert "is not the URL of a server" in " ".join(result.stderr.split())


def test_a_server_that_is_not_there_is_said() -> None:
    result = top(f"http://127.0.0.1:{free_port()}")
    assert result.exit_code == 1
    assert "does not answer" in " ".join(result.stderr.split())
