"""Which agents' prompts drift, where, why, and what it costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from .kinds import DriftKind, classify
from .requests import PromptText, RecordedRequest
from .shared import SharedText, shared_texts
from .spans import (
    Difference,
    common_prefix,
    differences,
    most_shared,
    shared_after,
)

__all__ = ["AgentReport", "Drift", "DriftReport", "Tokens", "analyse"]

MIN_SHARED_CHARS = 120
"""Text after a difference that is the same again makes it drift; less is a prompt
that simply ends differently. About 30 tokens."""
MAX_AGENTS = 256
_SAME_AGENT = 0.5
"""Calls without a name belong to one agent if this share of the shorter is shared."""


class Tokens:
    """Counts tokens: with a tokenizer's `encode`, else four characters are one."""

    def __init__(self, encode: Callable[[str], Sequence[int]] | None = None) -> None:
        self._encode = encode
        self.exact = encode is not None

    def count(self, text: str) -> int:
        return len(text) // 4 if self._encode is None else len(self._encode(text))

    def before(self, difference: Difference) -> int:
        """Leading tokens that both texts have. Not the tokens of the common text: its
        last ones may be part of a longer token in each."""
        if self._encode is None:
            return difference.at // 4
        old, new = self._encode(difference.old), self._encode(difference.new)
        pairs = enumerate(zip(old, new, strict=False))
        return next((n for n, (a, b) in pairs if a != b), min(len(old), len(new)))


@dataclass(slots=True)
class Drift:
    """One thing that makes an agent's prompt new from call to call."""

    kind: DriftKind
    part: str
    """Where it stands: ``message 0 (system)``, ``tools``, …"""
    chars: int
    """Its character in that part, in the first pair of calls that showed it."""
    token: int
    """Its token in the prompt: so many tokens are the same before it."""
    old: str
    new: str
    """The text around it, before and after. Never leaves this process by itself."""
    calls: int = 0
    recomputed: int = 0
    """Tokens computed again because of it, over all `calls`."""


@dataclass(slots=True)
class AgentReport:
    """What was seen of one agent."""

    name: str
    calls: int = 0
    fixed_tokens: int = 0
    """Length of the beginning that all calls share."""
    prompt_tokens: int = 0
    """Mean over the calls."""
    savable_tokens: int = 0
    """Tokens per call that would be found in the cache, too, if what drifts stood
    behind what stays."""
    drifts: list[Drift] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class DriftReport:
    agents: list[AgentReport]
    exact_tokens: bool
    """Counted with a tokenizer; otherwise four characters are one token."""
    shared: list[SharedText] = field(default_factory=list)
    """What agents have in common behind where their prompts part."""

    @property
    def drifting(self) -> list[AgentReport]:
        return [agent for agent in self.agents if agent.drifts]


def analyse(
    requests: Iterable[RecordedRequest],
    encode: Callable[[str], Sequence[int]] | None = None,
) -> DriftReport:
    """Compare every agent's consecutive calls.

    `encode` gives the token ids of a text, without special tokens. Calls that name no
    agent are grouped by the text they share.
    """
    tokens = Tokens(encode)
    groups: dict[str, _Group] = {}
    for request in requests:
        prompt = request.prompt()
        name = request.agent if request.agent is not None else _find(groups, prompt)
        if name not in groups and len(groups) >= MAX_AGENTS:
            continue
        groups.setdefault(name, _Group(AgentReport(name), tokens)).add(prompt)
    last = {name: group.last.text for name, group in groups.items() if group.last}
    return DriftReport(
        [group.finish() for group in groups.values()],
        tokens.exact,
        shared_texts(last, tokens.count),
    )


class _Group:
    """The calls of one agent; keeps the latest prompt and the shared beginning."""

    def __init__(self, report: AgentReport, tokens: Tokens) -> None:
        self.report = report
        self._tokens = tokens
        self.last: PromptText | None = None
        self._fixed = ""
        self._total = 0
        self._savable = 0

    def add(self, prompt: PromptText) -> None:
        self.report.calls += 1
        self._total += self._tokens.count(prompt.text)
        if self.last is None:
            self._fixed = prompt.text
        else:
            self._fixed = self._fixed[: common_prefix(self._fixed, prompt.text)]
            self._compare(self.last, prompt)
        self.last = prompt

    def finish(self) -> AgentReport:
        self.report.prompt_tokens = self._total // self.report.calls
        if self.report.calls > 1:
            self.report.fixed_tokens = self._tokens.count(self._fixed)
            self.report.savable_tokens = self._savable // (self.report.calls - 1)
        return self.report

    def _compare(self, old: PromptText, new: PromptText) -> None:
        reordered: set[str] = set()
        first = True
        for difference in differences(old.text, new.text):
            shared = difference.shared
            if shared < MIN_SHARED_CHARS:
                return
            part, chars = old.place(difference.at)
            if part in reordered:
                # The next item of the same list, out of its place like the first.
                continue
            # Text after the first difference is lost already; a second one behind it
            # is said as well, and costs nothing more.
            lost = self._tokens.count(new.text[-shared:]) if first else 0
            first = False
            self._savable += lost
            drift = self._record(difference, part, chars)
            drift.calls += 1
            drift.recomputed += lost
            if drift.kind.is_order:
                reordered.add(part)

    def _record(self, difference: Difference, part: str, chars: int) -> Drift:
        kind = classify(difference)
        for known in self.report.drifts:
            if (known.kind, known.part) == (kind, part):
                return known
        drift = Drift(
            kind=kind,
            part=part,
            chars=chars,
            token=self._tokens.before(difference),
            old=difference.around(difference.old),
            new=difference.around(difference.new),
        )
        self.report.drifts.append(drift)
        return drift


def _find(groups: dict[str, _Group], prompt: PromptText) -> str:
    """The group that shares most with `prompt`, or a new one's name."""
    best, share = None, _SAME_AGENT
    for name, group in groups.items():
        if group.last is None:
            continue
        old, new = group.last.text, prompt.text
        at = common_prefix(old, new)
        shorter = max(1, min(len(old), len(new)))
        found = at / shorter
        if found < share and at + most_shared(old, new, at) >= share * shorter:
            found = (at + shared_after(old, new, at)) / shorter
        if found >= share:
            best, share = name, found
    return best if best is not None else f"agent {len(groups) + 1}"
