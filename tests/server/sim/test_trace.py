"""The trace format, and traces on the simulator."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest
from costs import COSTS
from hypothesis import given, settings
from hypothesis import strategies as st

from kvflow_server.engine.trace import (
    Record,
    RecordedCall,
    RecordedSteps,
    Trace,
    TraceError,
    TraceWriter,
    Update,
    block_sizes,
)
from kvflow_server.sim.mooncake import MooncakeTrace
from kvflow_server.sim.server import Server, ServerSize
from kvflow_server.sim.trace import (
    TraceResult,
    open_trace,
    play,
    scan,
    simulate_trace,
)

BLOCK = 16
MOONCAKE = Path(__file__).parents[4] / "shared" / "data"
LINES = (
    '{"timestamp": 0, "input_length": 700, "output_length": 2, "hash_ids": [0, 1]}\n'
    '{"timestamp": 30000, "input_length": 1200, "output_length": 3, '
    '"hash_ids": [0, 2, 3]}\n'
)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    return tmp_path / "trace.jsonl"


def write(path: Path, records: list[Record], block: int = BLOCK) -> Trace:
    writer = TraceWriter(path, block=block, source="test")
    for record in records:
        writer.write([record])
    writer.close()
    return Trace(path)


def call(t: float = 0.0, prompt: int = 20, **fields: object) -> RecordedCall:
    values = {"output": 4, "blocks": list(range(-(-prompt // BLOCK))), **fields}
    return RecordedCall(t=t, prompt=prompt, **values)  # type: ignore[arg-type]


# The format.

_names = st.text(min_size=1, max_size=8)
_updates = st.builds(
    Update,
    client=st.integers(0, 2**53),
    run=st.integers(0, 2**53),
    seq=st.integers(0, 2**53),
    agent=st.none() | _names,
    steps=st.none() | st.dictionaries(_names, st.integers(0, 1_000_000), max_size=4),
    likelihood=st.none() | st.dictionaries(_names, st.floats(0, 1), max_size=4),
    final=st.booleans(),
    partial=st.booleans(),
)


@st.composite
def _calls(draw: st.DrawFn) -> RecordedCall:
    prompt, output = draw(st.integers(1, 90)), draw(st.integers(0, 60))
    fixed = draw(st.integers(0, prompt))
    answer = bool(output) and draw(st.booleans())
    count = len(block_sizes(prompt + (output if answer else 0), fixed, BLOCK))
    return RecordedCall(
        t=0.0,
        prompt=prompt,
        output=output,
        fixed=fixed,
        learned=draw(st.booleans()),
        answer=answer,
        blocks=draw(
            st.lists(st.integers(0, 2**53), min_size=count, max_size=count, unique=True)
        ),
        took=draw(st.none() | st.floats(0, 1e6)),
        update=draw(st.none() | _updates),
    )


_records = st.lists(
    _calls() | st.builds(RecordedSteps, t=st.just(0.0), update=_updates), max_size=8
)


@given(records=_records, times=st.lists(st.floats(0, 1e9)), zipped=st.booleans())
@settings(deadline=None)
def test_what_is_written_is_read_again(
    tmp_path_factory: pytest.TempPathFactory,
    records: list[Record],
    times: list[float],
    zipped: bool,
) -> None:
    times = sorted([*times, *([1e9] * len(records))])
    records = [
        msgspec.structs.replace(record, t=t)
        for record, t in zip(records, times, strict=False)
    ]
    path = tmp_path_factory.mktemp("t") / ("t.jsonl.gz" if zipped else "t.jsonl")
    trace = write(path, records)
    assert list(trace) == list(trace) == records
    assert path.read_bytes().startswith(b"\x1f\x8b") is zipped


@given(_calls())
def test_spans_cover_the_prompt_and_with_its_answer_the_whole(
    call: RecordedCall,
) -> None:
    assert sum(stop for _, _, stop in call.spans(BLOCK)) == call.prompt
    whole = call.whole(BLOCK)
    assert sum(stop for _, _, stop in whole) == call.hashed
    ends, end = set(), 0
    for _, _, stop in call.spans(BLOCK):
        ends.add(end := end + stop)
    assert not call.fixed or call.fixed in ends


def test_fields_and_minor_versions_of_tomorrow_are_ignored(written: Path) -> None:
    write(written, [call()])
    first, line = map(json.loads, written.read_text().splitlines())
    first |= {"kvflow_trace": "1.7", "more": [1]}
    written.write_text(f"{json.dumps(first)}\n{json.dumps(line | {'more': 2})}\n")
    assert list(Trace(written)) == [call()]


def test_another_major_version_is_refused(written: Path) -> None:
    written.write_text('{"kvflow_trace":"2","block":16}\n')
    with pytest.raises(TraceError, match="line 1: kvflow_trace: '2' is not supported"):
        open_trace(written)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"t": -1.0}, "t"),
        ({"t": "late"}, "t"),
        ({"prompt": 0}, "prompt"),
        ({"prompt": 20.5}, "prompt"),
        ({"output": -1}, "output"),
        ({"output": 0, "answer": True}, "answer"),
        ({"fixed": 21}, "fixed"),
        ({"blocks": [1]}, "blocks"),
        ({"blocks": [1, 1]}, "blocks"),
        ({"blocks": [1, "2"]}, "blocks[1]"),
        ({"took": -0.5}, "took"),
        ({"type": "tool"}, "type"),
        ({"update": {"client": 1, "run": 1}}, "seq"),
        ({"update": {"client": 1, "run": 1, "seq": -1}}, "update.seq"),
        (
            {"update": {"client": 1, "run": 1, "seq": 1, "steps": {"a": -1}}},
            "update.steps['a']",
        ),
    ],
)
def test_an_error_names_the_line_and_the_field(
    written: Path, changes: dict[str, object], field: str
) -> None:
    write(written, [call(), call()])
    lines = written.read_text().splitlines()
    lines[2] = json.dumps(json.loads(lines[2]) | changes)
    written.write_text("\n".join(lines))
    with pytest.raises(TraceError, match=re.escape(f"line 3: {field}: ")) as caught:
        list(Trace(written))
    assert (caught.value.line, caught.value.field) == (3, field)


def test_times_never_decrease(written: Path) -> None:
    with pytest.raises(TraceError, match="line 3: t: 1 after 2"):
        list(write(written, [call(2.0), call(1.0)]))


@pytest.mark.parametrize("text", ["", "no JSON\n", "[1]\n", '{"blocks": 1}\n'])
def test_another_file_is_no_trace(written: Path, text: str) -> None:
    written.write_text(text)
    with pytest.raises(TraceError, match="line 1: "):
        open_trace(written)


# Mooncake's.


def test_mooncakes_traces_are_read(written: Path) -> None:
    written.write_text(LINES)
    trace = open_trace(written)
    assert list(trace) == [
        RecordedCall(t=0.0, prompt=700, output=2, blocks=[0, 1]),
        RecordedCall(t=30.0, prompt=1200, output=3, blocks=[0, 2, 3]),
    ]
    first, _ = trace
    assert isinstance(first, RecordedCall)
    assert first.spans(trace.block) == ((0, 0, 512), (1, 0, 188))


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("30000", "-1", "timestamp"),
        ("1200", "2000", "hash_ids"),
        ('"output_length": 3, ', "", "output_length"),
    ],
)
def test_an_error_in_one_names_the_line_and_the_field_too(
    written: Path, old: str, new: str, field: str
) -> None:
    written.write_text(LINES.replace(old, new))
    with pytest.raises(TraceError, match=f"line 2: {field}: "):
        list(open_trace(written))


@pytest.mark.parametrize("name", ["conversation", "synthetic"])
def test_the_published_ones_are_read_through(name: str) -> None:
    path = MOONCAKE / f"mooncake_{name}.jsonl"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    found = scan(MooncakeTrace(path))
    assert found.calls > 3000
    assert found.longest > 100_000


# On the simulator.


def _result(trace: Trace, size: ServerSize, speed: float = 1.0) -> TraceResult:
    result = TraceResult("test")
    play(Server(COSTS, size, None), trace, result, speed=speed)
    return result


def test_a_call_is_served_when_it_was_recorded(written: Path) -> None:
    result = _result(write(written, [call(7.0)]), ServerSize(pool=100))
    assert list(result.latencies) == pytest.approx([0.5 + 20 * 0.01 + 3 * 0.1])
    assert result.seconds == pytest.approx(7 + result.latencies[0])


def test_a_trace_may_run_faster(written: Path) -> None:
    result = _result(write(written, [call(8.0)]), ServerSize(pool=100), speed=4)
    assert result.seconds == pytest.approx(2 + result.latencies[0])


def test_prompts_share_what_their_first_hashes_share(written: Path) -> None:
    records: list[Record] = [
        call(0.0, 40, blocks=[1, 2, 3]),
        call(10.0, 40, blocks=[1, 2, 4]),
    ]
    result = _result(write(written, records), ServerSize(pool=100))
    assert (result.device, result.prompt) == (32, 80)


def test_a_prompt_goes_on_from_a_recorded_answer(written: Path) -> None:
    records: list[Record] = [
        call(0.0, 20, output=12, answer=True, blocks=[1, 2]),
        call(10.0, 40, blocks=[1, 2, 3]),
    ]
    result = _result(write(written, records), ServerSize(pool=100))
    assert result.device == 32


def test_a_call_that_does_not_fit_is_left_out_and_counted(written: Path) -> None:
    result = _result(write(written, [call(), call(0.0, 96)]), ServerSize(pool=100))
    assert (result.calls, result.too_long) == (1, 1)


def _workflow(runs: int) -> list[Record]:
    """Three agents take turns, with fixed prompts of 60 tokens; each call tells what
    comes next."""
    records: list[Record] = []
    for run in range(runs):
        for agent in range(3):
            number = run * 3 + agent
            told = Update(
                client=1,
                run=run,
                seq=agent,
                agent=str(agent),
                steps={str(other): other - agent for other in range(agent, 3)},
            )
            records.append(
                call(
                    number * 3.0,
                    70,
                    fixed=60,
                    blocks=[*range(agent * 10, agent * 10 + 4), 100 + number],
                    update=told,
                )
            )
        over = Update(client=1, run=run, seq=9, final=True)
        records.append(RecordedSteps(t=records[-1].t + 2, update=over))
    return records


def test_recorded_metadata_steers_the_simulated_server(written: Path) -> None:
    write(written, _workflow(10))
    size = ServerSize(pool=170, host=1000)
    results = simulate_trace(
        written, COSTS, size, ["ideal", "recompute", "hicache", "kvflow"]
    )
    assert {result.calls for result in results.values()} == {30}
    assert results["ideal"].device > 25 * 60
    assert results["hicache"].device == 0
    assert results["kvflow"].device > 20 * 60
    assert results["recompute"].hit_rate < 0.1 < results["hicache"].hit_rate
    report = results["kvflow"].to_dict()
    assert json.loads(json.dumps(report))["tokens"]["device"] > 20 * 60


def test_an_impossible_speed_is_refused(written: Path) -> None:
    write(written, [call()])
    with pytest.raises(ValueError, match="speed: above 0, not 0"):
        simulate_trace(written, COSTS, ServerSize(pool=100), speed=0)
