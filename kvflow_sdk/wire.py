"""The wire format: what the client tells the server, in band and out of band.

SGLang's own ``kv_hints`` is the envelope (its ``action_type`` names whose hint it is)::

    {"protocol_version": "1", "message_id": "<unique>",
     "actions": [{"action_id": "<unique>", "action_type": "kvflow.step",
                  "action_version": "1", "payload": {...}}]}

The payload is a `StepUpdate`. In band the envelope is the ``kv_hints`` field of
``/generate`` or, on the OpenAI endpoints, the header `HEADER` (JSON, zlib,
base64url). Out of band it is the body of ``POST /kvflow/v1/steps``, with one action
per run. Unknown fields and newer minor versions are ignored, unknown majors refused.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from .checks import (
    MAX_AGENTS,
    MAX_NAME_CHARS,
    MAX_STEPS,
    check_likelihood,
    check_name,
    check_range,
    check_steps,
    check_version,
    convert,
)
from .deflate import Piece, Snapshot, joined, member, stored, stream
from .errors import WireError
from .ids import message_id

__all__ = [
    "ACTION_TYPE",
    "ACTION_VERSION",
    "CAPABILITIES_PATH",
    "DRIFT_PATH",
    "HEADER",
    "MAX_AGENTS",
    "MAX_HEADER_BYTES",
    "MAX_INFLATED_BYTES",
    "MAX_NAME_CHARS",
    "MAX_RUNS_PER_MESSAGE",
    "MAX_STEPS",
    "PROTOCOL_VERSION",
    "STATE_PATH",
    "STEPS_PATH",
    "FixedMark",
    "Snapshot",
    "StepUpdate",
    "capabilities",
    "check_fixed",
    "check_name",
    "check_steps",
    "encode_envelope",
    "fit_header",
    "from_header",
    "parse_envelope",
    "parse_payload",
    "shown_client",
    "speaks_kvflow",
    "to_envelope",
    "to_header",
]

PROTOCOL_VERSION = "1"
ACTION_TYPE = "kvflow.step"
ACTION_VERSION = "1"
HEADER = "x-request-id-kvflow"
"""A name with the prefix that gateways in front of SGLang let through."""

CAPABILITIES_PATH = "/kvflow/v1/capabilities"
"""Unauthenticated; a client asks here whether a server is KVFlow."""
STEPS_PATH = "/kvflow/v1/steps"
STATE_PATH = "/kvflow/v1/state"
"""What a server knows and holds; needs its admin key where it has one."""
DRIFT_PATH = "/kvflow/v1/drift"

MAX_HEADER_BYTES = 8 * 1024
MAX_INFLATED_BYTES = 256 * 1024
MAX_RUNS_PER_MESSAGE = 256
MAX_SEQ = 2**53
MAX_FIXED = 2**31


class FixedMark(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False
):
    """Where the fixed part of a prompt ends: ``message`` and ``chars`` (code points into
    the text parts of that message; earlier messages and tools are fixed), or ``tokens``
    (on ``/generate``)."""

    message: int | None = None
    chars: int | None = None
    tokens: int | None = None
    assumed: bool = False
    """The server's own first guess; it gives way to what the agent's calls teach."""


class StepUpdate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One snapshot of one run of one client."""

    client: str
    """The application instance; unguessable, and the right to steer its entries."""
    run: str
    """One execution of the workflow."""
    seq: int
    """Monotonic within the run; an older or equal one changes no steps."""
    agent: str | None = None
    """Who makes this call; absent out of band."""
    steps: dict[str, int] | None = None
    """Steps-to-execution of every reachable agent: a whole snapshot."""
    likelihood: dict[str, float] | None = None
    fixed: FixedMark | None = None
    final: bool = False
    """The run is over; forget it."""
    partial: bool = False
    """`steps` was cut to fit: an absent agent is not known to be unreachable."""


class _Action(msgspec.Struct, kw_only=True):
    action_id: str
    action_type: str
    action_version: str
    payload: dict[str, Any]


class _Envelope(msgspec.Struct, kw_only=True):
    protocol_version: str
    message_id: str
    actions: list[_Action]


def capabilities() -> dict[str, Any]:
    """What a KVFlow server answers, at least, to ``GET CAPABILITIES_PATH``."""
    return {
        "server": "kvflow",
        "protocol_version": PROTOCOL_VERSION,
        "action_version": ACTION_VERSION,
        "header": HEADER,
    }


def shown_client(client: str) -> str:
    """The name a server shows and logs for `client`, 12 hexadecimal digits.

    The id itself, the right to steer its entries, is told to nobody else.
    """
    name = client.encode(errors="surrogatepass")
    return hashlib.blake2b(name, digest_size=6).hexdigest()


def speaks_kvflow(obj: object) -> bool:
    """Whether `obj`, the decoded answer of a probe, is that of a usable server."""
    if not isinstance(obj, Mapping) or obj.get("server") != "kvflow":
        return False
    try:
        for field in ("protocol_version", "action_version"):
            check_version(str(obj.get(field)), capabilities()[field], field)
    except WireError:
        return False
    return True


def to_envelope(updates: Sequence[StepUpdate]) -> dict[str, Any]:
    """The ``kv_hints`` object that carries `updates`, one action each."""
    message = message_id().decode()
    return {
        "protocol_version": PROTOCOL_VERSION,
        "message_id": message,
        "actions": [
            {
                "action_id": f"{message}-{index}",
                "action_type": ACTION_TYPE,
                "action_version": ACTION_VERSION,
                "payload": msgspec.to_builtins(update),
            }
            for index, update in enumerate(updates)
        ],
    }


def parse_envelope(obj: object) -> list[StepUpdate]:
    """The KVFlow updates in an envelope; actions of other types are skipped.

    Raises `WireError` naming the field.
    """
    envelope = convert(obj, _Envelope)
    check_version(envelope.protocol_version, PROTOCOL_VERSION, "protocol_version")
    if len(envelope.actions) > MAX_RUNS_PER_MESSAGE:
        raise WireError(
            f"actions: {len(envelope.actions)} in one message, "
            f"at most {MAX_RUNS_PER_MESSAGE} are accepted",
            field="actions",
            status=413,
        )
    updates = []
    for action in envelope.actions:
        if action.action_type == ACTION_TYPE:
            check_version(action.action_version, ACTION_VERSION, "action_version")
            updates.append(parse_payload(action.payload))
    return updates


def parse_payload(obj: object) -> StepUpdate:
    """A validated `StepUpdate`. Raises `WireError` naming the field."""
    update = convert(obj, StepUpdate)
    check_name(update.client, "client")
    check_name(update.run, "run")
    if update.agent is not None:
        check_name(update.agent, "agent")
    check_range(update.seq, MAX_SEQ, "seq")
    if update.steps is not None:
        check_steps(update.steps)
    if update.likelihood is not None:
        check_likelihood(update.likelihood)
    if update.fixed is not None:
        check_fixed(update.fixed)
    return update


def check_fixed(fixed: FixedMark) -> None:
    """Raises `WireError` when `fixed` is not exactly one of its two forms."""
    for name in ("message", "chars", "tokens"):
        value = getattr(fixed, name)
        if value is not None:
            check_range(value, MAX_FIXED, f"fixed.{name}")
    if (fixed.message is None) != (fixed.chars is None):
        text = "fixed.message and fixed.chars go together"
        raise WireError(text, field="fixed.message")
    if (fixed.chars is None) == (fixed.tokens is None):
        text = "fixed: give either `message` and `chars`, or `tokens`"
        raise WireError(text, field="fixed")


def to_header(update: StepUpdate) -> str:
    """The value of `HEADER`: ASCII, at most `MAX_HEADER_BYTES`.

    Too long a snapshot loses its likelihoods, then, ``partial``, its farthest agents.
    Raises `WireError` when the names alone are too long.
    """
    return fit_header(update)[0]


def fit_header(update: StepUpdate) -> tuple[str, bool]:
    """As `to_header`, and whether nothing was lost."""
    value = _pack(update)
    if len(value) <= MAX_HEADER_BYTES:
        return value, True
    update = msgspec.structs.replace(update, likelihood=None)
    value = _pack(update)
    nearest = sorted((update.steps or {}).items(), key=lambda item: item[1])
    keep = len(nearest)
    while len(value) > MAX_HEADER_BYTES and keep:
        # The compressed size is nearly linear in the count: two or three rounds.
        keep = min(keep - 1, keep * MAX_HEADER_BYTES * 19 // (len(value) * 20))
        update = msgspec.structs.replace(
            update, steps=dict(nearest[:keep]), partial=True
        )
        value = _pack(update)
    if len(value) > MAX_HEADER_BYTES:
        raise WireError(
            f"{HEADER}: {len(value)} bytes without any steps, "
            f"at most {MAX_HEADER_BYTES} are accepted; names are too long",
            field=HEADER,
            status=413,
        )
    return value, False


def from_header(value: str) -> list[StepUpdate]:
    """The updates in a value of `HEADER`. Raises `WireError`."""
    if len(value) > MAX_HEADER_BYTES:
        raise WireError(
            f"{HEADER}: {len(value)} bytes, at most {MAX_HEADER_BYTES} are accepted",
            field=HEADER,
            status=413,
        )
    try:
        packed = base64.b64decode(value.encode("ascii"), altchars=b"-_", validate=True)
        inflater = zlib.decompressobj()
        text = inflater.decompress(packed, MAX_INFLATED_BYTES)
    except (UnicodeEncodeError, binascii.Error, zlib.error) as error:
        why = f"{HEADER}: not base64url of a zlib stream ({error})"
        raise WireError(why, field=HEADER) from error
    if inflater.unconsumed_tail or not inflater.eof:
        raise WireError(
            f"{HEADER}: cut short, or more than {MAX_INFLATED_BYTES} bytes inflated",
            field=HEADER,
            status=413 if inflater.unconsumed_tail else 400,
        )
    try:
        return parse_envelope(msgspec.json.decode(text))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"{HEADER}: not JSON ({error})", field=HEADER) from error


def encode_envelope(updates: Sequence[StepUpdate]) -> bytes:
    """`to_envelope` of `updates` as JSON."""
    message = message_id()
    try:
        actions = []
        for index, update in enumerate(updates):
            pieces = [piece.text for piece in _snapshots(update)]
            actions.append(b"".join([_action(update, message, index), *pieces, b"}}"]))
    except UnicodeEncodeError:
        # Names that are no Unicode text are escaped; the server refuses those, alone.
        return json.dumps(to_envelope(updates), separators=(",", ":")).encode()
    return b"".join([_BEGINNING % message, b",".join(actions), b"]}"])


def _pack(update: StepUpdate) -> str:
    """The envelope as JSON in a zlib stream in base64url."""
    message = message_id()
    try:
        run = _run_of(update.client, update.run)
        call = _call_of(update.agent, update.fixed, update.final, update.partial)
        head = _ONLY % (message, message, run, update.seq, call)
        packed = stream(head, _ending(update))
    except UnicodeEncodeError as error:
        raise WireError(
            f"{HEADER}: a name is not Unicode text ({error})", field=HEADER
        ) from error
    encoded = binascii.b2a_base64(packed, newline=False)
    return encoded.translate(_URL_SAFE).decode("ascii")


_BEGINNING = (
    f'{{"protocol_version":"{PROTOCOL_VERSION}","message_id":"%s","actions":['
).encode()
"""An envelope up to its first action; put together, since all of it is known."""
_ACTION = (
    f'{{"action_id":"%s-%d","action_type":"{ACTION_TYPE}",'
    f'"action_version":"{ACTION_VERSION}","payload":{{%s,"seq":%d%s'
).encode()
_ONLY = _BEGINNING + _ACTION.replace(b"-%d", b"-0")
"""Both, of a message with one action."""
_ENDING = stored(b"}}]}", final=True)
_URL_SAFE = bytes.maketrans(b"+/", b"-_")


def _action(update: StepUpdate, message: bytes, index: int) -> bytes:
    """The action of `update` up to its snapshots and the two brackets that close it."""
    run = _run_of(update.client, update.run)
    call = _call_of(update.agent, update.fixed, update.final, update.partial)
    return _ACTION % (message, index, run, update.seq, call)


@functools.lru_cache(maxsize=1024)
def _run_of(client: str, run: str) -> bytes:
    """What all messages of one run begin with."""
    return msgspec.json.encode({"client": client, "run": run})[1:-1]


@functools.lru_cache(maxsize=MAX_AGENTS)
def _call_of(
    agent: str | None, fixed: FixedMark | None, final: bool, partial: bool
) -> bytes:
    """What all calls of one agent say."""
    update = StepUpdate(
        client="", run="", seq=0, agent=agent, fixed=fixed, final=final, partial=partial
    )
    return msgspec.json.encode(update)[len(_NOTHING_ELSE) - 1 : -1]


_NOTHING_ELSE = msgspec.json.encode(StepUpdate(client="", run="", seq=0))


def _ending(update: StepUpdate) -> Piece:
    """All that follows the head; kept with the steps, which many calls say alike."""
    steps, likelihood = update.steps, update.likelihood
    if not isinstance(steps, Snapshot):
        return joined([*_snapshots(update), _ENDING])
    known = getattr(steps, "ending", None)
    if known is None or known[0] is not likelihood:
        known = likelihood, joined([*_snapshots(update), _ENDING])
        if likelihood is None or isinstance(likelihood, Snapshot):
            steps.ending = known
    piece: Piece = known[1]
    return piece


def _snapshots(update: StepUpdate) -> list[Piece]:
    """The rest of the payload."""
    pieces = []
    if update.steps is not None:
        pieces.append(member("steps", update.steps))
    if update.likelihood is not None:
        pieces.append(member("likelihood", update.likelihood))
    return pieces
