"""The trace format: what a server saw, in order, as JSON lines. Counts and hashes, no text.

The first line says what the rest is; a name that ends in ``.gz`` is compressed::

    {"kvflow_trace":"1","block":64,"source":"kvflow 0.1.0"}
    {"type":"steps","t":0.51,"update":{"client":7,"run":9,"seq":1,"steps":{"planner":0}}}
    {"type":"call","t":0.52,"prompt":150,"output":16,"blocks":[8,3,5,2],"answer":true,
     "fixed":100,"took":0.21,"update":{"client":7,"run":9,"seq":2,"agent":"planner"}}

`t` is seconds since the recording began, never decreasing. Clients and runs are numbers
that say nothing: a client's id is the right to steer its entries. Agents keep their names.

A call's tokens are hashed in blocks, chained: a block's hash stands for all tokens up to
its end, so two prompts share what their first hashes share. Blocks are counted anew where
the fixed prompt ends, which so is the end of a block::

    [0, block) … [.., fixed)  [fixed, fixed + block) … [.., prompt + answer)

That goes on through the answer if `answer` says so.

Versions are ``major[.minor]``; unknown fields and newer minors are ignored.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, TypeAlias, TypeVar, cast

import msgspec

from kvflow_sdk import wire
from kvflow_sdk.errors import WireError

__all__ = [
    "Header",
    "Record",
    "RecordedCall",
    "RecordedSteps",
    "Trace",
    "TraceError",
    "TraceWriter",
    "Update",
    "block_sizes",
    "decoded",
    "opened",
    "problem",
]

VERSION = "1"

Span: TypeAlias = tuple[int, int, int]
"""(hash of a block, first token, one past the last)."""
_T = TypeVar("_T")


class TraceError(ValueError):
    """A trace cannot be read; the message names the file, the line and the field."""

    def __init__(self, path: Path, line: int, field: str, why: str) -> None:
        super().__init__(f"{path}, line {line}: {field}: {why}")
        self.line = line
        """Counted from 1."""
        self.field = field


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The first line."""

    kvflow_trace: str
    """The version of the format."""
    block: int
    """Tokens of a block."""
    source: str = ""
    """What made the trace."""


class Update(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A `wire.StepUpdate` whose client and run go by numbers."""

    client: int
    run: int
    seq: int
    agent: str | None = None
    steps: dict[str, int] | None = None
    likelihood: dict[str, float] | None = None
    final: bool = False
    partial: bool = False

    def to_wire(
        self, client: str, run: str, fixed: wire.FixedMark | None = None
    ) -> wire.StepUpdate:
        """The same as `run` of `client` says it."""
        return wire.StepUpdate(
            client=client,
            run=run,
            seq=self.seq,
            agent=self.agent,
            steps=self.steps,
            likelihood=self.likelihood,
            fixed=fixed,
            final=self.final,
            partial=self.partial,
        )


class RecordedSteps(
    msgspec.Struct, frozen=True, kw_only=True, tag="steps", tag_field="type"
):
    """A step update that came by itself."""

    t: float
    update: Update


class RecordedCall(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag="call",
    tag_field="type",
):
    """One LLM call."""

    t: float
    """When it arrived."""
    prompt: int
    """Tokens."""
    output: int
    """Tokens generated; 0: it was given up before the first."""
    blocks: list[int]
    """Hashes of the prompt's blocks, or with `answer` of those of prompt and answer."""
    answer: bool = False
    fixed: int = 0
    """Tokens of the prompt that were known to be fixed."""
    learned: bool = False
    """The server had found that out itself."""
    took: float | None = None
    """Seconds from arrival to the end."""
    update: Update | None = None
    """The metadata that came with it."""

    def spans(self, block: int) -> tuple[Span, ...]:
        """The prompt's blocks."""
        return self._spans(self.prompt, block)

    def whole(self, block: int) -> tuple[Span, ...]:
        """The blocks of prompt and answer, or of the prompt alone if the answer's are
        not known."""
        return self._spans(self.hashed, block)

    @property
    def hashed(self) -> int:
        """Tokens that `blocks` stand for."""
        return self.prompt + (self.output if self.answer else 0)

    def _spans(self, tokens: int, block: int) -> tuple[Span, ...]:
        sizes = block_sizes(tokens, self.fixed, block)
        return tuple((name, 0, n) for name, n in zip(self.blocks, sizes, strict=False))


Record: TypeAlias = RecordedSteps | RecordedCall


def block_sizes(tokens: int, fixed: int, block: int) -> list[int]:
    """Tokens of each block of a text of `tokens`, of which `fixed` are fixed."""
    sizes = []
    for length in (fixed, tokens - fixed):
        sizes += [block] * (length // block)
        if length % block:
            sizes.append(length % block)
    return sizes


class Trace:
    """A trace in a file. Each iteration reads it anew and holds one record at a time.

    Raises `TraceError` for what cannot be read, `OSError` for a file that cannot.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.decoder = msgspec.json.Decoder(Record)
        with opened(path) as lines:
            line = lines.readline()
        self.header = self._read_header(line)

    @property
    def block(self) -> int:
        return self.header.block

    def __iter__(self) -> Iterator[Record]:
        last = 0.0
        with opened(self.path) as lines:
            for number, line in enumerate(lines, 1):
                if number == 1:
                    continue
                record = decoded(self.decoder, line, self.path, number)
                if found := problem(record, last, self.header.block):
                    raise TraceError(self.path, number, *found)
                last = record.t
                yield record

    def _read_header(self, line: bytes) -> Header:
        header = decoded(msgspec.json.Decoder(Header), line, self.path, 1)
        major = header.kvflow_trace.partition(".")[0]
        if major != VERSION:
            why = f"{header.kvflow_trace[:32]!r} is not supported, this is {VERSION!r}"
            raise TraceError(self.path, 1, "kvflow_trace", why)
        if header.block < 1:
            raise TraceError(self.path, 1, "block", f"at least 1, not {header.block}")
        return header


class TraceWriter:
    """Writes a trace, replacing what the file held. Each `write` leaves it complete."""

    def __init__(self, path: Path, *, block: int, source: str) -> None:
        self._zip = path.name.endswith(".gz")
        self._encoder = msgspec.json.Encoder()
        self._file = path.open("wb", buffering=0)
        self.size = 0
        """Bytes in the file."""
        header = Header(kvflow_trace=VERSION, block=block, source=source)
        try:
            self._append(self._encoder.encode(header) + b"\n")
        except OSError:
            self.close()
            raise

    def write(self, records: Iterable[Record]) -> None:
        if text := self._encoder.encode_lines(list(records)):
            self._append(text)

    def close(self) -> None:
        self._file.close()

    def _append(self, text: bytes) -> None:
        # A gzip file may have members one after the other: each is whole by itself.
        data = gzip.compress(text, 6) if self._zip else text
        self._file.write(data)
        self.size += len(data)


def opened(path: Path) -> IO[bytes]:
    """The file, decompressed if its name says so."""
    if path.name.endswith(".gz"):
        return cast("IO[bytes]", gzip.open(path, "rb"))
    return path.open("rb")


def decoded(
    decoder: msgspec.json.Decoder[_T], line: bytes, path: Path, number: int
) -> _T:
    """A line of a trace. Raises `TraceError`."""
    try:
        return decoder.decode(line)
    except msgspec.DecodeError as error:
        message = str(error)
        found = re.search(r"`\$\.(\S+)`$|field `(\w+)`", message)
        field = (found[1] or found[2]) if found else "line"
        raise TraceError(path, number, field, message) from error


def problem(record: Record, last: float, block: int) -> tuple[str, str] | None:
    """The field that is wrong with a record, and why; the one before it was at `last`."""
    if not last <= record.t < float("inf"):
        return "t", f"{record.t:g} after {last:g}; times never decrease"
    found = _update_problem(record.update) if record.update is not None else None
    if found is not None or isinstance(record, RecordedSteps):
        return found
    return _call_problem(record, block)


def _call_problem(record: RecordedCall, block: int) -> tuple[str, str] | None:
    if record.prompt < 1:
        return "prompt", f"at least 1, not {record.prompt}"
    if record.output < 0:
        return "output", f"at least 0, not {record.output}"
    if not 0 <= record.fixed <= record.prompt:
        return "fixed", f"{record.fixed} of a prompt of {record.prompt} tokens"
    if record.took is not None and not 0 <= record.took < float("inf"):
        return "took", f"at least 0, not {record.took:g}"
    if record.answer and not record.output:
        return "answer", "there is none: output is 0"
    wanted = len(block_sizes(record.hashed, record.fixed, block))
    if len(record.blocks) != wanted:
        return "blocks", f"{len(record.blocks)} hashes, must be {wanted}"
    if len(set(record.blocks)) < len(record.blocks):
        return "blocks", "a hash comes twice; hashes of a prompt are chained"
    return None


def _update_problem(update: Update) -> tuple[str, str] | None:
    try:
        wire.parse_payload(update.to_wire("client", "run"))
    except WireError as error:
        return f"update.{error.field}", str(error)
    return None
