"""What kind of text makes a prompt drift.

`classify` looks at two prompts of one agent at the place where they part, and names
what stands there. Text in, a name out; the order of the checks is the order of how
sure they are: structure first (the same items in another order), then shapes that
nothing else has (a uuid, a date), then what only its surroundings tell (a name, text
that was retrieved).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum

from .reorder import same_items, same_json, same_tools
from .spans import Difference

__all__ = ["DriftKind", "classify"]


class DriftKind(Enum):
    """What differs between two calls of one agent."""

    TIMESTAMP = "timestamp"
    DATE = "date"
    UUID = "uuid"
    """A uuid, a hash, a session id: an identifier that is new every time."""
    COUNTER = "counter"
    REORDERED_TOOLS = "reordered tools"
    REORDERED_KEYS = "reordered JSON keys"
    REORDERED_ITEMS = "reordered items"
    RETRIEVED_TEXT = "retrieved text"
    USER_NAME = "user name"
    OTHER = "other text"

    @property
    def advice(self) -> str:
        """What to do about it, one sentence."""
        return _ADVICE[self]

    @property
    def is_order(self) -> bool:
        """The content is the same, in another order."""
        return self.name.startswith("REORDERED")


_ADVICE = {
    DriftKind.TIMESTAMP: "Put the time at the end of the prompt, in the last user "
    "message, or give the model a tool that tells it.",
    DriftKind.DATE: "Put the date behind the fixed text; at the head it makes every "
    "prompt new once a day.",
    DriftKind.UUID: "Leave the identifier out of the prompt (send it as metadata), or "
    "put it at the end.",
    DriftKind.COUNTER: "Put the number behind the fixed text, or leave it out.",
    DriftKind.REORDERED_TOOLS: "Send the tools in the same order every time: sort them "
    "by name where they are collected.",
    DriftKind.REORDERED_KEYS: "Serialise with one order of keys: "
    "json.dumps(…, sort_keys=True).",
    DriftKind.REORDERED_ITEMS: "Keep the items in one order: sort them before they go "
    "into the prompt.",
    DriftKind.RETRIEVED_TEXT: "Put what was retrieved behind the instructions, in the "
    "user message.",
    DriftKind.USER_NAME: "Put what concerns one user behind what concerns all of them.",
    DriftKind.OTHER: "Move it behind the text that stays the same.",
}

_MONTH = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|"
    r"Aug(?:ust)?|Sept?(?:ember)?|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)"
)
_DAY = r"(?:Mon|Tues?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?"
_CLOCK = r"\d{1,2}:\d\d(?::\d\d(?:[.,]\d+)?)?(?:\s?[AaPp]\.?[Mm]\b\.?)?"
_ZONE = r"(?:\s?(?:Z|UTC|GMT|[A-Z]{2,4}T|[+-]\d\d:?\d\d)\b)?"
_NUMERIC = (
    r"(?:\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}/\d{1,2}/\d{2,4}|\d{1,2}\.\d{1,2}\.\d{4})"
)
_WRITTEN = (
    rf"(?:{_DAY},?\s+)?(?:{_MONTH}\.?\s+\d{{1,2}}(?:st|nd|rd|th)?(?:,?\s+\d{{4}})?|"
    rf"\d{{1,2}}(?:st|nd|rd|th)?(?:\s+of)?\s+{_MONTH}\.?(?:,?\s+\d{{4}})?)"
)
_CALENDAR = rf"(?:{_NUMERIC}|{_WRITTEN})"

_Shape = tuple[DriftKind, re.Pattern[str]]
_SHAPES: tuple[_Shape, ...] = tuple(
    (kind, re.compile(pattern, flags))
    for kind, pattern, flags in (
        (
            DriftKind.UUID,
            r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b",
            re.IGNORECASE,
        ),
        (
            DriftKind.TIMESTAMP,
            rf"{_CALENDAR}(?:[T,]?\s*(?:at\s+)?){_CLOCK}{_ZONE}",
            0,
        ),
        (
            DriftKind.TIMESTAMP,
            rf"{_DAY}\s+{_MONTH}\s+\d{{1,2}}\s+{_CLOCK}(?:\s+[A-Z]+)?\s+\d{{4}}",
            0,
        ),
        (DriftKind.TIMESTAMP, rf"\b{_CLOCK}{_ZONE}(?:\s*,?\s*{_CALENDAR})?", 0),
        (DriftKind.TIMESTAMP, r"\b\d{8}T\d{4,6}Z?\b", 0),
        (DriftKind.TIMESTAMP, r"(?<![\d.])1[4-9]\d{8}(?:\d{3}|\.\d+)?\b", 0),
        (DriftKind.DATE, rf"\b{_CALENDAR}", 0),
        (DriftKind.DATE, rf"\b{_DAY}\b", 0),
        (DriftKind.DATE, rf"\b{_MONTH}\.?\s+\d{{4}}\b", 0),
        (
            DriftKind.UUID,
            r"(?<![\w-])(?=[\w-]*\d)(?=[\w-]*[A-Za-z])[\w-]{8,}(?![\w-])",
            0,
        ),
    )
)
_INTEGER = re.compile(r"(?<![\w.,])[#№]?(\d{1,9})(?:st|nd|rd|th)?(?!\w|[.,]\d)")
_COUNTED = re.compile(
    r"(?:#|№|\b(?:no\.?|number|turn|step|request|call|attempt|round|iteration|message|"
    r"page|count|counter|total|session|seq|index|id|day|version|of|remaining|left|so "
    r"far|asked|done|used)\b)\W*\w*\W*$",
    re.IGNORECASE,
)

_NAMED = re.compile(
    r"(?:(?:\b|_)(?:user(?:name|_name)?|customer|client|name|account|member|patient|student|"
    r"employee|author|owner|sender|recipient|email|e-mail|hello|hi|hey|dear|welcome|"
    r"talking (?:to|with)|speaking (?:to|with)|chatting with|assist(?:ing|ant (?:of|"
    r"to|for))?|help(?:ing)?|serv(?:e|ing)|on behalf of|logged in as|signed in as|"
    r"report(?:s|ing)? to|mr|mrs|ms|dr)\b\W*(?:\b(?:is|as|of|for|the|named|called|to)"
    r"\b\W*)*)$",
    re.IGNORECASE,
)
_NAME = re.compile(
    r"[^\W\d_][\w'\u2019.-]*@[\w.-]+|@\w+|[^\W\d_][\w'\u2019-]*(?:\s[^\W\d_][\w'\u2019-]*){0,3}"
)
_RETRIEVED = re.compile(
    r"\b(?:context|documents?|docs|retrieved|search results?|results?|passages?|"
    r"sources?|knowledge|memor(?:y|ies)|excerpts?|snippets?|articles?|evidence|"
    r"references?|chunks?|background|notes?|history)\b",
    re.IGNORECASE,
)
_RETRIEVED_WORDS = 12
_CUE_CHARS = 240


def classify(difference: Difference) -> DriftKind:
    """The kind of the first difference between two prompts."""
    for kind, holds in _STRUCTURES:
        if holds(difference):
            return kind
    for kind, pattern in _SHAPES:
        if _both_have(pattern, difference):
            return kind
    if _is_counter(difference):
        return DriftKind.COUNTER
    if _is_name(difference):
        return DriftKind.USER_NAME
    if _is_retrieved(difference):
        return DriftKind.RETRIEVED_TEXT
    return DriftKind.OTHER


_STRUCTURES: tuple[tuple[DriftKind, Callable[[Difference], bool]], ...] = (
    (DriftKind.REORDERED_KEYS, same_json),
    (DriftKind.REORDERED_TOOLS, same_tools),
    (DriftKind.REORDERED_ITEMS, same_items),
)


def _both_have(pattern: re.Pattern[str], difference: Difference) -> bool:
    """Whether a match covers the difference in both texts, from the same start."""
    old = difference.match_at(pattern, difference.old)
    new = difference.match_at(pattern, difference.new)
    return old is not None and new is not None and old.start() == new.start()


def _is_counter(difference: Difference) -> bool:
    old = difference.match_at(_INTEGER, difference.old)
    new = difference.match_at(_INTEGER, difference.new)
    if old is None or new is None or old.start() != new.start():
        return False
    grown = int(new.group(1)) - int(old.group(1))
    before = difference.old[max(0, old.start() - _CUE_CHARS) : old.start()]
    return (
        0 < abs(grown) <= 100 or _COUNTED.search(before + old.group()[:1]) is not None
    )


def _is_name(difference: Difference) -> bool:
    start = difference.word_start
    cue = difference.old[max(0, start - _CUE_CHARS) : start]
    if _NAMED.search(cue) is None:
        return False
    return all(
        (match := _NAME.match(text, start)) is not None and match.end() > difference.at
        for text in (difference.old, difference.new)
    )


def _is_retrieved(difference: Difference) -> bool:
    old, new = difference.changed
    words = max(len(old.split()), len(new.split()))
    start = difference.word_start
    cue = difference.old[max(0, start - _CUE_CHARS) : start]
    if words >= _RETRIEVED_WORDS:
        return True
    return words >= 3 and _RETRIEVED.search(cue) is not None
