"""How long steps-to-execution takes on a large Agent Step Graph."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from itertools import pairwise

from kvflow_sdk.distance import Frontier, steps_to_execution
from kvflow_sdk.graph import AgentStepGraph, GraphBuilder

from .results import Spread

__all__ = ["GraphTiming", "measure", "random_graph"]


@dataclass(frozen=True, slots=True)
class GraphTiming:
    """Milliseconds; each repetition starts from another frontier."""

    nodes: int
    edges: int
    reached: float
    """Nodes with finite steps, the mean over the repetitions."""
    build_ms: float
    compute_ms: Spread


def random_graph(nodes: int, edges: int, seed: int) -> AgentStepGraph:
    """A connected random graph with loops and barriers.

    A chain through all nodes keeps everything reachable; one in eight of the other
    triggers is a barrier over two or three predecessors (each an edge). Raises
    `ValueError` when there are too few edges for the chain.
    """
    if not 1 <= nodes <= edges:
        raise ValueError(f"{edges} edges are too few for {nodes} nodes")
    draw = random.Random(seed)
    names = [f"n{index}" for index in range(nodes)]
    builder = GraphBuilder().add_entry(names[0])
    for name in names:
        builder.add_node(name)
    pairs = set()
    for pair in pairwise(names):
        pairs.add(pair)
        builder.add_edge(*pair)
    count = nodes  # the chain, and the entry
    while count < edges:
        width = 1 if draw.random() < 7 / 8 else draw.randint(2, 3)
        sources = frozenset(draw.choices(names, k=min(width, edges - count)))
        target = draw.choice(names)
        if len(sources) > 1:
            builder.add_barrier(sources, target)
        elif (pair := (next(iter(sources)), target)) not in pairs:
            pairs.add(pair)
            builder.add_edge(*pair, conditional=True)
        else:
            continue
        count += len(sources)
    return builder.build()


def measure(nodes: int, edges: int, repeats: int, seed: int = 0) -> GraphTiming:
    """Time `repeats` computations, each from three random executing nodes."""
    start = time.perf_counter()
    graph = random_graph(nodes, edges, seed)
    built = time.perf_counter() - start
    draw = random.Random(seed + 1)
    names = [node.name for node in graph.nodes]
    seconds, reached = [], 0
    for _ in range(repeats):
        frontier = Frontier(executing=frozenset(draw.choices(names, k=3)))
        start = time.perf_counter()
        steps = steps_to_execution(graph, frontier)
        seconds.append(time.perf_counter() - start)
        reached += len(steps)
    return GraphTiming(
        nodes=nodes,
        edges=sum(len(group.sources) for group in graph.groups),
        reached=reached / repeats,
        build_ms=built * 1e3,
        compute_ms=Spread.of([value * 1e3 for value in seconds]),
    )
