"""Streams and events keep CUDA's promises."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest
import torch

from kvflow_server.emulated import streams
from kvflow_server.emulated.streams import Event, Stream


class Gate:
    """A task that holds its stream until it is opened."""

    def __init__(self) -> None:
        self._open = threading.Event()

    def __call__(self) -> None:
        self._open.wait()

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open()


def test_work_of_a_stream_runs_in_the_order_of_submission() -> None:
    stream, seen = Stream(), []
    for number in range(100):
        stream.submit(lambda number=number: seen.append(number))
    stream.synchronize()
    assert seen == list(range(100))


def test_submit_returns_while_earlier_work_still_runs(gate: Gate) -> None:
    stream, seen = Stream(), []
    stream.submit(gate)
    stream.submit(lambda: seen.append("done"))
    assert seen == []
    gate.open()
    stream.synchronize()
    assert seen == ["done"]


def test_an_event_is_set_when_its_stream_reaches_it(gate: Gate) -> None:
    stream, event = Stream(), Event()
    stream.submit(gate)
    event.record(stream)
    assert not event.query()
    gate.open()
    event.synchronize()
    assert event.query()


def test_an_event_is_not_held_up_by_work_after_it(gate: Gate) -> None:
    stream, event = Stream(), Event()
    event.record(stream)
    stream.submit(gate)
    event.synchronize()
    assert not stream.query()


def test_an_event_never_recorded_is_complete() -> None:
    event = Event()
    event.synchronize()
    assert event.query()


def test_recording_again_makes_an_event_incomplete_again(gate: Gate) -> None:
    stream, event = Stream(), Event()
    event.record(stream)
    event.synchronize()
    stream.submit(gate)
    event.record(stream)
    assert not event.query()


def test_a_wait_is_for_the_record_before_it_not_for_a_later_one(gate: Gate) -> None:
    held, waiter, event, seen = Stream(), Stream(), Event(), []
    event.record(held)
    event.wait(waiter)
    held.submit(gate)
    event.record(held)
    waiter.submit(lambda: seen.append("ran"))
    waiter.synchronize()
    assert seen == ["ran"]


def test_a_stream_waits_for_an_event_of_another_stream(gate: Gate) -> None:
    first, second, seen = Stream(), Stream(), []
    first.submit(gate)
    first.submit(lambda: seen.append("first"))
    second.wait_event(first.record_event())
    second.submit(lambda: seen.append("second"))
    gate.open()
    second.synchronize()
    assert seen == ["first", "second"]


def test_waiting_for_a_stream_covers_all_its_present_work(gate: Gate) -> None:
    first, second, seen = Stream(), Stream(), []
    first.submit(gate)
    first.submit(lambda: seen.append("first"))
    second.wait_stream(first)
    second.submit(lambda: seen.append("second"))
    gate.open()
    second.synchronize()
    assert seen == ["first", "second"]


def test_waiting_for_torchs_own_cpu_stream_returns() -> None:
    stream = Stream()
    stream.wait_stream(torch.cpu.current_stream())
    stream.synchronize()


def test_the_compute_stream_blocks_its_thread_until_an_event(gate: Gate) -> None:
    stream, event, passed = Stream(), Event(), threading.Event()
    stream.submit(gate)
    event.record(stream)

    def compute() -> None:
        streams.current_stream().wait_event(event)
        passed.set()

    thread = threading.Thread(target=compute)
    thread.start()
    assert not passed.is_set()
    gate.open()
    thread.join()
    assert passed.is_set()


def test_the_compute_stream_is_always_done() -> None:
    event = streams.current_stream().record_event()
    assert event.query()
    assert streams.COMPUTE.query()


def test_the_stream_block_sets_and_restores_the_current_stream() -> None:
    outer, inner = Stream(), Stream()
    with streams.stream(outer):
        with streams.stream(inner):
            assert streams.current_stream() is inner
        assert streams.current_stream() is outer
    assert streams.current_stream() is streams.COMPUTE


def test_the_current_stream_belongs_to_one_thread() -> None:
    seen: list[Stream] = []
    with streams.stream(Stream()):
        thread = threading.Thread(target=lambda: seen.append(streams.current_stream()))
        thread.start()
        thread.join()
    assert seen == [streams.COMPUTE]


def test_events_are_recorded_on_the_current_stream(gate: Gate) -> None:
    stream, event = Stream(), Event()
    stream.submit(gate)
    with streams.stream(stream):
        event.record()
    assert not event.query()


def failing_stream() -> Stream:
    stream = Stream()
    stream.submit(lambda: [].pop())
    return stream


def test_a_failed_copy_is_raised_to_whoever_waits() -> None:
    stream = failing_stream()
    with pytest.raises(RuntimeError, match="copy failed"):
        stream.synchronize()


def test_work_after_a_failed_copy_is_not_done() -> None:
    stream, seen = failing_stream(), []
    stream.submit(lambda: seen.append("ran"))
    with pytest.raises(RuntimeError, match="copy failed"):
        stream.synchronize()
    assert seen == []


def test_a_failure_reaches_streams_that_waited_for_it() -> None:
    waiter = Stream()
    waiter.wait_stream(failing_stream())
    with pytest.raises(RuntimeError, match="copy failed"):
        waiter.synchronize()


def test_elapsed_time_is_in_milliseconds_and_never_negative() -> None:
    stream = Stream()
    start, end = Event(enable_timing=True), Event(enable_timing=True)
    start.record(stream)
    end.record(stream)
    end.synchronize()
    assert start.elapsed_time(end) >= 0
    assert end.elapsed_time(start) == -start.elapsed_time(end)


def test_elapsed_time_needs_events_made_for_timing() -> None:
    start, end = Event(), Event(enable_timing=True)
    start.record()
    end.record()
    with pytest.raises(RuntimeError, match="enable_timing"):
        start.elapsed_time(end)


def test_elapsed_time_needs_completed_events(gate: Gate) -> None:
    stream = Stream()
    start, end = Event(enable_timing=True), Event(enable_timing=True)
    start.record(stream)
    stream.submit(gate)
    end.record(stream)
    with pytest.raises(RuntimeError, match="complete"):
        start.elapsed_time(end)


def test_a_streams_thread_computes_alone_and_leaves_others_their_threads() -> None:
    before, stream, seen = torch.get_num_threads(), Stream(), []
    stream.submit(lambda: seen.append(torch.get_num_threads()))
    stream.synchronize()
    assert seen == [1]
    assert torch.get_num_threads() == before


def test_the_thread_ends_with_its_stream() -> None:
    stream, threads = Stream(), []
    stream.submit(lambda: threads.append(threading.current_thread()))
    stream.synchronize()
    del stream
    gc.collect()
    threads[0].join(timeout=30)
    assert not threads[0].is_alive()
