"""From a mark in characters to a count of tokens, in the HTTP process.

The boundary is what no continuation changes: the prompt is rendered again with
everything behind the mark replaced, and the token sequences are compared. Where the mark
ends a message, what is replaced are the messages behind it, so that all that the template
writes in between counts in, tools too. Where it stands inside a message and the text
does not go on with a space, a tokenizer may merge the last word before the mark with what
comes, so a rendering without that word is compared as well: the longest prefix that is
safe. Once per distinct fixed text.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import Any

from kvflow_sdk.wire import FixedMark

__all__ = ["BoundaryCache", "chat_boundary", "default_mark", "text_boundary"]

_OTHER = "\x01"
"""What stands behind the mark in another rendering: no prompt goes on with it, and no
tokenizer merges it into a word."""
_OPENINGS = (_OTHER, "\n\n.", " a")
"""Beginnings of a next message, which a tokenizer may merge with what the template
writes in front of it."""
_FOLLOWING = 3
"""Messages behind the mark that another rendering has: some templates write a message
differently when others follow."""

_UNSETTLED = re.compile(r"(?:[^\w\s]*\s+|\s*\S{1,64})\Z")
"""The end of a text that a tokenizer may merge with what comes: white space, with the
punctuation before it, or the last word, with the white space before it."""

_LOOK_BACK = 128
"""Characters before the mark in which that end begins."""

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
    index, chars = mark.message, mark.chars
    if index is None or chars is None:
        return mark.tokens
    if index >= len(request.messages):
        return None
    text = _text_of(request.messages[index])
    if chars > len(text):
        return None
    head = text[:chars]
    ends = chars == len(text) and _others_follow(request, index)
    parted = _is_parted(text, chars)

    def compute() -> int:
        ids = prompt_ids()
        if ends:
            variants = _with_others_behind(request, index)
        else:
            tokenizer = serving.tokenizer_manager.tokenizer
            settled = _settled(head, tokenizer, parted=parted)
            variants = _cut_at(request, index, (len(head), len(settled)))
        return min(
            (_common_prefix(ids, _rendered(serving, variant)) for variant in variants),
            default=0,
        )

    how = f"{ends} {parted}"
    return known.get(_digest(request, index, head, how), compute)


def text_boundary(
    tokenizer: Any,
    text: str,
    prompt_ids: Sequence[int],
    chars: int,
    known: BoundaryCache,
) -> int | None:
    """Fixed tokens of a plain prompt marked at `chars`; None past its end."""
    if chars > len(text):
        return None
    head = text[:chars]
    parted = _is_parted(text, chars)

    def compute() -> int:
        return min(
            _common_prefix(prompt_ids, tokenizer.encode(part + _OTHER))
            for part in (head, _settled(head, tokenizer, parted=parted))
        )

    digest = hashlib.blake2b(head.encode(errors="surrogatepass"), digest_size=16)
    digest.update(bytes((parted,)))
    return known.get(digest.digest(), compute)


def _is_parted(text: str, chars: int) -> bool:
    """Whether no tokenizer merges what stands before the mark with what comes: words do
    not run across a space, which belongs to the one behind it."""
    before, behind = text[chars - 1 : chars], text[chars : chars + 1]
    if behind == " ":
        return not before.isspace()
    return behind == "\n" and before.isalnum()


def _settled(head: str, tokenizer: Any, *, parted: bool) -> str:
    """`head` without what `tokenizer` may merge with a continuation."""
    # Searched in the end only: a regular expression would look at every word.
    last = head[-_LOOK_BACK:]
    found = None if parted else _UNSETTLED.search(last)
    cut = len(last) if found is None else found.start()
    # Added tokens are found in the text before it is split into words.
    for token in getattr(tokenizer, "get_added_vocab", dict)():
        begun = (n for n in range(len(token) - 1, 0, -1) if last.endswith(token[:n]))
        cut = min(cut, len(last) - next(begun, 0))
    return head[: len(head) - len(last) + cut]


def _common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    return sum(1 for _ in takewhile(lambda p: p[0] == p[1], zip(left, right)))  # noqa: B905


def _rendered(serving: Any, variant: Any) -> Sequence[int]:
    """Its tokens; none where the template refuses it, which makes nothing fixed."""
    try:
        ids = serving._process_messages(
            variant, serving.tokenizer_manager.model_config.is_multimodal
        ).prompt_ids
    except Exception:
        return ()
    if isinstance(ids, str):
        ids = serving.tokenizer_manager.tokenizer.encode(ids)
    found: Sequence[int] = ids
    return found


def _text_of(message: Any) -> str:
    content = message.content
    if isinstance(content, str):
        return content
    return "".join(part.text for part in content or () if _is_text(part))


def _is_text(part: Any) -> bool:
    return getattr(part, "type", "") == "text"


def _others_follow(request: Any, index: int) -> bool:
    """Whether the message's text ends it, and it is not the last one."""
    content = request.messages[index].content
    ends = isinstance(content, str) or not content or _is_text(content[-1])
    return ends and index + 1 < len(request.messages)


def _with_others_behind(request: Any, index: int) -> Iterator[Any]:
    """The request with other messages behind the marked one."""
    kept = request.messages[: index + 1]
    rest = request.messages[index + 1 :][:_FOLLOWING]
    for opening in _OPENINGS:
        others = [_with_content(message, opening) for message in rest]
        yield request.model_copy(update={"messages": [*kept, *others]})


def _cut_at(request: Any, index: int, cuts: Sequence[int]) -> Iterator[Any]:
    """The request with everything behind these places of the marked message replaced."""
    rest = request.messages[index + 1 :][:_FOLLOWING]
    others = [_with_content(message, _OTHER) for message in rest]
    for chars in cuts:
        cut = _cut(request.messages[index], chars)
        messages = [*request.messages[:index], cut, *others]
        yield request.model_copy(update={"messages": messages})


def _with_content(message: Any, content: str) -> Any:
    if message.content is None:
        return message
    return message.model_copy(update={"content": content})


def _cut(message: Any, chars: int) -> Any:
    """The message with what stands behind `chars` replaced."""
    message = message.model_copy(deep=True)
    if isinstance(message.content, str):
        message.content = message.content[:chars] + _OTHER
    else:
        message.content = _cut_parts(message.content, chars)
    return message


def _cut_parts(parts: Sequence[Any], chars: int) -> list[Any]:
    kept = []
    for part in parts:
        kept.append(part)
        if _is_text(part):
            if len(part.text) >= chars:
                part.text = part.text[:chars] + _OTHER
                break
            chars -= len(part.text)
    return kept


_SETTINGS = {
    "tools",
    "tool_choice",
    "chat_template_kwargs",
    "response_format",
    "reasoning_effort",
    "continue_final_message",
}


def _digest(request: Any, index: int, head: str, how: str) -> bytes:
    """Of everything that the rendering of the fixed part depends on."""
    digest = hashlib.blake2b(digest_size=16)

    def add(text: str) -> None:
        data = text.encode(errors="surrogatepass")
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)

    for message in request.messages[:index]:
        add(message.model_dump_json())
    marked = request.messages[index]
    if not isinstance(marked.content, str):
        add(_cut(marked, len(head)).model_dump_json())
    add(marked.role)
    add(head)
    rest = request.messages[index + 1 :][:_FOLLOWING]
    add(f"{how} {[message.role for message in rest]}")
    add(request.model_dump_json(include=_SETTINGS, exclude_none=True))
    # Some templates write the day into the prompt.
    add(time.strftime("%Y-%m-%d"))
    return digest.digest()
