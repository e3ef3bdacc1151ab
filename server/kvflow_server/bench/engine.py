"""What the engine costs on a large tree, next to stock SGLang's two tree cores."""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from kvflow_server.engine.collector import FrozenCollector

from .calls import FIXED, time_calls
from .collection import no_collection
from .results import Spread
from .tree import Forest, ForestSize

__all__ = ["EngineTiming", "measure_engine"]

VICTIMS = 8
"""Leaves per eviction."""
FREEZES = 5
CORES = ("kvflow", "python", "rust")


@dataclass(frozen=True, slots=True)
class EngineTiming:
    """Milliseconds, with the garbage collector frozen; the pool is full throughout."""

    size: ForestSize
    evict: dict[str, Spread]
    """Of one eviction of `VICTIMS` leaves, by tree core."""
    update: Spread
    """Of one snapshot in which all agents of a client move."""
    update_bare: Spread
    """The same, of clients all of whose prompts are leaves."""
    full_collection_ms: float
    """One garbage collection of everything, which Python would run now and then."""
    collection: Spread
    """What the scheduler stops for instead (`engine.collector`)."""
    bytes_per_node: float
    """That KVFlow adds to a tagged node, over SGLang's Python core."""
    calls: dict[int, dict[str, Spread]]
    """What a call costs the tree, by tokens of its fixed prompt and by tree core."""

    def to_dict(self) -> dict[str, Any]:
        """`evict_ms`, `stock_evict_ms`, `update_ms`, `call_ms` are medians."""
        stock = {core: self.evict[core].median for core in ("python", "rust")}
        return {
            "evict_ms": self.evict["kvflow"].median,
            "stock_evict_ms": stock,
            "update_ms": self.update.median,
            "bytes_per_node": self.bytes_per_node,
            "full_collection_ms": self.full_collection_ms,
            "collection_ms": self.collection.median,
            "call_ms": {
                str(fixed): {core: spread.median for core, spread in cores.items()}
                for fixed, cores in self.calls.items()
            },
            "spread": {
                **{f"evict_{core}": asdict(s) for core, s in self.evict.items()},
                "update": asdict(self.update),
                "update_bare": asdict(self.update_bare),
                "collection": asdict(self.collection),
                **{
                    f"call_{fixed}_{core}": asdict(spread)
                    for fixed, cores in self.calls.items()
                    for core, spread in cores.items()
                },
            },
            "size": asdict(self.size) | {"victims": VICTIMS},
        }


def measure_engine(
    size: ForestSize, repeats: int, progress: Callable[[str], None]
) -> EngineTiming:
    """Build a tree for each core, one after the other, and time it."""
    evict, updates, bare = {}, [], []
    everything, pauses = 0.0, [0.0]
    for core in CORES:
        progress(f"building {size.leaves} leaves: {core}")
        forest = Forest(core, size)
        forest.fill()
        progress(f"measuring: {core}")
        if core == "kvflow":
            everything, pauses = _time_collections(forest)
        with no_collection():
            evict[core] = _time_evictions(forest, repeats)
            if core == "kvflow":
                everyone = range(size.bare_clients, size.clients)
                updates = _time_updates(forest, everyone, repeats)
                bare = _time_updates(forest, range(size.bare_clients), repeats)
        del forest
    calls = {}
    for fixed in FIXED:
        progress(f"calls with prompts of {fixed} tokens")
        with no_collection():
            calls[fixed] = time_calls(CORES, fixed, repeats)
    progress("weighing")
    return EngineTiming(
        size=size,
        evict=evict,
        update=Spread.of(updates),
        update_bare=Spread.of(bare),
        full_collection_ms=everything,
        collection=Spread.of(pauses),
        bytes_per_node=bytes_per_node(size),
        calls=calls,
    )


def bytes_per_node(size: ForestSize) -> float:
    """Of a smaller tree of the same shape: what is added does not depend on the size."""
    scale = max(1, size.clients // 20)
    small = ForestSize(
        leaves=max(size.leaves // scale, 2 * size.agents * (size.clients // scale)),
        clients=size.clients // scale,
        agents=size.agents,
    )
    tagged = _weigh("kvflow", small)
    nodes = small.clients + small.prompts + small.leaves
    nodes -= small.bare_clients * small.agents
    return (tagged - _weigh("python", small)) / nodes


def _weigh(core: str, size: ForestSize) -> int:
    forest = Forest(core, size)
    gc.collect()
    tracemalloc.start()
    try:
        forest.fill()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def _time_evictions(forest: Forest, repeats: int) -> Spread:
    """Each frees exactly as much as is then inserted again."""
    milliseconds = []
    for turn in range(repeats):
        start = time.perf_counter()
        freed = forest.evict(VICTIMS)
        milliseconds.append((time.perf_counter() - start) * 1e3)
        for index in range(forest.leaves_in(freed)):
            forest.add_leaf(turn * VICTIMS + index)
    return Spread.of(milliseconds)


def _time_updates(forest: Forest, clients: range, repeats: int) -> list[float]:
    turns = (clients[turn % len(clients)] for turn in range(repeats))
    return [forest.tell(client) * 1e3 for client in turns]


def _time_collections(forest: Forest) -> tuple[float, list[float]]:
    """Of everything, and of what is new since the last freeze."""
    start = time.perf_counter()
    gc.collect()
    everything = (time.perf_counter() - start) * 1e3
    collector = FrozenCollector()
    tree = forest.cache.tree_core
    collector.after_pass(tree.nodes_born, idle=True)
    pauses: list[float] = []
    while len(pauses) < FREEZES:
        for index in range(forest.leaves_in(forest.evict(VICTIMS))):
            forest.add_leaf(index)
        start = time.perf_counter()
        if collector.after_pass(tree.nodes_born, idle=True):
            pauses.append((time.perf_counter() - start) * 1e3)
    gc.unfreeze()
    return everything, pauses
