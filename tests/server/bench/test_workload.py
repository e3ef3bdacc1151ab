from __future__ import annotations

from itertools import product

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
