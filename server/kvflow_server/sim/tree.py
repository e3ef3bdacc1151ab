"""The simulator's radix tree: over named texts in place of tokens.

A prompt is a sequence of spans, each a stretch of a named text. Two prompts share what
their spans share, and a node holds spans as a node of SGLang's tree holds tokens; so a
prompt of 8 192 tokens costs as much as one of eight. Order, prompts and victims are the
production `TreeOrder`'s.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import count
from typing import TypeAlias

from kvflow_server.engine.node import NodeState
from kvflow_server.engine.order import TreeOrder

__all__ = ["Node", "Span", "Spans", "Tree", "tokens_in", "without_last"]

Span: TypeAlias = tuple[Hashable, int, int]
"""(name of a text, first token, one past the last)."""
Spans: TypeAlias = tuple[Span, ...]
"""Neighbours in one text are one span."""


def tokens_in(spans: Spans) -> int:
    return sum(stop - start for _, start, stop in spans)


def without_last(spans: Spans) -> Spans:
    """All tokens but the last."""
    text, start, stop = spans[-1]
    return (*spans[:-1], (text, start, stop - 1)) if stop - start > 1 else spans[:-1]


class Node:
    """A node; its fields are named as SGLang names them."""

    __slots__ = (
        "backuped",
        "children",
        "evicted",
        "hit_count",
        "id",
        "key",
        "kvflow",
        "last_access_time",
        "lock_ref",
        "parent",
        "spans",
    )

    def __init__(self, number: int, spans: Spans, parent: Node | None) -> None:
        self.id = number
        self.spans = spans
        self.key = range(tokens_in(spans))
        """As long as the node's tokens; says nothing else."""
        self.parent = parent
        self.children: dict[tuple[Hashable, int], Node] = {}
        self.evicted = False
        """Not on the device."""
        self.backuped = False
        """In host memory."""
        self.lock_ref = 0
        """Requests and copies that need the node, or one below it, on the device."""
        self.hit_count = 0
        self.last_access_time = 0
        self.kvflow = NodeState()


class Tree(TreeOrder):
    """Matching, inserting, splitting and locking, as in `UnifiedTreeCore`."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = count(1)
        self._time = 0
        self.root_node: Node = Node(0, (), None)
        self.root_node.lock_ref = 1
        self.evictable_device_leaves = self.leaf_set()
        self.evictable_host_leaves = self.leaf_set()
        self.by_id: dict[int, Node] = {}
        self.evictable = 0
        """Tokens on the device that nobody has locked."""

    def locked(self, node: Node) -> bool:
        return node.lock_ref > 0

    def find_node(self, number: int) -> Node | None:
        """The node, or None once it has left the tree."""
        return self.by_id.get(number)

    # Matching and inserting.

    def match(self, spans: Spans) -> list[Node]:
        """The nodes that hold the longest known prefix, shallow first; touches them.
        A node that is matched in part is split."""
        path, _matched, _position = self._descend(spans)
        self._time += 1
        for node in path:
            node.last_access_time = self._time
            self.rekey(node)
        return path

    def insert(self, spans: Spans, cuts: Iterable[int]) -> tuple[list[Node], int]:
        """Hold `spans`, with a node's end at each of `cuts` (ascending).

        The path, shallow first, and how many of its tokens were there before. New nodes
        are on the device; those that were there stay where they are.
        """
        path, matched, (index, at) = self._descend(spans)
        ends = []
        end = 0
        for node in path:
            end += len(node.key)
            ends.append(end)
        wanted = [cut for cut in cuts if cut not in ends]
        for cut in [cut for cut in wanted if cut < matched]:
            self._cut(path, cut)
        rest = list(spans[index:])
        if rest:
            rest[0] = (rest[0][0], at, rest[0][2])
            parent = path[-1] if path else self.root_node
            for piece in _pieces(rest, [c - matched for c in wanted if c > matched]):
                parent = self._add(parent, piece)
                path.append(parent)
        self._time += 1
        for node in path:
            node.last_access_time = self._time
            self.rekey(node)
        return path, matched

    def _descend(self, spans: Spans) -> tuple[list[Node], int, tuple[int, int]]:
        """The path, its tokens, and where in `spans` (index, token) it ends."""
        node, path, matched = self.root_node, [], 0
        index, at = 0, spans[0][1] if spans else 0
        while index < len(spans):
            child = node.children.get((spans[index][0], at))
            if child is None:
                break
            shared, index, at = _common(child.spans, spans, index, at)
            matched += shared
            if shared < len(child.key):
                path.append(self._split(child, shared))
                break
            path.append(child)
            node = child
        return path, matched, (index, at)

    def _cut(self, path: list[Node], cut: int) -> None:
        """Let a node of `path` end after `cut` tokens."""
        start = 0
        for position, node in enumerate(path):
            if start < cut < start + len(node.key):
                path.insert(position, self._split(node, cut - start))
                return
            start += len(node.key)

    def _add(self, parent: Node, spans: Spans) -> Node:
        node = Node(next(self._numbers), spans, parent)
        parent.children[spans[0][:2]] = node
        self.by_id[node.id] = node
        self.evictable += len(node.key)
        self.update_leaves(parent)
        self.update_leaves(node)
        return node

    def _split(self, node: Node, length: int) -> Node:
        """The new node that holds the first `length` tokens, above `node`."""
        upper_spans, lower_spans = _pieces(list(node.spans), [length])
        parent = node.parent
        assert parent is not None
        upper = Node(next(self._numbers), upper_spans, parent)
        upper.evicted, upper.backuped = node.evicted, node.backuped
        upper.lock_ref, upper.hit_count = node.lock_ref, node.hit_count
        upper.last_access_time = node.last_access_time
        parent.children[upper_spans[0][:2]] = upper
        upper.children[lower_spans[0][:2]] = node
        node.parent, node.spans, node.key = (
            upper,
            lower_spans,
            range(len(node.key) - length),
        )
        self.by_id[upper.id] = upper
        upper.kvflow.inherit(node.kvflow)
        self.writers.assign(upper, node.kvflow.writer)
        self.charge(upper)
        self.charge(node)
        self.rekey(node)
        return upper

    def remove(self, node: Node) -> None:
        """A node without children leaves the tree."""
        assert node.parent is not None
        assert not node.children, "children would be lost"
        self.evictable_device_leaves.discard(node)
        self.evictable_host_leaves.discard(node)
        del node.parent.children[node.spans[0][:2]]
        del self.by_id[node.id]
        for handle in list(node.kvflow.ends):
            self.detach(handle)
            self.prompt_gone(handle)
        self.writers.assign(node, None)
        node.evicted, node.backuped = True, False
        self.charge(node)
        self.update_leaves(node.parent)

    # What may leave which tier.

    def lock(self, node: Node) -> None:
        """Keep the node and all above it on the device."""
        for step in self.path_to_root(node):
            if not step.lock_ref:
                if not step.evicted:
                    self.evictable -= len(step.key)
                self.evictable_device_leaves.discard(step)
            step.lock_ref += 1

    def unlock(self, node: Node) -> None:
        for step in self.path_to_root(node):
            step.lock_ref -= 1
            if not step.lock_ref:
                if not step.evicted:
                    self.evictable += len(step.key)
                self.update_leaves(step)

    def leave_device(self, node: Node) -> None:
        """Its copy in host memory is what is left of it."""
        assert not node.lock_ref, "somebody needs it"
        assert node.backuped, "nothing would be left of it"
        node.evicted = True
        self.evictable -= len(node.key)
        self.update_leaves(node)
        if node.parent is not None:
            self.update_leaves(node.parent)

    def come_to_device(self, node: Node) -> None:
        node.evicted = False
        if not node.lock_ref:
            self.evictable += len(node.key)
        self.update_leaves(node)
        if node.parent is not None:
            self.update_leaves(node.parent)

    def update_leaves(self, node: Node) -> None:
        """Whether the node may be evicted from either tier has changed, perhaps."""
        if node is self.root_node:
            return
        host = node.evicted and node.backuped and not node.children
        device = (
            not node.evicted
            and not node.lock_ref
            and all(child.evicted for child in node.children.values())
        )
        if not host:
            self.evictable_host_leaves.discard(node)
        if not device:
            self.evictable_device_leaves.discard(node)
        if host:
            self.evictable_host_leaves.add(node)
        if device:
            self.evictable_device_leaves.add(node)
        self.charge(node)

    def nodes(self) -> Iterator[Node]:
        """Every node but the root, in no particular order."""
        return iter(self.by_id.values())


def _common(held: Spans, spans: Spans, index: int, at: int) -> tuple[int, int, int]:
    """Tokens that `held` shares with `spans` from (index, at) on, and where that ends."""
    shared = 0
    for text, start, stop in held:
        if index == len(spans):
            break
        wanted, _, end = spans[index]
        if wanted != text or start != at:
            break
        both = min(stop, end)
        shared += both - start
        if both < end:
            at = both
            continue
        index += 1
        at = spans[index][1] if index < len(spans) else 0
        if both < stop:
            break
    return shared, index, at


def _pieces(spans: list[Span], cuts: Sequence[int]) -> Iterator[Spans]:
    """`spans` cut after so many tokens each, ascending."""
    piece: list[Span] = []
    done = 0
    left = list(cuts)
    for text, begin, stop in spans:
        start = begin
        while left and done + stop - start >= left[0]:
            middle = start + left.pop(0) - done
            piece.append((text, start, middle))
            done += middle - start
            yield tuple(piece)
            piece, start = [], middle
        if start < stop:
            piece.append((text, start, stop))
            done += stop - start
    if piece:
        yield tuple(piece)
