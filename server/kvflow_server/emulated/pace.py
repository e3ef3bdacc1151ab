"""The speed of the emulated device: a pass takes what the device's costs say.

The bus of the emulated accelerator is a rate limit, and so can its computing be. A pass
is computed for real, by a model that is small enough, and each layer is done when the
device would have been done with it: the pass's time over the layers, counted from when
the layer's KV had arrived. Meanwhile the cores are free, as they are beside a GPU.

On a GPU SGLang's overlap scheduling prepares a pass while the one before runs. Here a pass
blocks the scheduler. So the device goes on from where it was, if the scheduler took no
longer than a pass to come to the next; unless it had nothing to do in between (`IDLE`): then
the device had to wait for a request, and for what the scheduler did with it.

The costs are a file (`KVFLOW_EMULATED_DEVICE`) that is read again when it has changed.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from kvflow_server.emulated.costs import Costs, load_costs
from kvflow_server.emulated.platform import DEVICE_ENV
from kvflow_server.emulated.transfer import BUS

__all__ = ["IDLE", "Idle", "PacedDevice", "note_idle", "paced_device"]

logger = logging.getLogger(__name__)


class Idle:
    """When the scheduler of a process last had nothing for its device."""

    at = 0.0
    """Monotonic seconds."""


IDLE = Idle()
"""Of this process."""


def note_idle(*_args: object, **_kwargs: object) -> None:
    """BEFORE `Scheduler.on_idle`."""
    IDLE.at = time.monotonic()


class PacedDevice:
    """Holds back the passes of one process until the device would be done.

    Raises `ValueError` if the file is not one of costs; a later one that is not is
    passed over, with a warning. `changed` hears of every new one.
    """

    def __init__(
        self,
        path: Path,
        *,
        changed: Callable[[Costs], None] = lambda costs: None,
        idle: Idle = IDLE,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._path = path
        self._changed = changed
        self._idle = idle
        self._clock = clock
        self._sleep = sleep
        self._costs = load_costs(path)
        self._read_at = path.stat().st_mtime_ns
        changed(self._costs)
        self._due = 0.0
        """When the device is done with what it was given."""
        self._ended = 0.0
        """When the processor was."""
        self._layer_s = 0.0

    @property
    def costs(self) -> Costs:
        """As the file has them now."""
        try:
            changed_at = self._path.stat().st_mtime_ns
            if changed_at != self._read_at:
                self._read_at = changed_at
                self._costs = load_costs(self._path)
                self._changed(self._costs)
        except (OSError, ValueError) as error:
            logger.warning("the emulated device stays as it was: %s", error)
        return self._costs

    def begin_prefill(self, before: Sequence[int], new: Sequence[int]) -> None:
        """A pass over so many new tokens of each request, after so many cached ones."""
        shapes = list(zip(before, new, strict=True))
        self._begin(self.costs.prefill_seconds(shapes))

    def begin_decode(self, requests: int, context: int) -> None:
        """A pass over one token of each request; `context` is the sum of lengths."""
        self._begin(self.costs.decode_seconds(requests, context))

    def _begin(self, seconds: float) -> None:
        now = self._clock()
        if self._idle.at >= self._ended:
            self._due = now
        else:
            # Nor does it matter that the processor was slower than the device in a
            # short pass.
            exposed = now - self._ended - self._layer_s * self._costs.layers
            self._due += max(0.0, exposed)
        self._layer_s = seconds / self._costs.layers

    def end_layer(self, ready_at: float) -> None:
        """Block until the device has computed one more layer, which it could not begin
        before `ready_at` (clock time): its KV was under way."""
        self._due = max(self._due, ready_at) + self._layer_s
        if (delay := self._due - self._clock()) > 0:
            self._sleep(delay)
        self._ended = self._clock()


def paced_device() -> PacedDevice | None:
    """None: passes take what they take. Raises `ValueError` naming the file."""
    named = os.environ.get(DEVICE_ENV)
    return PacedDevice(Path(named), changed=_slow_down_bus) if named else None


def _slow_down_bus(costs: Costs) -> None:
    for link in (BUS.host_to_device, BUS.device_to_host):
        link.bytes_per_second = costs.bus_bytes_per_s
