"""Copies between the emulated device's memory and host memory, over a slow bus.

Both memories are RAM. What is host memory is known by address, the way a GPU's
unified addressing knows it: pools made by `alloc_host_memory` are host, everything
else is device. A `Bus` has one `Link` per direction (full duplex); a copy occupies
its link for `bytes / bandwidth` and the data arrives at the end of that time, so a
reader that does not wait reads what was there before.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from kvflow_server.emulated.platform import STALL_ENV, bandwidth_gbps
from kvflow_server.emulated.streams import current_stream

__all__ = [
    "BUS",
    "Bus",
    "Link",
    "alloc_host_memory",
    "is_host_memory",
    "transfer_kv_direct",
]


class Link:
    """One direction of the bus: transfers queue up and share nothing.

    `bytes_per_second` of 0 means no limit. `total_bytes` counts what was moved. Each
    transfer passes `gate` first, which may keep it waiting, as a broken bus would.
    """

    def __init__(
        self,
        bytes_per_second: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        gate: Callable[[], None] = lambda: None,
    ) -> None:
        if not 0 <= bytes_per_second < float("inf"):
            raise ValueError(
                f"bytes_per_second is {bytes_per_second}, must be finite and >= 0"
            )
        self.bytes_per_second = bytes_per_second
        self.total_bytes = 0
        self.clock = clock
        self._sleep = sleep
        self._gate = gate
        self._busy_until = float("-inf")
        self._lock = threading.Lock()

    def occupy(self, nbytes: int, ready_at: float) -> None:
        """Block for the time that `nbytes` take.

        The transfer starts when it was ready (clock time) or when the link became
        free, whichever is later. Counting from there, and not from now, keeps the
        rate exact when the copying itself takes time too.
        """
        self._gate()
        with self._lock:
            self.total_bytes += nbytes
            if not self.bytes_per_second:
                return
            start = max(self._busy_until, ready_at)
            self._busy_until = until = start + nbytes / self.bytes_per_second
        if (delay := until - self.clock()) > 0:
            self._sleep(delay)


@dataclass(frozen=True, slots=True)
class Bus:
    """Both directions between host and device."""

    host_to_device: Link
    device_to_host: Link

    @classmethod
    def of_gbps(cls, gbps: float, stall: Path | None = None) -> Bus:
        """A full-duplex bus with `gbps` (1e9 bytes a second) each way; 0: no limit.

        While the file `stall` exists it stands still, or the direction that the file
        names (``h2d``, ``d2h``).
        """
        return cls(
            Link(gbps * 1e9, gate=_gate(stall, "h2d")),
            Link(gbps * 1e9, gate=_gate(stall, "d2h")),
        )


def _gate(stall: Path | None, direction: str) -> Callable[[], None]:
    def wait() -> None:
        while stall is not None and stall.exists():
            with contextlib.suppress(FileNotFoundError):
                if direction not in (stall.read_text().split() or [direction]):
                    return
            time.sleep(_STALL_POLL_S)

    return wait


_STALL_POLL_S = 0.01
BUS = Bus.of_gbps(
    bandwidth_gbps(),
    Path(os.environ[STALL_ENV]) if os.environ.get(STALL_ENV) else None,
)

_host_ranges: dict[int, int] = {}


def alloc_host_memory(
    dims: tuple[int, ...],
    dtype: torch.dtype,
    device: str,
    pin_memory: bool,
    allocator: Any,
    registration_granularity_bytes: int | None = None,
) -> torch.Tensor:
    """Allocate a host pool; an entry of SGLang's `ALLOC_MEMORY_FUNCS`.

    The default entry registers pinned memory with CUDA, which is not there.
    """
    buffer: torch.Tensor = allocator.allocate(dims, dtype=dtype, device=device)
    # Pages that are first touched inside a copy would be charged to the bus.
    buffer.zero_()
    start = buffer.untyped_storage().data_ptr()
    _host_ranges[start] = start + buffer.untyped_storage().nbytes()
    weakref.finalize(buffer, _host_ranges.pop, start, None).atexit = False
    return buffer


def is_host_memory(tensor: torch.Tensor) -> bool:
    """Whether `tensor` lies in a pool made by `alloc_host_memory`."""
    address = tensor.data_ptr()
    return any(start <= address < end for start, end in _host_ranges.items())


def transfer_kv_direct(
    src_layers: Sequence[torch.Tensor],
    dst_layers: Sequence[torch.Tensor],
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    page_size: int,
    *,
    bus: Bus | None = None,
) -> None:
    """Queue a copy of rows on the current stream; same contract as sgl_kernel's.

    For each layer (shape `[slots, heads, dim]`), row `src_indices[i]` of the source
    goes to row `dst_indices[i]` of the destination. The indices are int64 token
    slots, whole pages at a time. Layers are copied one after another.
    """
    if len(src_layers) != len(dst_layers):
        raise ValueError(f"{len(src_layers)} source, {len(dst_layers)} target layers")
    if src_indices.numel() != dst_indices.numel():
        raise ValueError(
            f"{src_indices.numel()} source, {dst_indices.numel()} target slots"
        )
    if not src_layers or not src_indices.numel():
        return
    bus = bus or BUS
    link = bus.host_to_device if is_host_memory(src_layers[0]) else bus.device_to_host
    # The caller may reuse its index tensors before the stream comes to them.
    source, target = src_indices.clone(), dst_indices.clone()
    stream = current_stream()
    submitted_at = link.clock()

    def copy(src: torch.Tensor, dst: torch.Tensor) -> None:
        nbytes = source.numel() * src[0].numel() * src.element_size()
        link.occupy(nbytes, max(submitted_at, stream.unblocked_at))
        dst.index_copy_(0, target, src.index_select(0, source))

    for src, dst in zip(src_layers, dst_layers, strict=True):
        stream.submit(partial(copy, src, dst))
