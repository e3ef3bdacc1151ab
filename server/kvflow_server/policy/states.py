"""The four states of a node's KV, and which may follow which.

::

                    ┌──── OFFLOADING        copied to host memory, still on the device
                    ▼         ▲
    computed ──► IN_GPU ──────┘
                 │  ▲ ▲
         evicted │  │ └────── LOADING       copied to the device, not all there yet
                 ▼  │            ▲
              BACKED_UP ─────────┘          only in host memory
                 └──► gone

OFFLOADING is never evicted: the copy still reads its slots. LOADING is neither evicted
nor read: it becomes IN_GPU when the copy has arrived, or when a batch waits for it
layer by layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

__all__ = ["TRANSITIONS", "KVState", "StateLedger"]

MAX_VIOLATIONS = 16


class KVState(Enum):
    """Where the KV of one node is."""

    IN_GPU = "in_gpu"
    """On the device; in host memory, too, or not."""
    BACKED_UP = "backed_up"
    """Only in host memory."""
    LOADING = "loading"
    """Its device slots are still being written."""
    OFFLOADING = "offloading"
    """Its device slots are still being read."""


TRANSITIONS: Mapping[tuple[KVState | None, KVState | None], str] = {
    (None, KVState.IN_GPU): "computed",
    (None, KVState.OFFLOADING): "computed, and its backup queued with the insert",
    (KVState.IN_GPU, KVState.OFFLOADING): "its backup started",
    (KVState.OFFLOADING, KVState.IN_GPU): "its backup arrived",
    (KVState.IN_GPU, KVState.BACKED_UP): "evicted from the device",
    (KVState.IN_GPU, None): "evicted without a backup",
    (KVState.BACKED_UP, KVState.LOADING): "its copy to the device started",
    (KVState.LOADING, KVState.IN_GPU): "its copy arrived, or was joined",
    (KVState.BACKED_UP, KVState.IN_GPU): (
        "computed again, or loaded by a batch that waits for it"
    ),
    (KVState.BACKED_UP, None): "evicted from host memory",
}
"""(before, after) -> what happened; None is outside the tree. What is not here is a
fault of the engine."""


class StateLedger:
    """The last state seen of every node; remembers transitions that may not be.

    Told of what must not be missed between two looks (`see` before and after an
    eviction, `split`, `leave`), and of everything else when somebody looks.
    """

    def __init__(self) -> None:
        self._last: dict[int, KVState] = {}
        self.violations: list[str] = []
        """One sentence each; the first few only."""

    def see(self, node: int, state: KVState) -> None:
        """`node` is in `state` now."""
        before = self._last.get(node)
        if before is not state:
            self._check(node, before, state)
            self._last[node] = state

    def split(self, node: int, new: int) -> None:
        """`new` has taken over a part of `node`, in the same state."""
        if node in self._last:
            self._last[new] = self._last[node]

    def leave(self, node: int) -> None:
        """`node` has left the tree. One that was never seen had no state to leave."""
        before = self._last.pop(node, None)
        if before is not None:
            self._check(node, before, None)

    def clear(self) -> None:
        """The tree was reset."""
        self._last.clear()

    def __len__(self) -> int:
        return len(self._last)

    def _check(self, node: int, before: KVState | None, after: KVState | None) -> None:
        legal = (before, after) in TRANSITIONS
        if not legal and len(self.violations) < MAX_VIOLATIONS:
            names = [state.name if state else "absent" for state in (before, after)]
            self.violations.append(f"node {node} went from {names[0]} to {names[1]}")
