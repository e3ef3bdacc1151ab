from __future__ import annotations

import pytest

from kvflow_server.bench.graph import measure, random_graph


def test_the_graph_has_the_size_that_was_asked_for() -> None:
    graph = random_graph(50, 200, seed=3)
    assert len(graph.nodes) == 50
    assert sum(len(group.sources) for group in graph.groups) == pytest.approx(
        200, abs=3
    )


def test_the_graph_has_barriers_and_is_repeatable() -> None:
    graph = random_graph(50, 200, seed=3)
    assert any(len(group.sources) > 1 for group in graph.groups)
    assert graph == random_graph(50, 200, seed=3)


def test_too_few_edges_are_refused() -> None:
    with pytest.raises(ValueError, match="too few"):
        random_graph(10, 5, seed=0)


def test_most_of_a_large_graph_is_reached() -> None:
    timing = measure(200, 800, repeats=3)
    assert timing.compute_ms.n == 3
    assert timing.compute_ms.min > 0
    assert timing.reached > 100
