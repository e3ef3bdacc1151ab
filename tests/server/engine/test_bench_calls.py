"""What a call costs the tree, timed on SGLang's real caches."""

from __future__ import annotations

import pytest

from kvflow_server.bench import calls
from kvflow_server.engine.config import EngineConfig


@pytest.mark.parametrize("core", ["kvflow", "python", "rust"])
def test_calls_find_their_prompt_and_leave_what_they_add(core: str) -> None:
    fixed = 2 * EngineConfig().prefetch.piece_tokens
    one = calls._Calls(core, fixed, fixed + 3 * (calls.SUFFIX + calls.ANSWER))
    assert [one.call(turn) > 0 for turn in range(3)] == [True] * 3
    held = one._cache.total_size()
    assert (held[0] if isinstance(held, tuple) else held) == fixed + 3 * (
        calls.SUFFIX + calls.ANSWER
    )
    if core == "kvflow":
        prompt = next(iter(one._cache.prompts.handles("client", "agent 0")))
        assert prompt.tokens == fixed
        assert len(list(one._cache.tree_core.path_to_root(prompt.node))) == 2


def test_the_cores_take_turns() -> None:
    spreads = calls.time_calls(("kvflow", "rust"), 64, 4)
    assert {core: spread.n for core, spread in spreads.items()} == {
        "kvflow": 4,
        "rust": 4,
    }
