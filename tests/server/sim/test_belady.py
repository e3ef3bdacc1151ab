"""The offline optimum against all that could be done, and against what policies do."""

from __future__ import annotations

from functools import cache
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvflow_server.engine.config import EngineConfig, Mode
from kvflow_server.engine.trace import RecordedCall, TraceWriter
from kvflow_server.sim.belady import Use, at_once, belady, hit_rates, uses_of
from kvflow_server.sim.trace import Prompts, open_trace

Path_ = tuple[int, ...]
"""A prompt's blocks by the branch taken at each; its first n name the n-th block."""
SIZES = (2, 1, 2)
"""Tokens of a block, by its depth."""


def _use(path: Path_, answer: int) -> Use:
    sizes = SIZES[: len(path)]
    wanted = [*sizes[:-1], sizes[-1] - 1]
    blocks = [
        (path[: depth + 1], want, size)
        for depth, (want, size) in enumerate(zip(wanted, sizes, strict=True))
    ]
    return Use(blocks, sum(sizes), sum(sizes) + answer)


def _brute(uses: list[Use], pool: int, *, closed: bool) -> int:
    """The most hits of all that a policy can keep, token by token; with `closed` never
    a token without all before it."""
    needs = [
        {(b, at) for b, wanted, _ in use.blocks for at in range(wanted)} for use in uses
    ]
    there = [{(b, at) for b, _, n in use.blocks for at in range(n)} for use in uses]

    def allowed(tokens: frozenset[tuple[Path_, int]]) -> bool:
        return not closed or (
            all(
                (block, before) in tokens
                for block, at in tokens
                for before in range(at)
            )
            and all(
                (block[:depth], at) in tokens
                for block, _ in tokens
                for depth in range(1, len(block))
                for at in range(SIZES[depth - 1])
            )
        )

    @cache
    def best(now: int, held: frozenset[tuple[Path_, int]]) -> int:
        if now == len(uses):
            return 0
        hits = len(held & needs[now])
        useful = set().union(*there[now + 1 :])
        others = sorted((held - there[now]) & useful)
        room = min(pool - uses[now].tokens, len(others))
        return hits + max(
            (
                best(now + 1, kept)
                for count in range(room + 1)
                for rest in combinations(others, count)
                if allowed(kept := frozenset(rest) | frozenset(there[now]))
            ),
            default=0,
        )

    return best(0, frozenset())


_paths = st.lists(st.integers(0, 1), min_size=1, max_size=3).map(tuple)
_uses = st.lists(st.builds(_use, _paths, st.integers(0, 2)), min_size=1, max_size=6)


@given(uses=_uses, room=st.integers(0, 5))
@settings(deadline=None, max_examples=150)
def test_no_choice_of_tokens_has_more_hits_and_some_has_as_many(
    uses: list[Use], room: int
) -> None:
    pool = max(use.tokens for use in uses) + room
    assert belady(uses, pool) == _brute(uses, pool, closed=False)


@given(uses=_uses, room=st.integers(0, 5))
@settings(deadline=None, max_examples=150)
def test_keeping_only_whole_prefixes_costs_a_token_a_call_at_most(
    uses: list[Use], room: int
) -> None:
    pool = max(use.tokens for use in uses) + room
    closed = _brute(uses, pool, closed=True)
    assert closed <= belady(uses, pool) <= closed + len(uses)


def test_what_is_needed_last_goes_first() -> None:
    a, b, c = (_use((n, 0, 0), 0) for n in range(3))
    assert belady([a, b, c, a, b, c], 10) == 4 + 1 + 4


def test_a_block_is_kept_in_part() -> None:
    a, b = _use((0, 0, 0), 0), _use((1, 0, 0), 0)
    assert belady([a, b, a], 8) == 3


def test_an_answer_takes_its_room() -> None:
    a, b = _use((0, 0, 0), 0), _use((1, 0, 0), 3)
    assert belady([a, b, a], 8) == 0


def test_a_call_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="call 0: 5 tokens in a pool of 4"):
        belady([_use((0, 0, 0), 0)], 4)


# Against policies, on traces.


@st.composite
def _calls(draw: st.DrawFn) -> list[RecordedCall]:
    """Prompts that share prefixes, some of which go on from an earlier answer."""
    calls: list[RecordedCall] = []
    texts = [[1], [2], [1, 3], [1, 4], [2, 5, 6]]
    for number in range(draw(st.integers(1, 25))):
        text = draw(st.sampled_from(texts))
        prompt = 4 * len(text) - draw(st.integers(0, 3))
        output = draw(st.integers(0, 9))
        blocks = list(text) if not prompt % 4 else [*text[:-1], 1000 + 4 * number]
        answer = bool(output) and draw(st.booleans())
        if answer:
            more = -(-(prompt + output) // 4) - len(blocks)
            blocks[-1] = 2000 + 100 * number
            blocks += range(2001 + 100 * number, 2001 + 100 * number + more)
            if draw(st.booleans()):
                texts.append(blocks[: (prompt + output) // 4] or blocks)
        calls.append(
            RecordedCall(
                t=float(number),
                prompt=prompt,
                output=output,
                blocks=blocks,
                answer=answer,
            )
        )
    return calls


def _trace(path: Path, calls: list[RecordedCall]) -> Prompts:
    writer = TraceWriter(path, block=4, source="test")
    writer.write(calls)
    writer.close()
    return open_trace(path)


@given(calls=_calls(), pool=st.integers(25, 80))
@settings(deadline=None, max_examples=150)
def test_no_policy_has_more_hits_than_the_optimum(
    tmp_path_factory: pytest.TempPathFactory, calls: list[RecordedCall], pool: int
) -> None:
    trace = _trace(tmp_path_factory.mktemp("trace") / "t.jsonl", calls)
    uses = [use for use in uses_of(trace) if use.tokens <= pool]
    most = belady(uses, pool)
    stock = at_once(trace, pool, None)
    assert stock <= most
    for mode in Mode:
        assert at_once(trace, pool, EngineConfig(mode=mode)) == stock, mode


def test_a_pool_that_holds_everything_leaves_nothing_to_the_optimum(
    tmp_path: Path,
) -> None:
    calls = [
        RecordedCall(t=float(n), prompt=8, output=2, blocks=[n % 3, 10 + n % 3])
        for n in range(9)
    ]
    trace = _trace(tmp_path / "t.jsonl", calls)
    (rate,) = hit_rates(trace.path, [1000])
    assert rate.lru == rate.kvflow == rate.belady == 6 * 7
    assert rate.fetched_over_optimum == 1


def test_calls_that_do_not_fit_are_left_out_and_counted(tmp_path: Path) -> None:
    calls = [
        RecordedCall(t=0.0, prompt=8, output=2, blocks=[1, 2]),
        RecordedCall(t=0.0, prompt=40, output=2, blocks=list(range(3, 13))),
    ]
    (rate,) = hit_rates(_trace(tmp_path / "t.jsonl", calls).path, [20])
    assert (rate.calls, rate.too_long, rate.tokens) == (1, 1, 8)
