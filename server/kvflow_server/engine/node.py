"""What KVFlow keeps on a node of the tree. Small: a server holds tens of thousands."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from kvflow_server.policy.priority import Owner, Rank, Use
from kvflow_server.policy.victims import Entry, Subtree

__all__ = ["LoadOperation", "NodeState", "PromptHandle", "Writer", "state_of"]


class LoadOperation:
    """One host-to-device copy in flight that KVFlow started. Compared by identity."""

    __slots__ = ("anchor", "producer", "tokens")

    def __init__(self, anchor: int, producer: int, tokens: int) -> None:
        self.anchor = anchor
        """Node id under which SGLang acknowledges the copy."""
        self.producer = producer
        """Index of the layer events that a batch waits on to join the copy."""
        self.tokens = tokens


class PromptHandle:
    """One fixed prompt of one (client, agent), and the node it ends at."""

    __slots__ = ("agent", "client", "digest", "node", "rank", "tokens")

    def __init__(
        self,
        client: str,
        agent: str,
        digest: int,
        tokens: int,
        node: Any,
        rank: Rank,
    ) -> None:
        self.client = client
        self.agent = agent
        self.digest = digest
        """Hash of the prompt's tokens and namespace; tells prompts apart."""
        self.tokens = tokens
        self.node = node
        self.rank = rank
        """As it is counted on the node's path."""


class Writer:
    """An agent in a run, and the nodes that it wrote last."""

    __slots__ = ("nodes", "owner")

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.nodes: set[Any] = set()


class NodeState:
    """What KVFlow knows of one node."""

    __slots__ = (
        "_ends",
        "charged",
        "entry",
        "load",
        "payer",
        "prefetched",
        "subtree",
        "use",
        "writer",
    )

    def __init__(self) -> None:
        self.subtree: Subtree | None = None
        """The fixed prompts that end in the node's subtree, the node itself included;
        None if none does: then the node is a dynamic suffix, or unknown."""
        self._ends: PromptHandle | dict[PromptHandle, None] | None = None
        """Those that end at the node itself; mostly one, which needs no dict."""
        self.writer: Writer | None = None
        self.use = Use.OWN
        self.entry: Entry | None = None
        """The node's place in its leaf set's order, while it is in one."""
        self.payer: str | None = None
        """The client that the node's tokens on the device are counted for."""
        self.charged = 0
        self.load: LoadOperation | None = None
        """Set while the device slots are still being written: LOADING."""
        self.prefetched: tuple[str, str] | None = None
        """The (client, agent) it was prefetched for, until a request uses it."""

    @property
    def ends(self) -> Collection[PromptHandle]:
        """The fixed prompts that end at the node itself."""
        ends = self._ends
        if ends is None:
            return ()
        return ends if isinstance(ends, dict) else (ends,)

    def add_end(self, handle: PromptHandle) -> None:
        if self._ends is None:
            self._ends = handle
        else:
            if not isinstance(self._ends, dict):
                self._ends = {self._ends: None}
            self._ends[handle] = None

    def drop_end(self, handle: PromptHandle) -> None:
        if isinstance(self._ends, dict):
            del self._ends[handle]
            if not self._ends:
                self._ends = None
        else:
            assert self._ends is handle, "a handle that is not on its node"
            self._ends = None

    @property
    def fixed(self) -> bool:
        """Whether some agent's fixed prompt needs the node."""
        return self.subtree is not None

    @property
    def owner(self) -> Owner | None:
        return self.writer.owner if self.writer is not None else None

    def inherit(self, below: NodeState) -> None:
        """The node was split off the upper end of one with the state `below`."""
        self.load = below.load  # first: what is LOADING is so whatever fails here
        self.subtree = below.subtree.copy() if below.subtree is not None else None
        self.use = below.use
        self.prefetched = below.prefetched


def state_of(node: Any) -> NodeState:
    state: NodeState = node.kvflow
    return state
