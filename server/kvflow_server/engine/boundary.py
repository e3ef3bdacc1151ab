"""From a mark in characters to a count of tokens, in the HTTP process.

The boundary is the longest run of leading tokens that does not depend on what follows
the mark: the prompt is rendered a second time with everything behind the mark replaced,
and the two token sequences are compared. That is exact under any chat template and any
tokenizer, rounds down where a token straddles the mark, and is done once per distinct
fixed text.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

import msgspec

from kvflow_sdk.wire import FixedMark

__all__ = ["BoundaryCache", "chat_boundary", "default_mark", "text_boundary"]

_OTHER = "\x01"
"""What stands behind the mark in the second rendering: no prompt goes on with it, and
no tokenizer merges it into a word."""

_INSTRUCTIONS = ("system", "developer")


class BoundaryCache:
    """Remembers boundaries by a digest of the fixed text; at most `size` of them."""

    def __init__(self, size: int = 4096) -> None:
        self._size = size
        self._known: OrderedDict[bytes, int] = OrderedDict()

    def get(self, digest: bytes, compute: Callable[[], int]) -> int:
        if digest in self._known:
            self._known.move_to_end(digest)
            return self._known[digest]
        value = self._known[digest] = compute()
        while len(self._known) > self._size:
            self._known.popitem(last=False)
        return value


def default_mark(request: Any) -> FixedMark | None:
    """The end of the leading system messages, where nothing was marked."""
    leading = list(takewhile(lambda m: m.role in _INSTRUCTIONS, request.messages))
    if not leading:
        return None
    return FixedMark(message=len(leading) - 1, chars=len(_text_of(leading[-1])))


def chat_boundary(
    serving: Any,
    request: Any,
    prompt_ids: Callable[[], Sequence[int]],
    mark: FixedMark,
    known: BoundaryCache,
) -> int | None:
    """Fixed tokens of a chat request; None if the mark points nowhere.

    `serving` is SGLang's `OpenAIServingChat`, `prompt_ids` gives what it rendered: it
    may have to tokenize the whole prompt, and is asked only for a new fixed text.
    """
    if mark.message is None or mark.chars is None:
        return mark.tokens
    if mark.message >= len(request.messages):
        return None
    if mark.chars > len(_text_of(request.messages[mark.message])):
        return None
    variant = _cut(request, mark.message, mark.chars)

    def compute() -> int:
        rendered = serving._process_messages(
            variant, serving.tokenizer_manager.model_config.is_multimodal
        )
        ids = rendered.prompt_ids
        if isinstance(ids, str):
            ids = serving.tokenizer_manager.tokenizer.encode(ids)
        return _common_prefix(prompt_ids(), ids)

    return known.get(_digest(variant), compute)


def text_boundary(
    tokenize: Callable[[str], Sequence[int]],
    text: str,
    prompt_ids: Sequence[int],
    chars: int,
    known: BoundaryCache,
) -> int | None:
    """Fixed tokens of a plain prompt marked at `chars`; None past its end."""
    if chars > len(text):
        return None
    head = text[:chars]
    digest = hashlib.blake2b(head.encode(errors="surrogatepass"), digest_size=16)
    return known.get(
        digest.digest(), lambda: _common_prefix(prompt_ids, tokenize(head + _OTHER))
    )


def _common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    return sum(1 for _ in takewhile(lambda p: p[0] == p[1], zip(left, right)))  # noqa: B905


def _text_of(message: Any) -> str:
    content = message.content
    if isinstance(content, str):
        return content
    return "".join(
        part.text for part in content or () if getattr(part, "type", "") == "text"
    )


def _cut(request: Any, index: int, chars: int) -> Any:
    """The request with everything behind the mark replaced."""
    message = request.messages[index].model_copy(deep=True)
    if isinstance(message.content, str):
        message.content = message.content[:chars] + _OTHER
    else:
        message.content = _cut_parts(message.content, chars)
    messages = [*request.messages[:index], message]
    return request.model_copy(update={"messages": messages})


def _cut_parts(parts: Sequence[Any], chars: int) -> list[Any]:
    kept = []
    for part in parts:
        kept.append(part)
        if getattr(part, "type", "") == "text":
            if len(part.text) >= chars:
                part.text = part.text[:chars] + _OTHER
                break
            chars -= len(part.text)
    return kept


def _digest(variant: Any) -> bytes:
    """Of everything that the rendering of the fixed part depends on."""
    parts = (
        variant.model_dump_json(
            include={"messages", "tools", "tool_choice", "chat_template_kwargs"}
        ),
        str(variant.reasoning_effort),
    )
    return hashlib.blake2b(msgspec.msgpack.encode(parts), digest_size=16).digest()
