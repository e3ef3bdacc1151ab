"""A client that is over a bound of the server: what its step stream makes of the answer.

The server's own intake and its own answer, on loopback.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kvflow_integrations.conformance.loopback import Loopback, Seen
from kvflow_sdk import wire
from kvflow_sdk.config import Config
from kvflow_sdk.counters import Counters
from kvflow_sdk.stream import Stream
from kvflow_server.policy.intake import Admission, Intake, IntakeLimits
from kvflow_server.policy.steps import StepLimits

# SGLang's modules warn of missing hardware.
pytestmark = [pytest.mark.sglang, pytest.mark.filterwarnings("ignore")]

MAX_RUNS = 2


class Bounded(Loopback):
    """Admits what a server with small bounds admits."""

    intake: Intake
    refuse: Callable[[Admission], Any]
    """The route's own answer to what was not admitted."""

    def steps(self, request: Seen) -> tuple[int, Any]:
        size = len(json.dumps(request.body))
        admission = self.intake.admit(request.updates, size, time.monotonic())
        if admission.refusal is None:
            return 202, None
        answer = self.refuse(admission)
        return answer.status_code, json.loads(bytes(answer.body))


@pytest.fixture
def server() -> Iterator[Bounded]:
    from sglang.srt.platforms import current_platform  # noqa: F401  # isort: skip
    from kvflow_server.edge.routes import _over_bounds

    with Bounded() as loopback:
        loopback.refuse = _over_bounds
        loopback.intake = Intake(StepLimits(runs_per_client=MAX_RUNS))
        yield loopback


@pytest.fixture
def stream(server: Bounded) -> Iterator[Stream]:
    # A pause would outlast the test: whoever backs off here sends nothing more.
    stream = Stream(Config(max_backoff=600.0), Counters())
    stream.add(server.root, server.root)
    yield stream
    stream.close(0)


@pytest.fixture
def put(stream: Stream) -> Callable[..., None]:
    def put(run: str, seq: int, *, final: bool = False) -> None:
        steps = None if final else {"planner": seq}
        update = wire.StepUpdate(client="c", run=run, seq=seq, steps=steps, final=final)
        stream.put(update)

    return put


def test_only_the_snapshot_over_a_cap_is_given_up(
    server: Bounded, stream: Stream, put: Callable[..., None]
) -> None:
    server.hold = threading.Event()
    put("a", 1)
    server.wait(wire.STEPS_PATH)
    for run in ("b", "c", "a"):
        put(run, 2)
    server.hold.set()
    assert stream.flush(10)
    put("b", 3)
    assert stream.flush(10)
    runs = server.intake.table.runs("c")
    assert {run: state["planner"] for run, state in runs.items()} == {"a": 2, "b": 3}
    assert stream.counters.as_dict() == {"steps.sent": 4, "steps.over_cap": 1}


def test_run_that_was_over_a_cap_is_heard_once_there_is_room(
    server: Bounded, stream: Stream, put: Callable[..., None]
) -> None:
    for run in ("a", "b", "c"):
        put(run, 1)
        assert stream.flush(10)
    assert stream.counters["steps.over_cap"] == 1
    put("a", 2, final=True)
    put("c", 2)
    assert stream.flush(10)
    assert set(server.intake.table.runs("c")) == {"b", "c"}
    assert stream.counters["steps.over_cap"] == 1


def test_bound_is_logged_once(
    stream: Stream, put: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "kvflow"):
        for number in range(MAX_RUNS + 3):
            put(f"run-{number}", 1)
            assert stream.flush(10)
    assert stream.counters["steps.over_cap"] == 3
    (said,) = [r.message for r in caplog.records if r.name == "kvflow"]
    assert f"a client may have {MAX_RUNS} live runs" in said


def test_client_that_is_too_fast_waits_with_all_of_it(
    server: Bounded, stream: Stream, put: Callable[..., None]
) -> None:
    server.intake = Intake(StepLimits(), IntakeLimits(bytes_per_s=1, burst_bytes=1))
    for seq in (1, 2):
        put("a", seq)
        assert stream.flush(10)
    assert stream.counters.as_dict() == {"steps.sent": 1, "steps.failed": 1}
