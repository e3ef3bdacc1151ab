from __future__ import annotations

from itertools import pairwise, product

import pytest

from kvflow_server.bench.settings import Settings
from kvflow_server.bench.workload import Workload

SETTINGS = Settings(agents=4, fixed=64, dynamic=8, output=4, pool_ratio=3)


@pytest.fixture
def workload() -> Workload:
    return Workload(SETTINGS, vocabulary=1000, first_token=10)


def test_the_fixed_prompt_is_the_same_in_every_run(workload: Workload) -> None:
    for agent in range(4):
        for run in range(3):
            assert workload.prompt(agent, run)[:64] == workload.fixed(agent)


def test_every_run_of_an_agent_has_its_own_suffix(workload: Workload) -> None:
    suffixes = {
        tuple(workload.prompt(agent, run)[64:])
        for agent, run in product(range(4), range(5))
    }
    assert len(suffixes) == 20


def test_fixed_prompts_share_no_first_token(workload: Workload) -> None:
    assert len({workload.fixed(agent)[0] for agent in range(4)}) == 4


def test_two_workloads_of_one_seed_are_equal(workload: Workload) -> None:
    again = Workload(SETTINGS, vocabulary=1000, first_token=10)
    assert again.prompt(2, 1) == workload.prompt(2, 1)


def test_another_seed_gives_other_prompts(workload: Workload) -> None:
    settings = Settings(agents=4, fixed=64, dynamic=8, output=4, pool_ratio=3, seed=1)
    other = Workload(settings, vocabulary=1000, first_token=10)
    assert other.fixed(0) != workload.fixed(0)


def test_tokens_stay_clear_of_the_special_ones(workload: Workload) -> None:
    tokens = [token for agent in range(4) for token in workload.prompt(agent, 0)]
    assert min(tokens) >= 10
    assert max(tokens) < 1000


def _wandering() -> Workload:
    return Workload(Settings(dynamic_graph=True), vocabulary=8192, first_token=16)


def test_a_dynamic_workflow_is_the_same_for_every_system_and_another_each_run() -> None:
    orders = [list(_wandering().order(run)) for run in range(20)]
    assert orders == [list(_wandering().order(run)) for run in range(20)]
    assert len({tuple(order) for order in orders}) > 5
    assert {len(order) for order in orders} == {10}
    followed = [(b - a) % 10 == 1 for o in orders for a, b in pairwise(o)]
    assert 0.8 < sum(followed) / len(followed) < 1


def test_an_agent_that_is_called_twice_is_asked_something_else() -> None:
    workload = _wandering()
    first, again = (workload.prompt(3, 0, call) for call in range(2))
    assert first[:1024] == again[:1024]
    assert first != again


def test_a_dynamic_workflow_declares_that_anyone_may_follow() -> None:
    graph = _wandering().graph
    assert graph is not None
    assert len(graph.feeds("agent-4")) == 9
    assert Workload(Settings(), vocabulary=8192, first_token=16).graph is None
