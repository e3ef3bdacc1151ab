from __future__ import annotations

import pytest
from paper_reports import course_report

from kvflow_server.bench.paper.belady import least_loaded
from kvflow_server.bench.paper.courses import COURSES, CourseWorkload
from kvflow_server.bench.paper.offline import Part, least_brought_in, prompt_parts
from kvflow_server.bench.settings import Settings


def whole(*agents: int) -> list[list[Part]]:
    return [[(agent, 100)] for agent in agents]


def test_on_a_cycle_it_is_what_the_rule_gives() -> None:
    rounds = 400
    calls = whole(*list(range(10)) * rounds)
    for held in (2, 4.5, 9):
        found = least_brought_in(calls, 0, round(100 * held)) / 100 / rounds
        assert found == pytest.approx(least_loaded(10, held), abs=held / rounds)


def test_what_is_best_to_have_is_there_at_the_start() -> None:
    assert least_brought_in(whole(1, 2, 3), 0, 300) == 0
    assert least_brought_in(whole(1, 2, 3), 0, 250) == 50
    assert least_brought_in(whole(1, 2, 1), 0, 100) == 200


def test_what_a_call_needs_beside_its_prompt_takes_room() -> None:
    assert least_brought_in(whole(1, 2, 3), 20, 300) == 20


def test_a_shared_half_is_brought_in_once() -> None:
    branches = COURSES["branches"]
    pair = [prompt_parts(branches, agent, 100) for agent in (0, 1, 4, 0, 1)]
    assert least_brought_in(pair, 0, 100) == 50 + 100 + 100 + 50


@pytest.mark.parametrize("name", COURSES)
def test_parts_are_those_of_the_prompts(name: str) -> None:
    course = COURSES[name]
    settings = Settings(agents=course.agents, fixed=65, pool_ratio=9.0)
    load = CourseWorkload(settings, 5000, 3, course=course)
    for one in range(4):
        for other in range(4):
            parts = dict(prompt_parts(course, one, 65))
            shared = parts.keys() & dict(prompt_parts(course, other, 65)).keys()
            alike = sum(parts[name] for name in shared)
            assert load.fixed(one)[:alike] == load.fixed(other)[:alike]
            assert sum(parts.values()) == 65


def test_a_pool_for_all_prompts_needs_nothing() -> None:
    calls = [
        prompt_parts(COURSES["dynamic"], a, 64) for a in COURSES["dynamic"].path(0)
    ]
    assert least_brought_in(calls, 3, 10 * 64 + 3) == 0


@pytest.mark.parametrize("name", COURSES)
def test_a_report_has_the_bound_in_tokens_and_time(name: str) -> None:
    mix = course_report(name)["mixes"]["h100"]["8192/32/32"]
    prompts = COURSES[name].calls * 512
    assert 0 < mix["least_loaded_tokens"] < prompts
    token_s = mix["costs"]["kv_bytes"] / mix["costs"]["bus_bytes_per_s"]
    assert mix["belady"] == max(mix["ideal"], mix["least_loaded_tokens"] * token_s)
    assert mix["kvflow_over_belady"] == pytest.approx(mix["kvflow"] / mix["belady"])
