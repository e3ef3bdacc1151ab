"""Where the first variable of a LangChain prompt template stands.

A `ChatPromptTemplate` says by itself what is fixed: all that it writes before its first
variable. Whenever one is filled in by a tracked agent, also as ``prompt | llm`` in a
node, what stands before is remembered, and a call of that agent whose messages begin so
is marked there. Nothing is said of a call that does not begin so.

A partial variable with a given text is text; one that is computed at every call, as the
time often is, is a variable.
"""

from __future__ import annotations

import contextlib
import functools
import string
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvflow_integrations.adapter import Patches, SharedPatches
from kvflow_sdk.context import current
from kvflow_sdk.wire import FixedMark

__all__ = ["Beginning", "beginning_of", "mark_of", "patches"]

MAX_AGENTS = 1024
MAX_BEGINNINGS = 8
"""Of one agent, the latest."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """What a template writes before its first variable."""

    messages: tuple[str, ...]
    """Texts of the messages without any variable."""
    start: str
    """Of the message after them."""

    def mark(self, messages: Sequence[Any]) -> FixedMark | None:
        """Where it ends in these messages of a request; None if they begin otherwise."""
        texts = [_text(message) for message in messages[: len(self.messages) + 1]]
        whole = len(self.messages)
        if tuple(texts[:whole]) != self.messages:
            return None
        if self.start:
            if len(texts) <= whole or not (texts[whole] or "").startswith(self.start):
                return None
            return FixedMark(message=whole, chars=len(self.start))
        if not whole:
            return None
        return FixedMark(message=whole - 1, chars=len(self.messages[-1]))


def beginning_of(template: Any) -> Beginning | None:
    """Of a `ChatPromptTemplate`; None if it begins with a variable."""
    texts: list[str] = []
    start = ""
    for message in template.messages:
        text, ends = _literal(message, template.partial_variables)
        if not ends:
            start = text
            break
        texts.append(text)
    return Beginning(tuple(texts), start) if texts or start else None


def mark_of(agent: str, body: object) -> FixedMark | None:
    """Where the fixed part of a chat request of `agent` ends, if a template said so."""
    with _lock:
        known = list(_beginnings.get(agent, ()))
    messages = body.get("messages") if known and isinstance(body, Mapping) else None
    if not isinstance(messages, Sequence):
        return None
    # The latest first: it is most likely this call's.
    marks = (beginning.mark(messages) for beginning in reversed(known))
    return next((mark for mark in marks if mark is not None), None)


_lock = threading.Lock()
_beginnings: OrderedDict[str, OrderedDict[Beginning, None]] = OrderedDict()
"""Agent -> what its templates begin with, the latest last."""


def _remember(template: Any) -> None:
    call = current()
    if call is None:
        return
    beginning = beginning_of(template)
    if beginning is None:
        return
    with _lock:
        known = _beginnings.setdefault(call.agent, OrderedDict())
        _beginnings.move_to_end(call.agent)
        known[beginning] = None
        known.move_to_end(beginning)
        if len(known) > MAX_BEGINNINGS:
            known.popitem(last=False)
        if len(_beginnings) > MAX_AGENTS:
            _beginnings.popitem(last=False)


def _literal(message: Any, partial: Mapping[str, Any]) -> tuple[str, bool]:
    """The text of one message before its first variable, and whether that is all."""
    prompt = getattr(message, "prompt", None)
    if prompt is None:
        # A message as it is, or a placeholder for some.
        content = getattr(message, "content", None)
        return (content, True) if isinstance(content, str) else ("", False)
    if not isinstance(getattr(prompt, "template", None), str):
        return "", False
    texts = {
        name: value
        for name, value in {**partial, **prompt.partial_variables}.items()
        if isinstance(value, str)
    }
    if prompt.template_format != "f-string":
        # Jinja and mustache: both write whatever they do in double braces or {%.
        ends = [prompt.template.find(mark) for mark in ("{{", "{%", "{#")]
        first = min((end for end in ends if end >= 0), default=-1)
        text = prompt.template if first < 0 else prompt.template[:first]
        return text, first < 0
    return _formatted(prompt.template, texts)


def _formatted(template: str, texts: Mapping[str, str]) -> tuple[str, bool]:
    written = ""
    for literal, name, spec, conversion in string.Formatter().parse(template):
        written += literal
        if name is None:
            continue
        if name not in texts or spec or conversion:
            return written, False
        written += texts[name]
    return written, True


def _text(message: Any) -> str | None:
    content = message.get("content") if isinstance(message, Mapping) else None
    return content if isinstance(content, str) else None


def _install(made: Patches) -> None:
    try:
        from langchain_core.prompts.chat import ChatPromptTemplate
    except ImportError:
        return
    made.set(
        ChatPromptTemplate,
        "format_messages",
        _remembering(ChatPromptTemplate.format_messages),
    )
    made.set(
        ChatPromptTemplate,
        "aformat_messages",
        _remembering(ChatPromptTemplate.aformat_messages),
    )


def _remembering(fill: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fill)
    def remembering(template: Any, *args: Any, **values: Any) -> Any:
        # If it fails, the call is made as it is, and the server learns its boundary.
        with contextlib.suppress(Exception):
            _remember(template)
        return fill(template, *args, **values)

    return remembering


patches = SharedPatches(_install)
"""In place while any graph is wrapped."""
