"""Pieces of a zlib stream that are made once and put together many times.

A raw deflate stream may be flushed to a byte boundary anywhere, and a piece that was
compressed by itself refers to nothing before it. So the steps of a run, which many
calls say alike, are compressed once, and stand between stored (uncompressed) blocks
with what is new in each call.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import TypeVar

import msgspec

__all__ = ["Snapshot", "compress"]

_V = TypeVar("_V", int, float)


class Snapshot(dict[str, _V]):
    """Steps or likelihoods that nobody changes any more, so that what they look like
    on the wire is made only once."""

    __slots__ = ("packed",)

    packed: tuple[bytes, bytes]
    """JSON, and the same as a piece of a deflate stream."""


def compress(
    head: bytes, entries: Mapping[str, Mapping[str, float] | None], tail: bytes
) -> bytes:
    """A zlib stream of `head`, the `entries` that there are as further members of the
    JSON object that `head` ends in, and `tail`."""
    parts = [(head, _stored(head))]
    for name, values in entries.items():
        if values is not None:
            key = b',"%s":' % name.encode()
            parts += [(key, _stored(key)), _packed(values)]
    checksum = zlib.adler32(b"".join([*(text for text, _ in parts), tail]))
    pieces = [piece for _, piece in parts]
    ending = _stored(tail, final=True) + checksum.to_bytes(4, "big")
    return b"".join([_ZLIB, *pieces, ending])


_ZLIB = b"\x78\x9c"
"""Begins a zlib stream (RFC 1950); raw deflate blocks and a checksum follow."""
_STORED_MAX = 65535


def _packed(entries: Mapping[str, float]) -> tuple[bytes, bytes]:
    """`entries` as JSON, and that as a piece of a deflate stream."""
    if isinstance(entries, Snapshot):
        try:
            return entries.packed
        except AttributeError:
            pass
    text = msgspec.json.encode(entries)
    deflater = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    # Flushed to a byte boundary, and without a reference to anything before it.
    done = text, deflater.compress(text) + deflater.flush(zlib.Z_SYNC_FLUSH)
    if isinstance(entries, Snapshot):
        entries.packed = done
    return done


def _stored(text: bytes, *, final: bool = False) -> bytes:
    """`text` as blocks of a deflate stream, not compressed (RFC 1951, 3.2.4)."""
    pieces = [text[i : i + _STORED_MAX] for i in range(0, len(text), _STORED_MAX)]
    blocks = []
    for number, piece in enumerate(pieces):
        size = len(piece)
        last = final and number == len(pieces) - 1
        lengths = size.to_bytes(2, "little") + (size ^ 0xFFFF).to_bytes(2, "little")
        blocks.append(bytes([last]) + lengths + piece)
    return b"".join(blocks)
