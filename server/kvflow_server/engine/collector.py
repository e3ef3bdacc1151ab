"""Garbage collection that does not stop the scheduler for long.

Python's full collection looks at every container object. Of those a tree of 40 000
nodes has half a million, SGLang and torch as many again, and none is garbage: it would
stop the scheduler for 0.65 s. Frozen objects are not looked at, and nodes that leave
the tree are freed by their reference counts, frozen or not. So whatever is alive is
frozen whenever the tree has grown by some nodes; a collection then looks at what is new
since.

What is frozen and later becomes garbage *in a cycle* is never freed. So a busy
scheduler, whose requests are alive, freezes only while collections find next to no such
garbage; otherwise it waits until it is idle.
"""

from __future__ import annotations

import gc

__all__ = ["FrozenCollector"]


class FrozenCollector:
    """To be asked after each scheduler pass. One per process: the collector is."""

    __slots__ = ("_born", "_clean", "_stride")

    def __init__(self, stride: int = 1024) -> None:
        self._stride = stride
        """Nodes born between two freezes: some 20 000 objects."""
        self._born: int | None = None
        self._clean = True

    def after_pass(self, born: int, *, idle: bool) -> bool:
        """`born` nodes in all so far, `idle` if no request is on the server. Freezes
        when that is due and says so: at the first pass, when the model is loaded, and
        after every stride."""
        first = self._born is None
        if self._born is not None and born - self._born < self._stride:
            return False
        if not (first or idle or self._clean):
            return False
        self._born = born
        cyclic = gc.collect()
        self._clean = first or cyclic <= _FEW
        if not (idle or self._clean):
            return False
        gc.freeze()
        return True


_FEW = 64
"""Objects in cycles per stride. Of those alive at a freeze a like share may be lost."""
