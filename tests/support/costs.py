"""A machine whose times are easy to add up by hand."""

from __future__ import annotations

from kvflow_server.emulated.costs import Costs

__all__ = ["COSTS"]

COSTS = Costs(
    name="test",
    layers=4,
    kv_bytes=1,
    bus_bytes_per_s=1000,
    prefill_s=0.5,
    prefill_token_s=0.01,
    decode_s=0.1,
)
