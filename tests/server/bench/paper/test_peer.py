from __future__ import annotations

from pathlib import Path

import pytest

from kvflow_server.bench.paper.fig8 import PeerWorkload, questions
from kvflow_server.bench.settings import Settings
from kvflow_server.sim.peer import AGENTS


def task(seed: int, factor: int = 1) -> PeerWorkload:
    settings = Settings(agents=4, pool_ratio=9.0, seed=seed)
    return PeerWorkload(settings, 5000, 3, factor=factor, asked=[[7, 8, 9]])


def test_fixed_prompts_are_as_long_as_the_papers() -> None:
    lengths = sorted(task(seed).mark(agent) for seed in range(60) for agent in range(4))
    assert sum(lengths) / len(lengths) == pytest.approx(399, abs=20)
    assert lengths[len(lengths) // 10] == pytest.approx(298, abs=30)


def test_a_prompt_is_the_fixed_part_the_question_and_a_rest() -> None:
    load = task(3)
    prompt = load.prompt(1, 0)
    fixed = load.mark(1)
    assert prompt[:fixed] == load.fixed(1)
    assert prompt[fixed : fixed + 3] == [7, 8, 9]
    assert 17 <= len(prompt) - fixed <= 399


def test_the_factor_divides_all_lengths() -> None:
    whole, part = task(5), task(5, factor=16)
    assert part.mark(0) == round(whole.mark(0) / 16)
    assert part.output(0, 0) == max(1, round(whole.output(0, 0) / 16))


def test_some_drafts_are_sent_back_and_the_graph_knows_it() -> None:
    load = task(0)
    orders = [tuple(load.order(run)) for run in range(100)]
    assert 10 < sum(len(order) == 6 for order in orders) < 60
    graph = load.graph
    assert graph is not None
    assert [node.name for node in graph.nodes] == list(AGENTS)


def test_questions_are_read_and_a_bad_file_is_named(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.jsonl"
    good.write_text('{"text": "Why?"}\n\n')
    bad.write_text('{"question": "Why?"}\n')
    assert questions(good) == ["Why?"]
    with pytest.raises(ValueError, match=r"bad\.jsonl"):
        questions(bad)
