"""The copies between host memory and the device, as SGLang's cache controller has them.

Each direction is a queue of its own, one copy after another, layer by layer; the two
do not disturb each other (full duplex). The fields that the production `LoadTracker`
and `Speeds` read are named as in SGLang's `HiCacheController`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from kvflow_server.emulated.costs import Costs

__all__ = ["Bus", "Copy"]

PRODUCERS = 3
"""Of SGLang's own loads (`LayerDoneCounter`); KVFlow adds its own to them."""


@dataclass(slots=True)
class Copy:
    """One copy; what SGLang acknowledges when it has ended."""

    anchors: tuple[Any, ...]
    """The deepest nodes that it brings, one for each path."""
    num_tokens: int
    num_bytes: int
    start: float
    end: float
    producer: int = -1


@dataclass(slots=True)
class _LayerDone:
    num_counters: int


class Bus:
    """Both directions. `now` is set before each use (`Server`)."""

    def __init__(self, costs: Costs, max_inflight: int) -> None:
        self._costs = costs
        self.now = 0.0
        self.load_queue: list[tuple[Any, int]] = []
        """Loads that a batch asked for, submitted together when it is complete."""
        self.ack_load_queue: deque[Copy] = deque()
        self.ack_write_queue: deque[Copy] = deque()
        self.layer_done_counter = _LayerDone(PRODUCERS + max_inflight + 1)
        self._loads_end = 0.0
        self._writes_end = 0.0
        self._producer = 0

    def queue_load(self, node: Any, tokens: int) -> None:
        self.load_queue.append((node, tokens))

    def start_loading(self) -> int:
        """Submit what is queued as one copy; its producer index, -1 for nothing."""
        if not self.load_queue:
            return -1
        anchors = tuple(node for node, _ in self.load_queue)
        tokens = sum(tokens for _, tokens in self.load_queue)
        self.load_queue.clear()
        copy = self._copy(anchors, tokens, self._loads_end)
        self._loads_end = copy.end
        self._producer += 1
        copy.producer = self._producer
        self.ack_load_queue.append(copy)
        return copy.producer

    def start_writing(self, node: Any, tokens: int) -> None:
        copy = self._copy((node,), tokens, self._writes_end)
        self._writes_end = copy.end
        self.ack_write_queue.append(copy)

    def load_of(self, producer: int) -> Copy | None:
        """The load with this producer index, while it is under way."""
        for copy in self.ack_load_queue:
            if copy.producer == producer:
                return copy
        return None

    def loads_ended(self) -> list[Copy]:
        return _ended(self.ack_load_queue, self.now)

    def writes_ended(self) -> list[Copy]:
        return _ended(self.ack_write_queue, self.now)

    def next_end(self) -> float:
        """When the next copy ends; infinity if none is under way."""
        ends = [q[0].end for q in (self.ack_load_queue, self.ack_write_queue) if q]
        return min(ends, default=float("inf"))

    def _copy(self, anchors: tuple[Any, ...], tokens: int, free: float) -> Copy:
        start = max(self.now, free)
        end = start + self._costs.copy_seconds(tokens)
        return Copy(anchors, tokens, tokens * self._costs.kv_bytes, start, end)


def _ended(queue: deque[Copy], now: float) -> list[Copy]:
    ended = []
    while queue and queue[0].end <= now:
        ended.append(queue.popleft())
    return ended
