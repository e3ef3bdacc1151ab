"""What breaks around the server: clients, messages, the bus, memory. Nothing hangs,
nothing leaks, answers stay right, and hits come back.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from kvflow_sdk import wire
from kvflow_sdk.wire import FixedMark, StepUpdate

if TYPE_CHECKING:
    from conftest import Answer, Caller, Fleet, Server

pytestmark = [pytest.mark.sglang, pytest.mark.server, pytest.mark.full]

FIXED = 200
AGENTS = tuple(f"agent-{number}" for number in range(8))
"""Their fixed prompts together are 1.3 times the pool."""
STALL_S = 3.0
GRACE_S = 30.0
"""Every request is answered within the stall and this."""
Asked = list[tuple[list[int], "Answer"]]


def call(
    server: Server,
    caller: Caller,
    agent: str,
    prompt: Sequence[int],
    *,
    steps: dict[str, int] | None = None,
    output: int = 2,
    fixed: int = FIXED,
) -> tuple[list[int], Answer]:
    update = caller.update(
        steps or {agent: 0}, agent=agent, fixed=FixedMark(tokens=fixed)
    )
    hints = wire.to_envelope([update])
    return list(prompt), server.ask(prompt, hints, output=output)


def prompts_in_host_memory(server: Server, caller: Caller) -> dict[str, list[int]]:
    """Of all agents; each has been computed, and most have left the device again."""
    prompts = {agent: caller.prompt(FIXED) for agent in AGENTS}
    for agent, prompt in prompts.items():
        call(server, caller, agent, [*prompt, *caller.prompt(4)], output=1)
        server.settle()
    return prompts


def assert_right(asked: Asked, server: Server, truth: Server) -> None:
    """As without a cache; what was computed in a batch of another shape may round
    differently, and is then right when it is asked again alone."""
    for prompt, answer in asked:
        right = truth.ask(prompt, output=len(answer.tokens))
        if not answer.agrees_with(right):
            assert server.ask(prompt, output=len(answer.tokens)).agrees_with(right)


def assert_sound(server: Server) -> None:
    """Nothing has leaked, and every invariant holds."""
    state = server.settle()
    assert state["integrity"] == "ok"
    assert server.process.alive


def test_everybody_is_answered_after_the_bus_has_stood_still(
    server: Server, truth: Server, caller: Caller, stall: Path
) -> None:
    prompts = prompts_in_host_memory(server, caller)
    with ThreadPoolExecutor(len(AGENTS)) as pool:
        stall.touch()
        server.send(caller.update({AGENTS[0]: 0, AGENTS[1]: 1}))
        calls = [
            pool.submit(
                call, server, caller, agent, [*prompts[agent], *caller.prompt(8)]
            )
            for agent in AGENTS
        ]
        time.sleep(STALL_S)
        stall.unlink()
        asked = [future.result(GRACE_S) for future in calls]
    assert_right(asked, server, truth)
    assert_sound(server)


def test_a_stalled_prefetch_is_in_nobody_else_s_way(
    server: Server, truth: Server, caller: Caller, stall: Path
) -> None:
    prompts = prompts_in_host_memory(server, caller)
    stall.write_text("h2d")
    server.send(caller.update({AGENTS[0]: 1}))
    assert server.state()["pool"]["loads_in_flight"]
    asked = [call(server, caller, "other", caller.prompt(FIXED)) for _ in range(3)]
    assert server.state()["pool"]["loads_in_flight"], "it stalls still"
    stall.unlink()
    asked.append(call(server, caller, AGENTS[0], [*prompts[AGENTS[0]], 5]))
    assert asked[-1][1].device + asked[-1][1].host >= FIXED - 64
    assert_right(asked, server, truth)
    assert_sound(server)


def test_running_requests_get_the_memory_that_a_stalled_prefetch_holds(
    server: Server, truth: Server, caller: Caller, stall: Path
) -> None:
    # Two answers that need all of the pool between them, to the last page.
    prompts_in_host_memory(server, caller)
    awaited = server.state()["counters"]["awaited_copies"]
    long = [caller.prompt(40) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(lambda p=p: (p, server.ask(p, output=530))) for p in long]
        while server.state()["pool"]["free"] > 1000:
            assert not any(future.done() for future in calls)
        stall.write_text("h2d")
        server.send(caller.update({AGENTS[0]: 0, AGENTS[1]: 1}))
        until_blocked(server, calls)
        stall.unlink(missing_ok=True)
        asked = [future.result(120) for future in calls]
    assert server.state()["counters"]["awaited_copies"] > awaited
    assert_right(asked, server, truth)
    assert_sound(server)


def until_blocked(server: Server, calls: Sequence[Future[Any]]) -> None:
    """Until the scheduler waits for the bus and answers nobody."""
    while not all(future.done() for future in calls):
        try:
            server.http.get("/kvflow/v1/state", timeout=5)
        except httpx.ReadTimeout:
            return


def test_host_memory_that_is_full_gives_way(
    server: Server, truth: Server, caller: Caller
) -> None:
    # Nearly twice what host memory holds.
    prompts = {f"many-{number}": caller.prompt(FIXED) for number in range(32)}
    asked = [
        call(server, caller, agent, [*prompt, *caller.prompt(4)])
        for agent, prompt in prompts.items()
    ]
    state = server.settle()
    assert state["pool"]["host_free"] < state["pool"]["host_tokens"] / 4
    last = list(prompts)[-1]
    again = call(server, caller, last, [*prompts[last], *caller.prompt(4)])
    assert again[1].device + again[1].host >= FIXED
    assert_right([*asked[::6], again], server, truth)
    assert_sound(server)


def test_a_device_full_of_running_requests_serves_them_all(
    server: Server, truth: Server, caller: Caller
) -> None:
    prompts = prompts_in_host_memory(server, caller)
    steps = {agent: step % 3 for step, agent in enumerate(AGENTS)}
    with ThreadPoolExecutor(16) as pool:
        calls = [
            pool.submit(
                call,
                server,
                caller,
                agent,
                [*prompts[agent], *caller.prompt(16)],
                steps=steps,
                output=64,
            )
            for agent in [*AGENTS, *AGENTS]
        ]
        asked = [future.result(120) for future in calls]
    assert_right(asked, server, truth)
    assert_sound(server)


CLIENT = """
import sys, httpx
import kvflow_sdk as kvflow
from kvflow_sdk import wire
url, key, prompt = sys.argv[1], sys.argv[2], [int(t) for t in sys.argv[3].split()]
client = kvflow.Client(url, name="victim", config=kvflow.Config(api_key=key))
run = client.start_run(kvflow.AgentStepGraph.sequence(["planner", "writer"]))
run.start("planner")
update = run.snapshot(agent="planner", fixed=wire.FixedMark(tokens=len(prompt)))
body = {"input_ids": prompt, "stream": True, "kv_hints": wire.to_envelope([update]),
        "sampling_params": {"max_new_tokens": 700, "ignore_eos": True}}
headers = {"authorization": "Bearer " + key}
with httpx.stream("POST", url + "/generate", json=body, headers=headers) as reply:
    for number, _ in enumerate(reply.iter_bytes()):
        print(client.id, flush=True)
"""


def test_a_client_that_is_killed_leaves_nothing_running(
    server: Server, caller: Caller
) -> None:
    prompt = caller.prompt(FIXED)
    words = " ".join(map(str, prompt))
    process = subprocess.Popen(
        [sys.executable, "-c", CLIENT, server.url, str(server.key), words],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    victim = process.stdout.readline().strip()
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    process.stdout.close()
    assert_sound(server)
    assert server.client(victim)["runs"], "known until its lease ends"
    again = call(server, caller, "planner", [*prompt, *caller.prompt(4)])
    assert again[1].device + again[1].host >= FIXED - 64


def test_updates_that_are_lost_repeated_and_overtaken_end_as_the_newest_says(
    server: Server, caller: Caller
) -> None:
    source = random.Random(3)
    said = [caller.update({"a": n, f"only-{n}": 0}) for n in range(40)]
    heard = [update for update in said if source.random() < 0.7]
    heard += source.sample(heard, 10)
    source.shuffle(heard)
    with ThreadPoolExecutor(4) as pool:
        replies = list(pool.map(server.send, heard))
    assert {reply.status_code for reply in replies} == {202}
    newest: StepUpdate = max(heard, key=lambda update: update.seq)
    assert server.client(caller.id)["runs"] == {caller.run: newest.steps}
    server.send(caller.update(final=True))
    server.send(*said)
    assert server.client(caller.id)["runs"] == {}


def test_hits_return_after_the_server_was_killed_and_started_again(
    fleet: Fleet, caller: Caller
) -> None:
    prompt = caller.prompt(FIXED)
    before = fleet["kvflow"]
    call(before, caller, "planner", [*prompt, *caller.prompt(4)])
    before.process.kill()
    server = fleet["kvflow"]
    # The client knows nothing of it and goes on with its run.
    first, again = (
        call(server, caller, "planner", [*prompt, *caller.prompt(4)])[1]
        for _ in range(2)
    )
    assert first.device + first.host == 0
    assert again.device + again.host >= FIXED
    assert server.client(caller.id)["runs"] == {caller.run: {"planner": 0}}
    assert_sound(server)
