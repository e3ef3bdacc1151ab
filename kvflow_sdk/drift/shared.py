"""Text that several agents' prompts share, and that a cache cannot share.

Agents of one application often have the same preamble or the same tools, each behind a
line of its own. A prefix cache finds nothing of it: what is common must come first, in
one order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce

from .spans import common_prefix

__all__ = ["SharedText", "shared_texts"]

MIN_CHARS = 80
"""Of a line, to be taken for the same text and not for a phrase."""
MIN_TOKENS = 32
MAX_FOUND = 8


@dataclass(frozen=True, slots=True)
class SharedText:
    """Lines that stand in the prompts of all `agents`, behind where these part."""

    agents: tuple[str, ...]
    tokens: int
    """That each agent but one would find in the cache if they stood first."""
    beginning: str
    """Of the first such line. Never leaves this process by itself."""


def shared_texts(
    prompts: Mapping[str, str], count: Callable[[str], int]
) -> list[SharedText]:
    """What the agents of `prompts`, name -> prompt, share in different places or in
    different order; the largest first. `count` gives the tokens of a text."""
    users: dict[str, dict[str, int]] = {}
    for agent, prompt in prompts.items():
        at = 0
        for line in prompt.splitlines(keepends=True):
            if len(line.strip()) >= MIN_CHARS:
                users.setdefault(line.strip(), {}).setdefault(agent, at)
            at += len(line)
    groups: dict[tuple[str, ...], list[str]] = {}
    for line, where in users.items():
        if len(where) > 1:
            groups.setdefault(tuple(where), []).append(line)
    found = []
    for agents, lines in groups.items():
        first = _shared_beginning([prompts[agent] for agent in agents])
        behind = [line for line in lines if users[line][agents[0]] >= first]
        tokens = sum(map(count, behind))
        if tokens >= MIN_TOKENS:
            found.append(SharedText(agents, tokens, behind[0][:60]))
    return sorted(found, key=lambda text: -text.tokens)[:MAX_FOUND]


def _shared_beginning(prompts: list[str]) -> int:
    """Characters that all of them begin with."""
    return reduce(
        lambda length, prompt: common_prefix(prompts[0][:length], prompt),
        prompts[1:],
        len(prompts[0]),
    )
