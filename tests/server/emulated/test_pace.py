"""A pass on the paced device, with a clock that only sleeping moves."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from costs import COSTS

from kvflow_server.emulated.costs import Costs
from kvflow_server.emulated.pace import Idle, PacedDevice, paced_device
from kvflow_server.emulated.platform import DEVICE_ENV
from kvflow_server.emulated.transfer import BUS


@dataclass
class Clock:
    now: float = 100.0
    slept: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def written(path: Path, costs: Costs = COSTS) -> Path:
    path.write_text(json.dumps(costs.to_dict()))
    return path


def a_pass(pace: PacedDevice, clock: Clock, ready: tuple[float, ...] = ()) -> float:
    """Seconds of the layers of a pass that has begun; `ready` says from the clock's
    start on when their KV was there."""
    began = clock.now
    for layer in range(COSTS.layers):
        at = began + ready[layer] if ready else 0.0
        clock.now = max(clock.now, at)  # the caller waits for it
        pace.end_layer(at)
    return clock.now - began


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def idle() -> Idle:
    return Idle()


@pytest.fixture
def pace(tmp_path: Path, clock: Clock, idle: Idle) -> PacedDevice:
    path = written(tmp_path / "device.json")
    return PacedDevice(path, idle=idle, clock=clock, sleep=clock.sleep)


def test_a_prefill_takes_what_its_new_tokens_cost(
    pace: PacedDevice, clock: Clock
) -> None:
    pace.begin_prefill([0, 40], [30, 20])
    assert a_pass(pace, clock) == pytest.approx(0.5 + 50 * 0.01)


def test_a_step_takes_what_a_step_costs(pace: PacedDevice, clock: Clock) -> None:
    pace.begin_decode(3, 900)
    assert a_pass(pace, clock) == pytest.approx(0.1)


def test_each_layer_is_done_in_its_turn(pace: PacedDevice, clock: Clock) -> None:
    pace.begin_prefill([0], [50])
    a_pass(pace, clock)
    assert clock.slept == pytest.approx([0.25] * 4)


def test_real_computing_is_part_of_the_time_and_not_added(
    pace: PacedDevice, clock: Clock
) -> None:
    pace.begin_prefill([0], [50])
    clock.now += 0.2
    assert 0.2 + a_pass(pace, clock) == pytest.approx(1.0)


def test_a_pass_that_took_longer_is_not_held_back(
    pace: PacedDevice, clock: Clock
) -> None:
    pace.begin_prefill([0], [50])
    clock.now += 5.0
    assert a_pass(pace, clock) == 0


def test_a_layer_whose_kv_came_late_is_computed_after_it(
    pace: PacedDevice, clock: Clock
) -> None:
    # Layer-wise loading: of a copy of 4 x 0.4 s beside 4 x 0.25 s of computing, all but
    # the last layer's computing hides.
    pace.begin_prefill([0], [50])
    assert a_pass(pace, clock, (0.4, 0.8, 1.2, 1.6)) == pytest.approx(1.6 + 0.25)


def test_a_copy_that_is_faster_hides_but_for_its_first_layer(
    pace: PacedDevice, clock: Clock
) -> None:
    pace.begin_prefill([0], [50])
    assert a_pass(pace, clock, (0.1, 0.2, 0.3, 0.4)) == pytest.approx(0.1 + 1.0)


@pytest.mark.parametrize(
    ("begin", "takes"),
    [
        (lambda pace: pace.begin_decode(1, 1), 0.1),
        (lambda pace: pace.begin_prefill([0], [50]), 1.0),
    ],
    ids=["step", "prefill"],
)
def test_a_pass_follows_the_one_before_without_a_gap(
    pace: PacedDevice,
    clock: Clock,
    begin: Callable[[PacedDevice], None],
    takes: float,
) -> None:
    # What the scheduler does between two passes, a GPU does not wait for.
    began = clock.now
    for _ in range(3):
        clock.now += 0.03
        begin(pace)
        a_pass(pace, clock)
    assert clock.now - began == pytest.approx(0.03 + 3 * takes)


def test_a_scheduler_that_takes_longer_than_a_pass_is_waited_for(
    pace: PacedDevice, clock: Clock
) -> None:
    # It began with the pass, and came to the next step 0.15 s later.
    began = clock.now
    pace.begin_decode(1, 1)
    a_pass(pace, clock)
    clock.now += 0.15
    pace.begin_decode(1, 1)
    a_pass(pace, clock)
    assert clock.now - began == pytest.approx(0.15 + 0.1)


def test_a_step_makes_up_for_a_short_pass_that_the_processor_was_slow_at(
    pace: PacedDevice, clock: Clock
) -> None:
    began = clock.now
    pace.begin_decode(1, 1)
    clock.now += 0.12  # of which the device takes 0.1
    a_pass(pace, clock)
    pace.begin_decode(1, 1)
    a_pass(pace, clock)
    assert clock.now - began == pytest.approx(0.2)


def test_after_an_idle_scheduler_a_pass_begins_when_it_is_there(
    pace: PacedDevice, clock: Clock, idle: Idle
) -> None:
    pace.begin_decode(1, 1)
    a_pass(pace, clock)
    idle.at = clock.now + 0.01
    clock.now += 0.03
    pace.begin_prefill([0], [50])
    assert a_pass(pace, clock) == pytest.approx(1.0)


def test_another_device_counts_from_the_next_pass_on(
    pace: PacedDevice, clock: Clock, tmp_path: Path
) -> None:
    other = written(tmp_path / "new", COSTS.changed(decode_s=0.4))
    os.utime(other, ns=(1, 1))  # no two writes at one time of the file system
    other.replace(tmp_path / "device.json")
    pace.begin_decode(1, 1)
    assert a_pass(pace, clock) == pytest.approx(0.4)


def test_a_file_that_is_broken_later_changes_nothing(
    pace: PacedDevice, clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "device.json").write_text("{")
    os.utime(tmp_path / "device.json", ns=(1, 1))
    pace.begin_decode(1, 1)
    assert a_pass(pace, clock) == pytest.approx(0.1)
    assert "device.json" in caplog.text


def test_a_file_that_is_none_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DEVICE_ENV, str(tmp_path / "nothing.json"))
    with pytest.raises(ValueError, match=r"nothing\.json"):
        paced_device()


def test_the_bus_has_the_devices_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for link in (BUS.host_to_device, BUS.device_to_host):
        monkeypatch.setattr(link, "bytes_per_second", 1.0)
    monkeypatch.setenv(DEVICE_ENV, str(written(tmp_path / "device.json")))
    device = paced_device()
    assert BUS.host_to_device.bytes_per_second == COSTS.bus_bytes_per_s
    written(tmp_path / "device.json", COSTS.changed(bus_bytes_per_s=7.0))
    os.utime(tmp_path / "device.json", ns=(1, 1))
    assert device is not None
    device.begin_decode(1, 1)
    assert BUS.device_to_host.bytes_per_second == 7.0


def test_without_a_file_nothing_is_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DEVICE_ENV, raising=False)
    assert paced_device() is None
