"""The queue of prompts to be computed ahead: its order and its bounds."""

from __future__ import annotations

from array import array

from kvflow_server.policy.prewarm import Prewarm, PrewarmLimits, PrewarmQueue


def prompt(agent: str, length: int = 10, client: str = "c") -> Prewarm:
    return Prewarm(client, agent, array("q", range(length)))


def test_the_agent_that_runs_first_comes_first() -> None:
    queue = PrewarmQueue(PrewarmLimits())
    for agent in ("late", "soon", "never"):
        queue.add(prompt(agent))
    steps = {"late": 7.0, "soon": 1.0}
    order = queue.nearest_first(lambda _, agent: steps.get(agent, float("inf")))
    assert [entry.agent for entry in order] == ["soon", "late", "never"]


def test_the_same_prompt_waits_once() -> None:
    queue = PrewarmQueue(PrewarmLimits())
    assert queue.add(prompt("a")) is queue.add(prompt("a")) is None
    assert len(queue) == 1


def test_a_client_s_budget_counts_what_was_computed_and_what_waits() -> None:
    queue = PrewarmQueue(PrewarmLimits(client_tokens=25))
    done, waiting = prompt("a"), prompt("b")
    queue.add(done)
    queue.spend(done, 10)
    queue.remove(done)
    queue.add(waiting)
    refusal = queue.add(prompt("c"))
    assert refusal is not None
    assert "20 of the 25" in refusal
    assert queue.add(prompt("c", client="other")) is None


def test_a_lease_that_ends_frees_the_budget_and_drops_what_waits() -> None:
    queue = PrewarmQueue(PrewarmLimits(client_tokens=10))
    first = prompt("a")
    queue.add(first)
    queue.spend(first, 10)
    queue.drop_client("c")
    assert len(queue) == 0
    assert queue.add(prompt("b")) is None


def test_the_number_and_the_tokens_of_waiting_prompts_are_bounded() -> None:
    queue = PrewarmQueue(PrewarmLimits(prompts=2, waiting_tokens=25))
    assert queue.add(prompt("a", client="1")) is None
    refusal = queue.add(prompt("b", 20, client="2"))
    assert refusal is not None
    assert "25 tokens" in refusal
    queue.add(prompt("b", client="2"))
    refusal = queue.add(prompt("c", 1, client="3"))
    assert refusal is not None
    assert "2 prompts" in refusal


def test_a_prompt_whose_piece_keeps_failing_is_given_up() -> None:
    queue = PrewarmQueue(PrewarmLimits(tries=2))
    entry = prompt("a")
    queue.add(entry)
    queue.fail(entry)
    assert len(queue) == 1
    queue.fail(entry)
    assert len(queue) == 0
