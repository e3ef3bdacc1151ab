"""Host-to-device copies that KVFlow starts, and who may read what they write.

SGLang sets a node's device value when a copy is queued and does not say that it is
still in flight (write-through mode), so a request admitted early would read garbage.
Here every node of such a copy is stamped LOADING until SGLang acknowledges the copy or
a batch joins it, that is, waits for it layer by layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from .node import LoadOperation, state_of

if TYPE_CHECKING:
    from .cache import KVFlowCache

__all__ = ["LoadTracker"]


class LoadTracker:
    """The copies in flight of one cache. All calls come from the scheduler thread."""

    def __init__(self, cache: KVFlowCache) -> None:
        self._cache = cache
        self._operations: list[LoadOperation] = []
        self._join: LoadOperation | None = None
        self.demand: dict[str, tuple[int, tuple[str, str] | None]] = {}
        """rid -> node id of what a skipped request waits for, and its (client, agent)
        if it is tagged; started by the next planner pass, so that nothing merges with
        the scheduler's own operation."""
        self.starting = False
        """Room is being made for a copy that KVFlow starts: nobody waits for that."""
        self.completed = 0
        """Copies acknowledged so far."""

    @property
    def active(self) -> bool:
        """Whether any node is LOADING."""
        return bool(self._operations)

    @property
    def joining(self) -> bool:
        """Whether the batch being built has yet to ask what it waits for."""
        return self._join is not None

    @property
    def in_flight(self) -> int:
        """Copies that KVFlow started and nobody has joined yet."""
        return len(self._operations)

    @property
    def queued(self) -> int:
        """Copies to the device that are on the bus, the scheduler's own included."""
        return len(self._cache.speeds.loads_on_bus())

    def start(self, missing: Sequence[Any]) -> LoadOperation | None:
        """Copy nodes of one path, deepest first, whose ancestors are on the device.

        None if SGLang refuses: no room, too few tokens, or no free event slot; or if
        one of them is no longer only in host memory.
        """
        controller = self._cache.cache_controller
        slots = controller.layer_done_counter.num_counters - _STOCK_PRODUCERS
        if controller.load_queue or len(controller.ack_load_queue) >= slots:
            return None
        # An eviction for the piece before may have taken a host copy of this one.
        if any(not (step.evicted and step.backuped) for step in missing):
            return None
        anchor = missing[0].id
        tokens = sum(len(step.key) for step in missing)
        self.starting = True
        try:
            if not self._cache.load_back(anchor):
                return None
        finally:
            self.starting = False
        operation = LoadOperation(anchor, controller.start_loading(), tokens)
        # From here on nothing may come before the stamps.
        for step in missing:
            state_of(step).load = operation
        self._operations.append(operation)
        self._cache.speeds.load_started()
        return operation

    def reap(self, unacknowledged: Iterable[int]) -> None:
        """Forget the copies that SGLang no longer lists as under way."""
        if not self._operations:
            return
        anchors = set(unacknowledged)
        for operation in [o for o in self._operations if o.anchor not in anchors]:
            self._settle(operation)
            self.completed += 1

    def on_path(self, path: Iterable[Any]) -> list[LoadOperation]:
        """The copies that the nodes of `path` wait for, each once."""
        if not self._operations:
            return []
        found = {id(o): o for n in path if (o := state_of(n).load) is not None}
        return list(found.values())

    def join(self, operations: Iterable[LoadOperation]) -> None:
        """Let the batch being built wait for `operations` layer by layer.

        Copies run on one FIFO stream, so waiting for the newest covers the others.
        """
        for operation in operations:
            position = self._operations.index(operation)
            if self._join is None or position > self._operations.index(self._join):
                self._join = operation

    def take_join(self) -> int | None:
        """The event index that the batch must wait on, once; None if it joins none.

        From here on later batches are ordered behind this one, so the copies up to
        the joined one are no longer LOADING.
        """
        if self._join is None:
            return None
        last = self._operations.index(self._join)
        producer = self._join.producer
        for operation in self._operations[: last + 1]:
            self._settle(operation)
        self._join = None
        return producer

    def abandon_join(self) -> None:
        """The batch waits for nothing."""
        self._join = None

    def await_oldest(self) -> bool:
        """Block until the oldest copy, to the device or to host memory, has ended and
        unlock what it held; False if there is none. The same on all ranks: copies are
        acknowledged in order."""
        cache, controller = self._cache, self._cache.cache_controller
        if controller is None:
            return False
        cache.flush_pending_backups()
        if controller.ack_load_queue:
            cache.loading_check(finish_count=1)
        elif controller.ack_write_queue:
            cache.writing_check(finish_count=1)
        else:
            return False
        cache.counters.awaited_copies += 1
        return True

    def clear(self) -> None:
        self._operations.clear()
        self._join = None
        self.demand.clear()

    def _settle(self, operation: LoadOperation) -> None:
        tree = self._cache.tree_core
        node = tree.find_node(operation.anchor)
        for step in tree.path_to_root(node) if node is not None else ():
            if state_of(step).load is operation:
                state_of(step).load = None
        self._operations.remove(operation)


_STOCK_PRODUCERS = 3
"""Event slots that SGLang's own on-demand loads need (`LayerDoneCounter`)."""
