"""What a scheduler writes of what it sees: in order, hashed, bounded."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvflow_sdk.wire import FixedMark, StepUpdate
from kvflow_server.engine import recording
from kvflow_server.engine.config import EngineConfig, EngineConfigError, Recording
from kvflow_server.engine.recording import BLOCK, Recorder
from kvflow_server.engine.trace import Record, RecordedCall, RecordedSteps, Trace

pytestmark = pytest.mark.sglang

CLIENT = "client-0123456789abcdef"
MEGABYTE = 1 << 20
Start = Callable[..., Recorder]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.jsonl"


@pytest.fixture
def start(path: Path) -> Iterator[Start]:
    started = []

    def make(max_bytes: int = MEGABYTE, to: Path = path) -> Recorder:
        started.append(Recorder(Recording(str(to), max_bytes)))
        return started[-1]

    yield make
    for recorder in started:
        recorder.close()


def request(prompt: list[int], *, fixed: int = 0, **options: Any) -> Any:
    """One of SGLang's own, as it is when it arrives."""
    from array import array

    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.sampling.sampling_params import SamplingParams

    from kvflow_server.engine.hints import RequestTag
    from kvflow_server.policy.priority import Owner

    sampling = SamplingParams(max_new_tokens=options.pop("output", 4))
    req = Req("r", "", array("q", prompt), sampling, **options)
    if fixed:
        req.kvflow_tag = RequestTag(Owner(CLIENT, "run", "planner"), fixed)
    return req


def finish(req: Any, answer: list[int]) -> None:
    from sglang.srt.managers.schedule_batch import FINISH_LENGTH

    req.output_ids.extend(answer)
    req.finished_reason = FINISH_LENGTH(len(answer))


def update(seq: int, **fields: Any) -> StepUpdate:
    return StepUpdate(client=CLIENT, run="run", seq=seq, **fields)


def written(recorder: Recorder, path: Path) -> list[Record]:
    recorder.close()
    return list(Trace(path))


def test_what_arrives_is_written_in_its_order(start: Start, path: Path) -> None:
    recorder = start()
    slow, quick = request([1] * 70, fixed=65), request([2] * 10)
    told = update(2, agent="planner", fixed=FixedMark(tokens=65))
    recorder.note_steps([update(1, steps={"planner": 0})])
    recorder.note_call(slow, [told])
    recorder.note_call(quick, [])
    recorder.note_steps([update(3, final=True)])
    finish(quick, [7])
    recorder.after_pass([slow])
    finish(slow, [8, 9])
    recorder.after_pass([])
    first, long, short, last = written(recorder, path)
    assert isinstance(first, RecordedSteps)
    assert first.update.steps == {"planner": 0}
    assert isinstance(long, RecordedCall)
    assert (long.prompt, long.output, long.fixed) == (70, 2, 65)
    assert long.update is not None
    assert (long.update.agent, long.update.seq) == ("planner", 2)
    assert long.update.client == first.update.client
    assert not long.learned
    assert long.took is not None
    assert isinstance(short, RecordedCall)
    assert (short.prompt, short.output, short.update) == (10, 1, None)
    assert isinstance(last, RecordedSteps)
    assert last.update.final


def test_a_boundary_that_the_server_found_is_said_to_be_learned(
    start: Start, path: Path
) -> None:
    recorder = start()
    req = request([1] * 70, fixed=65)
    recorder.note_call(req, [update(1, agent="planner")])
    finish(req, [1])
    recorder.after_pass([])
    (call,) = written(recorder, path)
    assert isinstance(call, RecordedCall)
    assert call.learned


def calls(start: Start, path: Path, *requests: Any) -> list[RecordedCall]:
    recorder = start(to=path)
    for req in requests:
        recorder.note_call(req, [])
        finish(req, [5, 6])
    recorder.after_pass([])
    found = written(recorder, path)
    assert all(isinstance(call, RecordedCall) for call in found)
    return [call for call in found if isinstance(call, RecordedCall)]


def test_prompts_share_hashes_as_far_as_they_share_blocks(
    start: Start, path: Path
) -> None:
    head = list(range(2 * BLOCK))
    a, b = calls(start, path, request([*head, 1, 2]), request([*head, 3, 4]))
    assert len(a.blocks) == 3
    assert a.blocks[:2] == b.blocks[:2]
    assert a.blocks[2] != b.blocks[2]


def test_blocks_are_counted_anew_where_the_fixed_prompt_ends(
    start: Start, path: Path
) -> None:
    head = list(range(BLOCK + 9))
    a, b = calls(
        start,
        path,
        request([*head, 1], fixed=len(head)),
        request([*head, 2], fixed=len(head)),
    )
    assert a.blocks[:2] == b.blocks[:2]
    assert a.spans(BLOCK)[1] == (a.blocks[1], 0, 9)


def test_a_prompt_that_goes_on_from_an_answer_shares_it(
    start: Start, path: Path
) -> None:
    first = list(range(BLOCK - 2))
    a, b = calls(start, path, request(first), request([*first, 5, 6, 7]))
    assert (a.answer, a.blocks[0]) == (True, b.blocks[0])


def test_prompts_of_two_namespaces_share_nothing(start: Start, path: Path) -> None:
    tokens = list(range(BLOCK))
    a, b = calls(start, path, request(tokens), request(tokens, extra_key="tenant"))
    assert a.blocks[0] != b.blocks[0]


def test_two_recordings_have_no_hash_in_common(start: Start, tmp_path: Path) -> None:
    found = [
        calls(start, tmp_path / name, request([1] * 100))[0].blocks for name in "ab"
    ]
    assert not set(found[0]) & set(found[1])


def test_a_client_s_id_is_never_written(start: Start, path: Path) -> None:
    recorder = start()
    recorder.note_steps([update(1, steps={"planner": 0})])
    recorder.after_pass([])
    recorder.close()
    assert CLIENT not in path.read_text()
    assert "planner" in path.read_text()


def test_a_name_that_is_no_unicode_text_does_not_end_it(
    start: Start, path: Path
) -> None:
    recorder = start()
    recorder.note_steps([update(1, steps={"half \ud800": 0})])
    recorder.after_pass([])
    (steps,) = written(recorder, path)
    assert steps.update is not None
    assert steps.update.steps == {"half ?": 0}


def test_the_prefix_run_of_several_answers_is_no_call(start: Start, path: Path) -> None:
    recorder = start()
    recorder.note_call(request([1] * 10, output=0), [])
    assert written(recorder, path) == []


def test_a_call_that_is_gone_without_an_end_does_not_hold_up_the_rest(
    start: Start, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "LOST_S", -1)
    recorder = start()
    recorder.note_call(request([1] * 10), [])
    recorder.after_pass([])
    (call,) = written(recorder, path)
    assert isinstance(call, RecordedCall)
    assert (call.output, call.took) == (0, None)


def test_calls_under_way_are_written_when_it_ends(start: Start, path: Path) -> None:
    recorder = start()
    req = request([1] * 10)
    recorder.note_call(req, [])
    recorder.after_pass([req])
    assert len(written(recorder, path)) == 1


def test_too_many_records_behind_one_call_end_it(
    start: Start, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "MAX_PENDING", 3)
    recorder = start()
    req = request([1] * 10)
    recorder.note_call(req, [])
    for seq in range(3):
        recorder.note_steps([update(seq)])
    recorder.after_pass([req])
    assert len(recorder._pending) == 0
    assert len(written(recorder, path)) == 4


def test_at_its_limit_it_ends_and_says_so(
    start: Start, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = start(max_bytes=1)
    with caplog.at_level(logging.WARNING):
        recorder.note_steps([update(1)])
        recorder.after_pass([])
        recorder.close()
    assert "reached its limit of 0 MB (KVFLOW_RECORD_MB)" in caplog.text
    assert not recorder.active
    recorder.note_steps([update(2)])
    recorder.after_pass([])
    assert len(list(Trace(path))) == 1


def test_a_writer_that_lags_ends_it_and_says_so(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recording, "MAX_BACKLOG", 5)
    recorder = start()
    req = request([1] * 10)
    recorder.note_call(req, [])
    finish(req, [1])
    with caplog.at_level(logging.WARNING):
        recorder.after_pass([])
    assert "the disk is too slow" in caplog.text
    assert not recorder.active


def test_a_full_disk_is_told_at_the_start(start: Start) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no device that is always full")
    with pytest.raises(OSError, match="No space left"):
        start(to=Path("/dev/full"))


def test_a_write_that_fails_ends_it_and_says_so(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = start()
    recorder._writer._file.close()
    with caplog.at_level(logging.WARNING):
        recorder.note_steps([update(1)])
        recorder.after_pass([])
        recorder.close()
    assert "closed file" in caplog.text
    assert not recorder.active


def test_the_settings_name_the_file_and_its_limit(path: Path) -> None:
    env = {"KVFLOW_RECORD": str(path), "KVFLOW_RECORD_MB": "3"}
    config = EngineConfig.from_env(env)
    assert config.record == Recording(str(path), 3 * MEGABYTE)
    assert json.dumps(config.describe()["record"])
    with pytest.raises(EngineConfigError, match=r"KVFLOW_RECORD='/no/where/t.jsonl'"):
        EngineConfig.from_env({"KVFLOW_RECORD": "/no/where/t.jsonl"})
