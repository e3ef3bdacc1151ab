"""Steps-to-execution against a naive fixpoint, on random graphs and frontiers."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kvflow_sdk.distance import Frontier, steps_to_execution
from kvflow_sdk.graph import START, AgentStepGraph, Group, Node

INFINITY = float("inf")


def naive(graph: AgentStepGraph, frontier: Frontier) -> dict[str, int]:
    """The definition itself, iterated until nothing changes any more."""
    running = frontier.executing | frontier.fired
    best = {node.name: INFINITY for node in graph.nodes}
    best.update(dict.fromkeys(running, 0))
    deferred = {node.name for node in graph.nodes if node.deferred} - running

    def contribution(number: int, source: str) -> float:
        if source in frontier.arrivals.get(number, frozenset()):
            return 0
        if source in frontier.holding:
            return 0
        if source == START:
            return INFINITY if frontier.started else 0
        return best[source]

    def by_groups(name: str) -> float:
        ways = [
            max(contribution(number, source) for source in group.sources) + 1
            for number, group in enumerate(graph.groups)
            if group.target == name
        ]
        return min(ways, default=INFINITY)

    def settle() -> None:
        changed = True
        while changed:
            changed = False
            for name in set(best) - running - deferred:
                if name in graph and by_groups(name) < best[name]:
                    best[name] = by_groups(name)
                    changed = True

    settle()
    while ready := {name for name in deferred if by_groups(name) < INFINITY}:
        farthest = max([0, *(value for value in best.values() if value < INFINITY)])
        best.update(dict.fromkeys(ready, farthest + 1))
        deferred -= ready
        # From here on they are as any other node with a settled value.
        running |= ready
        settle()
    return {name: int(value) for name, value in best.items() if value < INFINITY}


@st.composite
def graphs(draw: st.DrawFn) -> AgentStepGraph:
    names = [f"n{number}" for number in range(draw(st.integers(1, 9)))]
    nodes = tuple(Node(name, deferred=draw(st.integers(0, 9)) == 0) for name in names)
    some = st.frozensets(st.sampled_from(names), min_size=1, max_size=3)
    sources = st.one_of(some, st.just(frozenset([START])))
    groups = draw(
        st.lists(st.builds(Group, st.sampled_from(names), sources), max_size=24)
    )
    return AgentStepGraph(nodes, tuple(dict.fromkeys(groups)))


@st.composite
def situations(draw: st.DrawFn) -> tuple[AgentStepGraph, Frontier]:
    graph = draw(graphs())
    names = [node.name for node in graph.nodes]
    some = st.frozensets(st.sampled_from([*names, "outside"]), max_size=2)
    arrivals = {
        number: draw(st.frozensets(st.sampled_from(sorted(group.sources))))
        for number, group in enumerate(graph.groups)
        if START not in group.sources and draw(st.integers(0, 3)) == 0
    }
    return graph, Frontier(
        executing=draw(some),
        fired=draw(some),
        holding=draw(some),
        arrivals={number: got for number, got in arrivals.items() if got},
        started=draw(st.booleans()),
    )


@settings(max_examples=250, deadline=None)
@given(situations())
def test_steps_equal_a_naive_fixpoint(
    situation: tuple[AgentStepGraph, Frontier],
) -> None:
    graph, frontier = situation
    assert steps_to_execution(graph, frontier) == naive(graph, frontier)


@settings(max_examples=100, deadline=None)
@given(situations(), st.randoms(use_true_random=False))
def test_steps_do_not_depend_on_the_order_of_declaration(
    situation: tuple[AgentStepGraph, Frontier], random: object
) -> None:
    graph, frontier = situation
    frontier = Frontier(executing=frontier.executing, started=frontier.started)
    groups = list(graph.groups)
    random.shuffle(groups)  # type: ignore[attr-defined]
    shuffled = AgentStepGraph(graph.nodes[::-1], tuple(groups))
    assert steps_to_execution(shuffled, frontier) == steps_to_execution(graph, frontier)
