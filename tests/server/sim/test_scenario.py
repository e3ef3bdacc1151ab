"""Workloads: what they ask, and what KVFlow makes of agents chosen at run time."""

from __future__ import annotations

import pytest

from kvflow_server.sim.experiment import Comparison, compare
from kvflow_server.sim.profiles import PROFILES
from kvflow_server.sim.scenario import Scenario
from kvflow_server.sim.server import ServerSize

COSTS = PROFILES["a10g"].costs


def _compared(scenario: Scenario, *systems: str, ratio: float = 0.9) -> Comparison:
    pool = int(ratio * scenario.prompt_tokens)
    size = ServerSize(pool=pool, host=2 * scenario.prompt_tokens)
    return compare(COSTS, size, scenario, systems)


def test_every_workflow_that_counts_is_measured_and_no_other() -> None:
    scenario = Scenario(agents=3, fixed=256, workflows=4, runs=2, warm_runs=1)
    found = _compared(scenario, "kvflow")
    assert len(found.results["kvflow"].workflows) == 4 * 2
    calls = {w.calls for w in found.results["kvflow"].workflows}
    assert calls == {3}


def test_branches_share_half_of_their_prompts() -> None:
    scenario = Scenario(agents=2, fixed=1000, branches=3)
    assert scenario.prompt_tokens == 2 * (500 + 3 * 500)
    found = _compared(Scenario(agents=6, fixed=1024, branches=2), "kvflow", "hicache")
    speedup = found.speedup("kvflow", "hicache")
    assert speedup is not None
    assert speedup >= 1


def test_learnt_likelihoods_order_what_steps_cannot() -> None:
    scenario = Scenario(dynamic_graph=True, runs=20, warm_runs=5)
    found = _compared(scenario, "steps", "kvflow", "ideal")
    speedup = found.speedup("kvflow", "steps")
    assert speedup is not None
    assert speedup > 1.1
    unlearnt = _compared(
        Scenario(dynamic_graph=True, learn=False, runs=20, warm_runs=5), "kvflow"
    )
    assert found.results["kvflow"].workflow_s < unlearnt.results["kvflow"].workflow_s


def test_the_same_seed_is_the_same_simulation() -> None:
    scenario = Scenario(
        agents=4, fixed=512, workflows=3, dynamic_graph=True, jitter_s=0.01, seed=7
    )
    one, other = (_compared(scenario, "kvflow", ratio=0.5) for _ in range(2))
    assert one.to_dict() == other.to_dict()


@pytest.mark.parametrize("mix", [(4096, 32, 32), (8192, 128, 128)])
def test_kvflow_is_within_a_twentieth_of_the_bound(mix: tuple[int, int, int]) -> None:
    fixed, dynamic, output = mix
    scenario = Scenario(fixed=fixed, dynamic=dynamic, output=output, runs=4)
    size = ServerSize(
        pool=PROFILES["a10g"].pool_tokens, host=2 * scenario.prompt_tokens
    )
    found = compare(COSTS, size, scenario, ("ideal", "kvflow"))
    assert found.belady_s is not None
    assert found.results["kvflow"].workflow_s <= 1.05 * found.belady_s


@pytest.mark.parametrize(("ratio", "output"), [(0.2, 8), (0.2, 32), (0.45, 32)])
def test_over_a_bus_slower_than_computing_it_is_as_good_as_recomputation(
    ratio: float, output: int
) -> None:
    """And so far better than HiCache, which always copies."""
    costs = PROFILES["h100"].costs.changed(bus_bytes_per_s=5e8)
    scenario = Scenario(output=output, runs=5)
    pool = max(int(ratio * scenario.prompt_tokens), 2 * scenario.call_tokens)
    size = ServerSize(pool=pool, host=2 * scenario.prompt_tokens)
    found = compare(costs, size, scenario, ("recompute", "hicache", "kvflow"))
    for other in ("recompute", "hicache"):
        speedup = found.speedup("kvflow", other)
        assert speedup is not None
        assert speedup > 1
