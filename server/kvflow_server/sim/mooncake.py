"""Mooncake's public request traces, read as traces of ours.

One JSON object per line: ``timestamp`` (milliseconds), ``input_length``,
``output_length`` (tokens) and ``hash_ids``, one for each block of 512 tokens of the
prompt; the last block may be shorter. Ids are chained: one stands for all up to its
block's end. Source: github.com/kvcache-ai/Mooncake, FAST25-release.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from kvflow_server.engine.trace import (
    Record,
    RecordedCall,
    TraceError,
    decoded,
    opened,
    problem,
)

__all__ = ["BLOCK", "MooncakeTrace"]

BLOCK = 512
"""Tokens of a block."""


class _Line(msgspec.Struct, kw_only=True):
    timestamp: int | float
    input_length: int
    output_length: int
    hash_ids: list[int]


_FIELDS = {
    "t": "timestamp",
    "prompt": "input_length",
    "output": "output_length",
    "blocks": "hash_ids",
}


class MooncakeTrace:
    """A trace in a file. Each iteration reads it anew and holds one record at a time.

    Raises `TraceError` for what cannot be read, `OSError` for a file that cannot.
    """

    block = BLOCK

    def __init__(self, path: Path) -> None:
        self.path = path

    def __iter__(self) -> Iterator[Record]:
        decoder = msgspec.json.Decoder(_Line)
        last = 0.0
        with opened(self.path) as lines:
            for number, text in enumerate(lines, 1):
                line = decoded(decoder, text, self.path, number)
                call = RecordedCall(
                    t=line.timestamp / 1000,
                    prompt=line.input_length,
                    output=line.output_length,
                    blocks=line.hash_ids,
                )
                if found := problem(call, last, BLOCK):
                    field, why = found
                    raise TraceError(self.path, number, _FIELDS[field], why)
                last = call.t
                yield call
