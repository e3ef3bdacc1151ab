"""Pieces of a zlib stream that are made once and put together many times.

A raw deflate stream may be flushed to a byte boundary anywhere, and a piece that was
compressed by itself refers to nothing before it. So the steps of a run, which many
calls say alike, are compressed once, and stand between stored (uncompressed) blocks
with what is new in each call. Their checksum is combined, too, so that what a call
costs does not grow with the number of agents.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

import msgspec

__all__ = ["Piece", "Snapshot", "joined", "member", "stored", "stream"]

_V = TypeVar("_V", int, float)


class Piece(NamedTuple):
    """A text that is a part of others."""

    text: bytes
    deflated: bytes
    """As a part of a deflate stream."""
    checksum: int
    """Adler-32 of `text`."""


class Snapshot(dict[str, _V]):
    """Steps or likelihoods that nobody changes any more, so that what they look like
    on the wire is made only once."""

    __slots__ = ("_made", "ending")

    _made: tuple[str, Piece]
    ending: tuple[object, Piece]
    """For whoever puts messages together: what stands behind the head of one, and
    what, besides these entries, it was made of."""


def member(name: str, entries: Mapping[str, float]) -> Piece:
    """``,"name":{…}``: one more member of a JSON object.

    Raises `UnicodeEncodeError` when a key is not Unicode text.
    """
    known = getattr(entries, "_made", None)
    if known is not None and known[0] == name:
        piece: Piece = known[1]
        return piece
    text = b',"%s":%s' % (name.encode(), msgspec.json.encode(entries))
    deflater = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    # Flushed to a byte boundary, and without a reference to anything before it.
    deflated = deflater.compress(text) + deflater.flush(zlib.Z_SYNC_FLUSH)
    piece = Piece(text, deflated, zlib.adler32(text))
    if isinstance(entries, Snapshot):
        entries._made = (name, piece)
    return piece


def stored(text: bytes, *, final: bool = False) -> Piece:
    """`text` as a part of a deflate stream that is not compressed; `final`: the last."""
    return Piece(text, _stored(text, final=final), zlib.adler32(text))


def joined(pieces: Iterable[Piece]) -> Piece:
    """`pieces`, one after another, as one."""
    text, deflated, checksum = b"", b"", 1
    for piece in pieces:
        text += piece.text
        deflated += piece.deflated
        checksum = _joined(checksum, piece.checksum, len(piece.text))
    return Piece(text, deflated, checksum)


def stream(head: bytes, rest: Piece) -> bytes:
    """A zlib stream of `head`, which is new, and `rest`, of which the last is `final`."""
    text, deflated, adler = rest
    checksum = _joined(zlib.adler32(head), adler, len(text)).to_bytes(4, "big")
    return b"".join((_ZLIB, _stored(head), deflated, checksum))


_ZLIB = b"\x78\x9c"
"""Begins a zlib stream (RFC 1950); raw deflate blocks and a checksum follow."""
_STORED_MAX = 65535
_LEVEL = 3
"""A third of the time of 6 for a seventh more bytes, with 500 agents."""
_ADLER = 65521


def _joined(first: int, second: int, size: int) -> int:
    """Adler-32 of two texts in a row, by those of each and the size of the second."""
    low, high = first & 0xFFFF, first >> 16
    total = (low + (second & 0xFFFF) - 1) % _ADLER
    # Every byte of the second adds `low` once more, which began at 1 in its own sum.
    return (high + (second >> 16) + size * (low - 1)) % _ADLER << 16 | total


def _stored(text: bytes, *, final: bool = False) -> bytes:
    """`text` as blocks of a deflate stream, not compressed (RFC 1951, 3.2.4)."""
    size = len(text)
    if size <= _STORED_MAX:
        lengths = size.to_bytes(2, "little") + (size ^ 0xFFFF).to_bytes(2, "little")
        return (b"\1" if final else b"\0") + lengths + text
    rest = _stored(text[_STORED_MAX:], final=final)
    return _stored(text[:_STORED_MAX]) + rest
