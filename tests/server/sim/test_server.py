"""The simulated server: its times by hand, its books after anything at all."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from costs import COSTS
from hypothesis import given, settings
from hypothesis import strategies as st

from kvflow_server.engine.config import EngineConfig, Mode
from kvflow_server.sim.requests import Answer, Call
from kvflow_server.sim.server import Server, ServerSize
from kvflow_server.sim.tree import Spans, tokens_in
from kvflow_server.sim.workload import (
    Ask,
    Program,
    Stage,
    Workflow,
    chain,
    sequential,
)

MODES = [None, *(EngineConfig(mode=mode) for mode in Mode)]


def _call(spans: Spans, output: int, answers: list[Answer]) -> Call:
    return Call(
        spans=spans, prompt=tokens_in(spans), output=output, answered=answers.append
    )


def _serve(server: Server, calls: list[tuple[float, Spans, int]]) -> list[Answer]:
    answers: list[Answer] = []
    for at, spans, output in calls:
        call = _call(spans, output, answers)
        server.at(at, lambda call=call: server.submit(call))  # type: ignore[misc]
    server.run()
    return answers


def test_a_call_takes_its_prefill_and_a_step_for_each_further_token() -> None:
    (answer,) = _serve(
        Server(COSTS, ServerSize(pool=1000), None), [(1.0, (("a", 0, 100),), 4)]
    )
    assert answer.ended - answer.arrived == pytest.approx(0.5 + 100 * 0.01 + 3 * 0.1)
    assert answer.recomputed == 100


@pytest.mark.parametrize("interrupted", [False, True])
def test_decode_steps_taken_together_take_what_they_take_one_by_one(
    interrupted: bool,
) -> None:
    costs = COSTS.changed(decode_token_s=0.001, decode_request_s=0.01)
    server = Server(costs, ServerSize(pool=1000), None)
    for n in range(60 if interrupted else 0):
        server.at(1.5 + n * 0.05, lambda: None)  # cuts the steps into pieces
    (answer,) = _serve(server, [(0.0, (("a", 0, 100),), 11)])
    steps = sum(0.1 + 0.01 + 0.001 * (100 + n) for n in range(1, 11))
    assert answer.ended == pytest.approx(0.5 + 100 * 0.01 + steps)


def test_what_the_device_holds_is_not_computed_again_but_for_the_last_token() -> None:
    prompt: Spans = (("a", 0, 100),)
    _, again = _serve(
        Server(COSTS, ServerSize(pool=1000), None), [(0, prompt, 1), (10, prompt, 1)]
    )
    assert again.device == 99
    assert again.ended - again.arrived == pytest.approx(0.5 + 0.01)


def _evicted(config: EngineConfig | None, host: int) -> Answer:
    """The answer to a prompt of 200 tokens that another one has driven out."""
    server = Server(COSTS, ServerSize(pool=250, host=host), config)
    a: Spans = (("a", 0, 200), ("x", 0, 10))
    b: Spans = (("b", 0, 200), ("y", 0, 10))
    c: Spans = (("a", 0, 200), ("z", 0, 10))
    return _serve(server, [(0, a, 1), (20, b, 1), (40, c, 1)])[2]


def test_what_was_evicted_is_computed_again_without_host_memory() -> None:
    answer = _evicted(None, host=0)
    assert answer.recomputed == 210
    assert answer.ended - answer.arrived == pytest.approx(0.5 + 2.1)


def test_with_host_memory_it_is_loaded_while_the_first_layers_compute() -> None:
    answer = _evicted(None, host=2000)
    assert (answer.host, answer.recomputed) == (200, 10)
    copy, compute = 200 / 1000, 0.5 + 10 * 0.01
    # Layer by layer, and the copy is the shorter: it costs its first layer.
    assert answer.ended - answer.arrived == pytest.approx(copy / 4 + compute)


def test_a_slow_copy_leaves_one_layer_to_compute_when_it_ends() -> None:
    slow = COSTS.changed(bus_bytes_per_s=100)
    server = Server(slow, ServerSize(pool=250, host=2000), None)
    a: Spans = (("a", 0, 200), ("x", 0, 10))
    b: Spans = (("b", 0, 200), ("y", 0, 10))
    answer = _serve(server, [(0, a, 1), (20, b, 1), (40, a, 1)])[2]
    assert answer.host == 209
    compute = 0.5 + 0.01
    assert answer.ended - answer.arrived == pytest.approx(209 / 100 + compute / 4)


def _run(
    config: EngineConfig | None, *, pool: int, host: int, runs: int = 5
) -> list[Workflow]:
    done: list[Workflow] = []
    server = Server(COSTS, ServerSize(pool=pool, host=host), config)
    plan, graph = sequential("c", 4, 600, 10, 8)
    note: Callable[[int, Workflow], None] = lambda _, workflow: done.append(workflow)  # noqa: E731
    Program("c", plan, graph, runs=runs, hints=config is not None, on_end=note).start(
        server
    )
    server.run()
    server.cache.check_integrity()
    return done


def test_lru_evicts_exactly_the_agent_that_runs_next() -> None:
    last = _run(None, pool=1500, host=10_000)[-1]
    assert last.device == 0
    assert last.host == 4 * 600


def test_kvflow_has_every_prompt_there_when_its_agent_calls() -> None:
    last = _run(EngineConfig(), pool=1500, host=10_000)[-1]
    assert last.device == 4 * 600
    ideal = _run(None, pool=100_000, host=0)[-1]
    assert last.seconds == pytest.approx(ideal.seconds)


def test_eviction_alone_keeps_what_fits() -> None:
    evict = _run(EngineConfig(mode=Mode.EVICT), pool=1500, host=10_000)[-1]
    assert evict.device >= 512


@st.composite
def _programs(draw: st.DrawFn) -> list[tuple[int, int, int, int, int]]:
    """(agents, fixed, dynamic, output, stage width) of some programs."""
    size = st.tuples(
        st.integers(1, 4),
        st.integers(1, 300),
        st.integers(1, 40),
        st.integers(1, 12),
        st.integers(1, 3),
    )
    return draw(st.lists(size, min_size=1, max_size=4))


@given(
    programs=_programs(),
    config=st.sampled_from(MODES),
    pool=st.integers(1600, 4000),
    host=st.sampled_from([0, 700, 20_000]),
    seed=st.integers(0, 1000),
)
@settings(deadline=None, max_examples=120)
def test_every_call_is_answered_and_nothing_is_left_locked(
    programs: list[tuple[int, int, int, int, int]],
    config: EngineConfig | None,
    pool: int,
    host: int,
    seed: int,
) -> None:
    server = Server(COSTS, ServerSize(pool=pool, host=host), config)
    ended: list[Workflow] = []
    for number, (agents, fixed, dynamic, output, width) in enumerate(programs):
        name = f"client-{number}"
        asks = [
            Ask(
                f"agent-{n}",
                (("shared", 0, 20), ((name, n), 0, fixed)),
                dynamic,
                output,
            )
            for n in range(agents)
        ]

        def plan(
            draw: random.Random, asks: list[Ask] = asks, width: int = width
        ) -> list[Stage]:
            return [tuple(draw.choices(asks, k=width)) for _ in range(3)]

        Program(
            name,
            plan,
            None,
            runs=3,
            seed=seed,
            hints=config is not None,
            on_end=lambda _, workflow: ended.append(workflow),
        ).start(server, at=number / 10)
    server.run()
    assert len(ended) == 3 * len(programs)
    cache = server.cache
    server.now = cache.bus.now = float("inf")
    cache.copies_ended()
    cache.check_integrity()
    held = sum(len(n.key) for n in cache.tree_core.nodes() if not n.evicted)
    assert cache.token_to_kv_pool_allocator.used == held <= pool
    assert cache.tree_core.evictable == held, "something is still locked"
    in_host = sum(len(n.key) for n in cache.tree_core.nodes() if n.backuped)
    assert cache.host_free + in_host == host
    for workflow in ended:
        assert min(workflow.device, workflow.host, workflow.recomputed) >= 0


def test_a_request_that_can_never_run_is_said_to_be_one() -> None:
    server = Server(COSTS, ServerSize(pool=50), None)
    with pytest.raises(AssertionError, match="can never run in a pool of 50"):
        _serve(server, [(0, (("a", 0, 100),), 1)])


def test_who_was_silent_for_a_lease_is_forgotten() -> None:
    server = Server(COSTS, ServerSize(pool=4000, host=8000), EngineConfig())
    for name, at in (("early", 0.0), ("late", 5000.0)):
        plan, graph = sequential(name, 2, 300, 10, 4)
        Program(name, plan, graph, runs=3).start(server, at=at)
    server.run()
    assert list(server.cache.table.clients()) == ["late"]
    assert list(server.cache.prompts.clients()) == ["late"]
    server.cache.check_integrity()


def test_a_bus_that_has_become_quick_again_is_found_out() -> None:
    """Nothing is copied while computing is quicker, so nothing would show it."""
    slow = COSTS.changed(bus_bytes_per_s=20, prefill_s=0.0, prefill_token_s=0.001)
    config = EngineConfig(mode=Mode.FULL)
    server = Server(slow, ServerSize(pool=900, host=10_000), config)
    done: list[Workflow] = []

    def note(number: int, workflow: Workflow) -> None:
        done.append(workflow)
        if number == 30:
            server.cache.bus._costs = COSTS.changed(bus_bytes_per_s=1e9)

    # Nobody says who comes next: nothing is fetched ahead, all is up to admission.
    asks = [Ask(f"a{n}", ((n, 0, 600),), 10, 2) for n in range(6)]
    Program("c", chain(asks), None, runs=200, on_end=note).start(server)
    server.run()
    assert sum(workflow.recomputed for workflow in done[20:30]) > 10 * 6 * 500
    assert sum(workflow.recomputed for workflow in done[-10:]) < 10 * 6 * 100
