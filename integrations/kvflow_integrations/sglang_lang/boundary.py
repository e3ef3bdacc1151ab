"""Where the fixed part of a function's prompt ends, if the function says it."""

from __future__ import annotations

from typing import Any, Final

from kvflow_sdk.wire import FixedMark

__all__ = ["FIXED", "declared"]

FIXED: Final = "kvflow_fixed"
"""Name of the ``s.var_scope`` that a fixed prompt ends with."""


def declared(executor: Any) -> FixedMark | None:
    """What the function said with `FIXED`; `executor` is SGLang's StreamExecutor."""
    text = executor.variables.get(FIXED)
    # An integer while the scope is still open.
    if not isinstance(text, str) or not text:
        return None
    start = executor.text_.find(text)
    return None if start < 0 else FixedMark(message=0, chars=start + len(text))
