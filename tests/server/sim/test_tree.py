"""The simulator's radix tree over spans, against the same over single tokens."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvflow_server.sim.tree import Node, Span, Spans, Tree, tokens_in, without_last

Token = tuple[object, int]


def _spelled(spans: Spans) -> list[Token]:
    return [(text, at) for text, start, stop in spans for at in range(start, stop)]


@st.composite
def _prompts(draw: st.DrawFn) -> Spans:
    """A few texts, read from their beginnings, so that prompts share prefixes."""
    spans: list[Span] = []
    for _ in range(draw(st.integers(1, 3))):
        text = draw(st.integers(0, 3))
        if spans and spans[-1][0] == text:
            continue
        spans.append((text, 0, draw(st.integers(1, 6))))
    return tuple(spans)


def _held(node: Node) -> Spans:
    """What the path from the root to the node holds."""
    above = _held(node.parent) if node.parent is not None else ()
    return above + node.spans


@given(st.lists(st.tuples(_prompts(), st.sets(st.integers(1, 12))), max_size=12))
def test_the_tree_knows_what_was_inserted_and_ends_nodes_at_every_cut(
    inserts: list[tuple[Spans, set[int]]],
) -> None:
    tree = Tree()
    known: list[list[Token]] = []
    for spans, some in inserts:
        tokens = _spelled(spans)
        cuts = sorted(cut for cut in some if cut < len(tokens))
        before = max((_shared(tokens, other) for other in known), default=0)
        path, found = tree.insert(spans, cuts)
        known.append(tokens)
        assert found == before
        assert _spelled(_held(path[-1])) == tokens
        ends = [tree.depth_of(node) for node in path]
        assert set(cuts) <= set(ends)
        assert ends == sorted(set(ends))
    for tokens in known:
        assert sum(len(n.key) for n in tree.match(_joined(tokens))) == len(tokens)
    distinct = {tuple(t[: n + 1]) for t in known for n in range(len(t))}
    assert sum(len(node.key) for node in tree.nodes()) == len(distinct)
    assert tree.evictable == len(distinct)
    tree.evictable_device_leaves.check_integrity()


def _shared(a: list[Token], b: list[Token]) -> int:
    both = min(len(a), len(b))
    return next((n for n in range(both) if a[n] != b[n]), both)


def _joined(tokens: list[Token]) -> Spans:
    spans: list[Span] = []
    for text, at in tokens:
        if spans and spans[-1][0] == text and spans[-1][2] == at:
            spans[-1] = (text, spans[-1][1], at + 1)
        else:
            spans.append((text, at, at + 1))
    return tuple(spans)


def test_a_node_that_is_matched_in_part_is_split() -> None:
    tree = Tree()
    tree.insert((("a", 0, 10),), ())
    path = tree.match((("a", 0, 4), ("b", 0, 2)))
    assert [node.spans for node in path] == [(("a", 0, 4),)]
    assert [node.spans for node in path[0].children.values()] == [(("a", 4, 10),)]


def test_what_is_locked_is_no_leaf_to_evict_and_not_evictable() -> None:
    tree = Tree()
    (node,), _ = tree.insert((("a", 0, 10),), ())
    tree.lock(node)
    assert not tree.evictable_device_leaves
    assert tree.evictable == 0
    tree.unlock(node)
    assert node in tree.evictable_device_leaves
    assert tree.evictable == 10


def test_without_last_leaves_no_empty_span() -> None:
    assert without_last((("a", 0, 5), ("b", 0, 1))) == (("a", 0, 5),)
    assert tokens_in(without_last((("a", 0, 5),))) == 4
