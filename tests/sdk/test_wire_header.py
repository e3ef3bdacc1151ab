"""The header: ASCII, bounded both ways, and every value read or refused."""

from __future__ import annotations

import base64
import json
import random
import zlib
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvflow_sdk import wire
from kvflow_sdk.errors import WireError

names = st.text(
    st.characters(exclude_categories=["Cs"]), min_size=1, max_size=wire.MAX_NAME_CHARS
)
counts = st.integers(0, wire.MAX_STEPS)
fixed = st.builds(
    wire.FixedMark, message=st.integers(0, 99), chars=st.integers(0, 10**6)
) | st.builds(wire.FixedMark, tokens=st.integers(0, 10**6))
updates = st.builds(
    wire.StepUpdate,
    client=names,
    run=names,
    seq=st.integers(0, wire.MAX_SEQ),
    agent=st.none() | names,
    steps=st.none() | st.dictionaries(names, counts, max_size=20),
    likelihood=st.none() | st.dictionaries(names, st.floats(0, 1), max_size=5),
    fixed=st.none() | fixed,
    final=st.booleans(),
)


def packed(text: bytes) -> str:
    return base64.urlsafe_b64encode(zlib.compress(text)).decode()


def wide(agents: int, *, name_chars: int = 40) -> wire.StepUpdate:
    letters = random.Random(7)
    steps = {"".join(letters.choices("abcdefghij", k=name_chars)): agents}
    for index in range(agents):
        steps["".join(letters.choices("abcdefghij", k=name_chars))] = index
    return wire.StepUpdate(
        client="c" * 40,
        run="r" * 20,
        seq=5,
        agent="me",
        steps=steps,
        likelihood=dict.fromkeys(steps, 0.25),
    )


@given(updates)
def test_small_update_survives_the_header(update: wire.StepUpdate) -> None:
    value = wire.to_header(update)
    assert value.isascii()
    assert value.isprintable()
    assert len(value) <= wire.MAX_HEADER_BYTES
    (read,) = wire.from_header(value)
    if not read.partial:
        assert read in (update, _without_likelihood(update))


def _without_likelihood(update: wire.StepUpdate) -> wire.StepUpdate:
    return wire.StepUpdate(
        client=update.client,
        run=update.run,
        seq=update.seq,
        agent=update.agent,
        steps=update.steps,
        fixed=update.fixed,
        final=update.final,
    )


@given(updates)
def test_update_survives_the_envelope(update: wire.StepUpdate) -> None:
    body = json.loads(json.dumps(wire.to_envelope([update])))
    assert wire.parse_envelope(body) == [update]


@given(st.lists(updates, max_size=4))
def test_envelope_as_json_says_the_same_as_the_envelope(
    several: list[wire.StepUpdate],
) -> None:
    text = wire.encode_envelope(several)
    assert wire.parse_envelope(json.loads(text)) == several
    written = wire.to_envelope(several)
    assert json.loads(text).keys() == written.keys()
    assert [a.keys() for a in json.loads(text)["actions"]] == [
        a.keys() for a in written["actions"]
    ]


@given(updates, updates)
def test_a_snapshot_is_packed_once_and_fits_in_every_header(
    one: wire.StepUpdate, other: wire.StepUpdate
) -> None:
    shared = wire.Snapshot(one.steps or {})
    for update in (one, other):
        said = msgspec.structs.replace(update, steps=shared, likelihood=None)
        (read,) = wire.from_header(wire.to_header(said))
        assert read == said


def test_a_name_that_is_no_text_takes_no_other_snapshot_with_it() -> None:
    good = wire.StepUpdate(client="c", run="r1", seq=1, steps={"a": 1})
    bad = wire.StepUpdate(client="c", run="r2", seq=1, steps={"\ud800": 1})
    found = wire.parse_envelope(json.loads(wire.encode_envelope([good, bad])))
    assert found == [good, bad]


@given(st.text(max_size=400) | st.binary(max_size=400).map(packed))
def test_any_header_is_read_or_refused_with_a_wire_error(value: str) -> None:
    with suppress(WireError):
        assert wire.from_header(value) is not None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["client", "run", "seq", "steps", "actions", "payload"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(json_values)
def test_any_json_is_read_or_refused_with_a_wire_error(value: object) -> None:
    for parse in (wire.parse_envelope, wire.parse_payload):
        with suppress(WireError):
            assert parse(value) is not None


@pytest.mark.parametrize("agents", [500, 1000, 4000])
def test_wide_snapshot_is_cut_to_its_nearest_agents(agents: int) -> None:
    update = wide(agents)
    value = wire.to_header(update)
    assert len(value) <= wire.MAX_HEADER_BYTES
    (read,) = wire.from_header(value)
    assert read.partial
    assert read.likelihood is None
    assert read.agent == "me"
    assert read.steps
    assert update.steps is not None
    dropped = update.steps.keys() - read.steps.keys()
    assert max(read.steps.values()) <= min(update.steps[name] for name in dropped)


def test_cut_snapshot_uses_most_of_the_header() -> None:
    assert len(wire.to_header(wide(4000))) > wire.MAX_HEADER_BYTES * 3 // 4


def test_likelihood_goes_before_any_steps() -> None:
    letters = random.Random(3)
    update = wide(200)
    assert update.steps is not None
    odds = {name: letters.random() for name in update.steps}
    update = wire.StepUpdate(
        client="c", run="r", seq=1, steps=update.steps, likelihood=odds
    )
    (read,) = wire.from_header(wire.to_header(update))
    assert read.likelihood is None
    assert not read.partial
    assert read.steps == update.steps


def test_names_that_fit_no_header_are_an_error_not_a_long_header() -> None:
    noise = "".join(map(chr, random.Random(1).choices(range(0x4E00, 0x9FFF), k=9000)))
    with pytest.raises(WireError, match="names are too long"):
        wire.to_header(wire.StepUpdate(client="c", run="r", seq=1, agent=noise))


def test_name_that_is_no_text_is_an_error() -> None:
    with pytest.raises(WireError, match="not Unicode"):
        wire.to_header(wire.StepUpdate(client="c", run="r", seq=1, agent="\ud800"))


def test_header_over_the_limit_is_refused_before_decoding() -> None:
    with pytest.raises(WireError) as caught:
        wire.from_header("A" * (wire.MAX_HEADER_BYTES + 1))
    assert (caught.value.field, caught.value.status) == (wire.HEADER, 413)


def test_decompression_bomb_is_refused() -> None:
    value = packed(b" " * (4 * 1024 * 1024))
    assert len(value) <= wire.MAX_HEADER_BYTES
    with pytest.raises(WireError) as caught:
        wire.from_header(value)
    assert caught.value.status == 413


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[" * 100_000, b'"\xff"', b'"\\ud800"', b"9" * 100_000, b"null"],
    ids=["empty", "cut", "deep", "not utf-8", "surrogate", "huge", "null"],
)
def test_text_that_is_no_envelope_is_refused(text: bytes) -> None:
    with pytest.raises(WireError):
        wire.from_header(packed(text))


def test_stream_that_is_cut_short_is_refused() -> None:
    whole = base64.urlsafe_b64decode(
        wire.to_header(wire.StepUpdate(client="c", run="r", seq=1))
    )
    with pytest.raises(WireError, match="cut short"):
        wire.from_header(base64.urlsafe_b64encode(whole[:-6]).decode())
