"""What a real server saw, recorded, simulated and replayed on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from kvflow_sdk import wire
from kvflow_sdk.wire import FixedMark
from kvflow_server.cli import app
from kvflow_server.emulated.costs import Costs
from kvflow_server.engine.recording import BLOCK
from kvflow_server.engine.trace import (
    Record,
    RecordedCall,
    Trace,
    TraceError,
    TraceWriter,
)
from kvflow_server.sim.server import ServerSize
from kvflow_server.sim.trace import simulate_trace

if TYPE_CHECKING:
    from conftest import Caller, Fleet, Server

pytestmark = [pytest.mark.sglang, pytest.mark.server]

AGENTS, RUNS, FIXED, DYNAMIC = 3, 3, 100, 20
CALLS = AGENTS * RUNS
HITS = range(AGENTS * (RUNS - 1) * FIXED, AGENTS * (RUNS - 1) * (FIXED + DYNAMIC))
"""The fixed prompts of all runs but the first; random suffixes may begin alike."""
COSTS = Costs(
    name="any", layers=2, kv_bytes=100, bus_bytes_per_s=1e9, prefill_s=0.01,
    prefill_token_s=1e-4, decode_s=0.01,
)  # fmt: skip


@pytest.fixture
def empty(server: Server) -> Server:
    server.settle()
    server.post("/flush_cache", {})
    return server


def run_workflows(server: Server, caller: Caller) -> int:
    """Prompt tokens that were not computed."""
    hits = 0
    fixed = [caller.prompt(FIXED) for _ in range(AGENTS)]
    for run in range(RUNS):
        caller.run = f"{caller.id}-{run}"
        for agent in range(AGENTS):
            steps = {_name(caller, n): n - agent for n in range(agent, AGENTS)}
            server.send(caller.update(steps)).raise_for_status()
            told = caller.update(
                steps, agent=_name(caller, agent), fixed=FixedMark(tokens=FIXED)
            )
            prompt = fixed[agent] + caller.prompt(DYNAMIC)
            answer = server.ask(prompt, wire.to_envelope([told]), output=3)
            hits += answer.device + answer.host
        server.send(caller.update(final=True)).raise_for_status()
    return hits


def _name(caller: Caller, agent: int) -> str:
    return f"agent-{agent}-of-{caller.id[-12:]}"


def recorded(path: Path, caller: Caller) -> list[Record]:
    """All of the caller, once it is written; the test's time limit is the bound."""
    while True:
        try:
            records = list(Trace(path))
        except TraceError:  # a line is being written
            continue
        clients = {
            record.update.client
            for record in records
            if record.update is not None and record.update.agent == _name(caller, 0)
        }
        ours = [r for r in records if r.update and r.update.client in clients]
        ends = [r for r in ours if r.update is not None and r.update.final]
        if len(ends) == RUNS:
            return ours


def test_a_recorded_workflow_has_the_same_hits_simulated_and_replayed(
    fleet: Fleet, empty: Server, caller: Caller, tmp_path: Path
) -> None:
    server, path = empty, tmp_path / "trace.jsonl.gz"
    assert run_workflows(server, caller) in HITS

    records = recorded(fleet.trace, caller)
    calls = [record for record in records if isinstance(record, RecordedCall)]
    assert len(calls) == CALLS
    assert len(records) == 2 * CALLS + RUNS
    assert {call.prompt for call in calls} == {FIXED + DYNAMIC}
    assert {(call.output, call.fixed, call.learned) for call in calls} == {
        (3, FIXED, False)
    }
    writer = TraceWriter(path, block=BLOCK, source="test")
    writer.write(records)
    writer.close()

    size = ServerSize(pool=1200, host=3600)
    (simulated,) = simulate_trace(path, COSTS, size, ["kvflow"]).values()
    assert simulated.calls == CALLS
    assert simulated.device + simulated.host == HITS.start

    server.post("/flush_cache", {})
    report = tmp_path / "report.json"
    flags = ["--fast", "--concurrency", "1", "--vocabulary", "2048"]
    where = ["--url", server.url, "--api-key", str(server.key), "--json", str(report)]
    done = CliRunner().invoke(app, ["replay", str(path), *flags, *where])
    assert done.exit_code == 0, done.output
    found = json.loads(report.read_text())
    assert (found["calls"], found["hints"]) == (CALLS, True)
    assert found["tokens"]["device"] + found["tokens"]["host"] in HITS
    assert server.state()["recording"]["active"]
