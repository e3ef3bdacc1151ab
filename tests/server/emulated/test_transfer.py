"""Copies put the right rows in the right place, at the rate of the bus."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvflow_server.emulated import streams
from kvflow_server.emulated.platform import BANDWIDTH_ENV, bandwidth_gbps
from kvflow_server.emulated.streams import Event, Stream
from kvflow_server.emulated.transfer import (
    Bus,
    Link,
    alloc_host_memory,
    is_host_memory,
    transfer_kv_direct,
)

SLOTS, HEADS, DIM = 32, 2, 4
ROW_BYTES = HEADS * DIM * 4


class TorchAllocator:
    """Allocates as SGLang's default host allocator does."""

    def allocate(
        self, dims: tuple[int, ...], dtype: torch.dtype, device: str
    ) -> torch.Tensor:
        return torch.empty(dims, dtype=dtype, device=device)


def host_pool(layers: int = 1) -> torch.Tensor:
    dims = (layers, SLOTS, HEADS, DIM)
    return alloc_host_memory(dims, torch.float32, "cpu", False, TorchAllocator())


def device_pool(layers: int = 1) -> torch.Tensor:
    return torch.zeros(layers, SLOTS, HEADS, DIM)


def slots(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int64)


def unlimited() -> Bus:
    return Bus(Link(0), Link(0))


class Time:
    """A clock that only moves when somebody sleeps or `now` is set."""

    def __init__(self) -> None:
        self.now = 0.0

    def link(self, bytes_per_second: float) -> Link:
        return Link(bytes_per_second, clock=lambda: self.now, sleep=self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.now += seconds


@given(st.permutations(range(SLOTS)), st.permutations(range(SLOTS)), st.integers(1, 31))
def test_rows_go_to_their_slots_and_no_other_row_changes(
    sources: list[int], targets: list[int], count: int
) -> None:
    source, target = (
        torch.randn(3, SLOTS, HEADS, DIM),
        torch.randn(3, SLOTS, HEADS, DIM),
    )
    expected = target.clone()
    for src, dst in zip(sources[:count], targets[:count], strict=True):
        expected[:, dst] = source[:, src]
    transfer_kv_direct(
        list(source),
        list(target),
        slots(*sources[:count]),
        slots(*targets[:count]),
        1,
        bus=unlimited(),
    )
    assert torch.equal(target, expected)


def test_a_copy_is_queued_on_the_current_stream() -> None:
    stream, opened = Stream(), threading.Event()
    source, target = torch.ones(1, SLOTS, HEADS, DIM), device_pool()
    stream.submit(lambda: opened.wait() and None)
    with streams.stream(stream):
        transfer_kv_direct(
            list(source), list(target), slots(3), slots(5), 1, bus=unlimited()
        )
    assert not target.any()
    opened.set()
    stream.synchronize()
    assert torch.equal(target[0, 5], source[0, 3])


def test_index_tensors_may_be_reused_once_the_copy_is_queued() -> None:
    stream, opened = Stream(), threading.Event()
    source, target, index = torch.randn(1, SLOTS, HEADS, DIM), device_pool(), slots(3)
    stream.submit(lambda: opened.wait() and None)
    with streams.stream(stream):
        transfer_kv_direct(list(source), list(target), index, index, 1, bus=unlimited())
    index.fill_(9)
    opened.set()
    stream.synchronize()
    assert torch.equal(target[0, 3], source[0, 3])
    assert not target[0, 9].any()


def test_a_layer_arrives_while_the_next_one_is_still_on_the_bus() -> None:
    sleeping, wake = threading.Event(), threading.Event()
    calls: list[float] = []

    def sleep(seconds: float) -> None:
        calls.append(seconds)
        if len(calls) == 2:
            sleeping.set()
            wake.wait()

    slow = Link(1.0, clock=lambda: 0.0, sleep=sleep)
    bus = Bus(host_to_device=slow, device_to_host=Link(0))
    host, device, stream = host_pool(2), device_pool(2), Stream()
    host.fill_(1)
    arrived = [Event(), Event()]
    with streams.stream(stream):
        for layer in range(2):
            transfer_kv_direct(
                [host[layer]], [device[layer]], slots(0), slots(0), 1, bus=bus
            )
            arrived[layer].record()
    sleeping.wait()
    assert arrived[0].query()
    assert device[0, 0].all()
    assert not arrived[1].query()
    assert not device[1, 0].any()
    wake.set()
    arrived[1].synchronize()
    assert device[1, 0].all()


def test_copies_out_of_host_memory_use_the_host_to_device_link() -> None:
    bus, host, device = unlimited(), host_pool(), device_pool()
    transfer_kv_direct(list(host), list(device), slots(1, 2), slots(3, 4), 1, bus=bus)
    assert bus.host_to_device.total_bytes == 2 * ROW_BYTES
    assert bus.device_to_host.total_bytes == 0


def test_copies_into_host_memory_use_the_device_to_host_link() -> None:
    bus, host, device = unlimited(), host_pool(2), device_pool(2)
    transfer_kv_direct(list(device), list(host), slots(1), slots(3), 1, bus=bus)
    assert bus.device_to_host.total_bytes == 2 * ROW_BYTES
    assert bus.host_to_device.total_bytes == 0


def test_a_view_keeps_its_pool_known_as_host_memory() -> None:
    view = host_pool()[0]
    gc.collect()
    assert is_host_memory(view)


def test_host_memory_that_was_given_up_is_forgotten() -> None:
    host = host_pool()
    # Shares the memory but is no view, so the address stays taken for the check.
    alias = torch.empty(0).set_(host.untyped_storage())
    assert is_host_memory(alias)
    del host
    gc.collect()
    assert not is_host_memory(alias)


def test_a_transfer_takes_its_bytes_over_the_bandwidth() -> None:
    time = Time()
    time.link(100.0).occupy(250, ready_at=0.0)
    assert time.now == 2.5


def test_transfers_queue_up_on_a_busy_link() -> None:
    time = Time()
    link = time.link(100.0)
    link.occupy(100, ready_at=0.0)
    link.occupy(100, ready_at=0.0)
    assert time.now == 2.0


def test_an_idle_link_saves_no_time_for_later() -> None:
    time = Time()
    link = time.link(100.0)
    time.now = 50.0
    link.occupy(100, ready_at=50.0)
    assert time.now == 51.0


def test_time_spent_copying_is_part_of_the_transfers_time() -> None:
    time = Time()
    link = time.link(100.0)
    link.occupy(100, ready_at=0.0)
    time.now += 0.25
    link.occupy(100, ready_at=0.0)
    assert time.now == 2.0


def test_the_two_directions_do_not_slow_each_other() -> None:
    time = Time()
    bus = Bus(host_to_device=time.link(100.0), device_to_host=time.link(100.0))
    bus.host_to_device.occupy(100, ready_at=0.0)
    bus.device_to_host.occupy(100, ready_at=0.0)
    assert time.now == 1.0


def test_a_copy_that_waited_for_an_event_starts_when_the_event_came() -> None:
    time = Time()
    link = time.link(ROW_BYTES)
    bus, host, device = Bus(link, Link(0)), host_pool(), device_pool()
    first, second = Stream(), Stream()
    with streams.stream(second):
        second.wait_stream(first)
        transfer_kv_direct(list(host), list(device), slots(0), slots(0), 1, bus=bus)
    second.synchronize()
    assert second.unblocked_at > 0
    # The event came at a real time far ahead of this clock, which stood at 0.
    assert time.now == pytest.approx(second.unblocked_at + 1.0)


def test_nothing_to_copy_is_no_transfer() -> None:
    bus, host, device = unlimited(), host_pool(), device_pool()
    transfer_kv_direct(list(host), list(device), slots(), slots(), 1, bus=bus)
    assert bus.host_to_device.total_bytes == 0


@pytest.mark.parametrize(
    ("sources", "targets", "layers"), [((1, 2), (3,), 1), ((1,), (2,), 2)]
)
def test_a_copy_whose_sides_differ_in_length_is_refused(
    sources: tuple[int, ...], targets: tuple[int, ...], layers: int
) -> None:
    with pytest.raises(ValueError, match="source"):
        transfer_kv_direct(
            list(host_pool(layers)),
            list(device_pool(1)),
            slots(*sources),
            slots(*targets),
            1,
        )


@pytest.mark.parametrize("text", ["fast", "-1", "inf", "nan"])
def test_a_bandwidth_that_is_none_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv(BANDWIDTH_ENV, text)
    with pytest.raises(ValueError, match=BANDWIDTH_ENV):
        bandwidth_gbps()


def test_the_bandwidth_is_read_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(BANDWIDTH_ENV, "0.05")
    assert bandwidth_gbps() == 0.05


def test_the_bus_stands_still_while_the_file_exists(tmp_path: Path) -> None:
    stall = tmp_path / "stall"
    bus = Bus.of_gbps(0, stall)
    stall.write_text("h2d")
    made = threading.Event()

    def copy() -> None:
        bus.host_to_device.occupy(10, 0)
        made.set()

    thread = threading.Thread(target=copy, daemon=True)
    thread.start()
    bus.device_to_host.occupy(10, 0)
    assert bus.device_to_host.total_bytes == 10, "the other direction goes on"
    assert not made.wait(0.1)
    stall.unlink()
    assert made.wait(10)
