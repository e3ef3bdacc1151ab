from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from kvflow_sdk.run import Run
from kvflow_server.bench.paper.courses import COURSES, Course, CourseWorkload
from kvflow_server.bench.settings import Settings


@pytest.fixture(params=COURSES)
def course(request: pytest.FixtureRequest) -> Course:
    return COURSES[request.param]


def test_a_run_takes_only_ways_that_the_graph_has(course: Course) -> None:
    for run in range(30):
        path = course.path(run)
        assert len(path) == course.calls
        assert path[0] in course.entries
        for source, target in pairwise(path):
            assert target in dict(course.successors[source])


def test_every_system_takes_the_same_way(course: Course) -> None:
    assert course.path(7) == course.path(7)


def test_the_graph_foresees_all_that_may_follow(course: Course) -> None:
    run = Run(course.graph(), client="c" * 32)
    first, second = course.path(0)[:2]
    run.start(f"agent-{first}")
    steps = run.snapshot().steps or {}
    assert steps[f"agent-{first}"] == 0
    assert steps[f"agent-{second}"] == 1
    likely = {f"agent-{target}" for target, _ in course.successors[first]}
    assert {agent for agent, distance in steps.items() if distance == 1} >= likely


def test_branches_take_both_ways_about_equally_often() -> None:
    course = COURSES["branches"]
    picked = Counter(course.path(run)[3] % 2 for run in range(200))
    assert 70 < picked[0] < 130


def test_rare_ways_of_the_dynamic_workflow_are_rare() -> None:
    course = COURSES["dynamic"]
    steps = [pair for run in range(100) for pair in pairwise(course.path(run))]
    usual = sum(course.successors[source][0][0] == target for source, target in steps)
    assert 0.75 < usual / len(steps) < 0.95


def test_paired_agents_share_half_of_their_prompts() -> None:
    settings = Settings(agents=4, fixed=64, pool_ratio=9.0)
    load = CourseWorkload(settings, 5000, 3, course=COURSES["branches"])
    one, other, third = (load.fixed(agent) for agent in (0, 1, 2))
    assert one[:32] == other[:32] != third[:32]
    assert one[32:] != other[32:]
    assert len(one) == 64
