"""The emulated device of a testbed: what its file says, and making the whole fit it.

The machine itself takes some milliseconds for a call and for a step, HTTP, tokenizer and
scheduler, which the testbed's proportions do not have. They are measured on the system
that never evicts, and taken off the decoding of all.
"""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.progress import Progress

from kvflow_server.bench.single import start_all
from kvflow_server.bench.systems import SYSTEMS, start
from kvflow_server.emulated.costs import Costs
from kvflow_server.emulated.platform import DEVICE_ENV
from kvflow_server.emulated.tiny import tiny_model

from .scale import Servers

__all__ = ["ROUNDS", "Device", "serve", "tuned"]

ROUNDS = 2
"""Times that decoding is measured and corrected."""


class Device:
    """The file that all servers of a testbed go by. Ends with `stack`."""

    def __init__(self, stack: ExitStack, costs: Costs) -> None:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="kvflow-"))
        self._path = Path(folder) / "device.json"
        self.become(costs)

    @property
    def env(self) -> dict[str, str]:
        """Of a server."""
        return {DEVICE_ENV: str(self._path)}

    def become(self, costs: Costs) -> None:
        """From the next pass on."""
        written = self._path.with_suffix(".new")
        written.write_text(json.dumps(costs.to_dict()))
        os.replace(written, self._path)


def serve(
    stack: ExitStack,
    progress: Progress,
    systems: Sequence[str],
    servers: Servers,
    costs: Costs,
) -> tuple[Device, dict[str, str]]:
    """Start a server for each system, all on one device, until `stack` ends; returns
    the device, and their URLs by system."""
    device = Device(stack, costs)
    model = str(tiny_model(servers.dims))
    started = {n: start(SYSTEMS[n], servers, model, device.env) for n in systems}
    start_all(stack, progress, started)
    return device, {name: server.url for name, server in started.items()}


def tuned(
    device: Device,
    costs: Costs,
    steps: int,
    wanted_s: float,
    measure: Callable[[], float],
) -> Costs:
    """`costs` with the decoding that makes a call take `wanted_s`, as far as possible.

    `measure` runs calls of `steps` decode steps each that find their prompts, and returns
    the seconds of one; the device is left with what is returned.
    """
    for _ in range(ROUNDS):
        device.become(costs)
        over = measure() - wanted_s
        step = max(0.0, costs.decode_s - over / max(1, steps))
        costs = dataclasses.replace(costs, decode_s=step)
    device.become(costs)
    return costs
