"""Warns, once for each agent, of what makes its prompts new from call to call.

The first calls of every agent are compared, in this process and for this process, by the
client's background thread; where they part too early, closely, in a thread of its own.
What is said goes to Python's `warnings` and nowhere else.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .kinds import classify
from .report import MIN_SHARED_CHARS, Tokens
from .requests import PromptText, RecordedRequest
from .spans import Difference, common_prefix

__all__ = ["DriftWarning", "DriftWatch"]

CALLS = 8
"""Of each agent, from its first one on."""
LOOKS = 3
"""Pairs of calls that are looked at closely before an agent is left alone."""
MAX_AGENTS = 256
MAX_CHARS = 1 << 17
"""Of a prompt; longer ones are not compared."""
_SHARE = 0.25
"""Of the prompt that must be the same again behind the difference to speak of drift."""


class DriftWarning(UserWarning):
    """An agent's prompt changes in the midst of what stays the same."""


@dataclass(slots=True)
class _Agent:
    last: PromptText | None = None
    calls: int = 0
    looks: int = 0
    done: bool = False


class DriftWatch:
    """Compares consecutive prompts of each agent. Safe in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._agents: OrderedDict[str, _Agent] = OrderedDict()
        self._tokens = Tokens()

    def wants(self, agent: str) -> bool:
        """Whether another call of `agent` would be looked at."""
        known = self._agents.get(agent)
        return known is None or not known.done

    def see(self, agent: str, body: Mapping[str, Any]) -> threading.Thread | None:
        """One call of `agent` is made with this request.

        The thread that looks at it closely, if one does. What the body lacks to be a
        request is passed over.
        """
        if not self.wants(agent):
            return None
        prompt = RecordedRequest(body).prompt()
        pair = self._pair(agent, prompt)
        if pair is None:
            return None
        thread = threading.Thread(
            target=self._look, args=(agent, *pair), name="kvflow-drift", daemon=True
        )
        thread.start()
        return thread

    def _pair(
        self, agent: str, prompt: PromptText
    ) -> tuple[PromptText, PromptText, int] | None:
        """The prompt before and this one where they part early, and where."""
        with self._lock:
            known = self._agents.setdefault(agent, _Agent())
            while len(self._agents) > MAX_AGENTS:
                self._agents.popitem(last=False)
            known.calls += 1
            last, known.last = known.last, prompt
            known.done = known.calls >= CALLS or len(prompt.text) > MAX_CHARS
            if last is None:
                return None
            at = common_prefix(last.text, prompt.text)
            rest = min(len(last.text), len(prompt.text)) - at
            parts = rest >= max(MIN_SHARED_CHARS, _SHARE * len(prompt.text))
            if parts:
                known.looks += 1
                known.done |= known.looks >= LOOKS
            if known.done:
                known.last = None
            return (last, prompt, at) if parts else None

    def _look(self, agent: str, old: PromptText, new: PromptText, at: int) -> None:
        difference = Difference(old.text, new.text, at)
        shared = difference.shared
        if shared < max(MIN_SHARED_CHARS, _SHARE * len(new.text)):
            return
        with self._lock:
            known = self._agents.get(agent)
            if known is None or known.looks > LOOKS:
                return
            known.done, known.looks, known.last = True, LOOKS + 1, None
        kind = classify(difference)
        part, chars = old.place(at)
        tokens = self._tokens.count(new.text[-shared:])
        text = (
            f"kvflow: the prompt of agent {agent!r} is new in every call: {kind.value} "
            f"in {part} at character {chars:,}, {difference.around(old.text)!r} and then "
            f"{difference.around(new.text)!r}. About {tokens:,} tokens behind it are "
            f"computed again each time. {kind.advice} (`kvflow lint` shows more; "
            "KVFLOW_DRIFT_WARNINGS=0 turns this off.)"
        )
        # ``-W error`` must not end a thread that nobody waits for.
        with contextlib.suppress(DriftWarning):
            warnings.warn(text, DriftWarning, stacklevel=1)
