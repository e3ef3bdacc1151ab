"""Where the fixed part of a function's prompt ends: said by the function, or learnt."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, Final

from kvflow_sdk.wire import FixedMark

__all__ = ["FIXED", "PrefixLearner", "declared"]

FIXED: Final = "kvflow_fixed"
"""Name of the ``s.var_scope`` that a fixed prompt ends with."""

MAX_AGENTS = 1024
"""Agents whose prompts are compared; the one called longest ago is forgotten."""
MAX_PREFIXES = 4
"""Fixed prompts of one agent."""
MIN_CHARS = 32
"""What two prompts have to share: less is chance, and not worth a page of KV."""
MAX_CHARS = 256 * 1024
"""Of a prompt: what lies behind is not compared."""


def declared(executor: Any) -> FixedMark | None:
    """What the function said with `FIXED`; `executor` is SGLang's StreamExecutor."""
    text = executor.variables.get(FIXED)
    # An integer while the scope is still open.
    if not isinstance(text, str) or not text:
        return None
    start = executor.text_.find(text)
    return None if start < 0 else FixedMark(message=0, chars=start + len(text))


class PrefixLearner:
    """The longest common beginning of an agent's prompts; safe in any thread.

    Two prompts that differ are the least evidence. A coincidence ("What is …") makes
    a prefix too long for a while; each further prompt can only shorten it. A prompt
    that shares less than half of a known prefix belongs to another one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[str, list[_Prefix]] = OrderedDict()

    def see(self, agent: str, prompt: str) -> None:
        """`agent` has begun with `prompt`."""
        prompt = prompt[:MAX_CHARS]
        with self._lock:
            prefixes = self._known.setdefault(agent, [])
            self._known.move_to_end(agent)
            if not any(prefix.takes(prompt) for prefix in prefixes):
                prefixes.append(_Prefix(prompt))
                del prefixes[:-MAX_PREFIXES]
            while len(self._known) > MAX_AGENTS:
                self._known.popitem(last=False)

    def mark(self, agent: str, prompt: str) -> FixedMark | None:
        """Where the fixed part of `prompt` ends; None while that is not known."""
        with self._lock:
            lengths = [
                len(prefix.text)
                for prefix in self._known.get(agent, ())
                if prefix.confirmed and prompt.startswith(prefix.text)
            ]
        return FixedMark(message=0, chars=max(lengths)) if lengths else None


class _Prefix:
    """What some prompts have begun with; of one prompt alone, all of it."""

    __slots__ = ("confirmed", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.confirmed = False

    def takes(self, prompt: str) -> bool:
        """Whether `prompt` is one of these; then it is learnt from."""
        if self.confirmed and prompt.startswith(self.text):
            return True
        shared = _shared(self.text, prompt)
        if shared < max(MIN_CHARS, len(self.text) // 2 if self.confirmed else 0):
            return False
        if prompt != self.text:
            self.text, self.confirmed = self.text[:shared], True
        return True


def _shared(left: str, right: str) -> int:
    """How many characters both begin with; by halving, which compares in C."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left.startswith(right[:middle]):
            low = middle
        else:
            high = middle - 1
    return low
