"""Machines that the simulator knows, each number with its source."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from kvflow_server.bench.paper.testbeds import TESTBEDS
from kvflow_server.emulated.costs import Costs

__all__ = ["PROFILES", "Profile"]


@dataclass(frozen=True, slots=True)
class Profile:
    """A machine with a model, and the device pool that it leaves."""

    costs: Costs
    pool_tokens: int
    about: str


def _h100_llama3_8b() -> Profile:
    """Of the paper's Figure 2: prefill and PCIe times of Llama-3.1-8B by prompt length
    (13.0 ms for 128 tokens, 64.3 for 4 096; 0.46 and 9.39 ms on the bus)."""
    h100, llama = TESTBEDS["h100"], TESTBEDS["a10g"].model
    both = dataclasses.replace(
        h100, name="h100-llama3-8b", model=llama, pool_tokens=450_000, fig5={}
    )
    costs = both.costs.changed(
        bus_bytes_per_s=57e9,
        bus_latency_s=0.00017,
        prefill_least_s=0.013,
        prefill_token_s=0.0643 / 4096,
        prefill_attention_s=0.0,
        source="prefill and bus: the paper's Figure 2; decode: data sheet, share of the "
        "memory bandwidth estimated",
    )
    # 88% of 80 GiB, less 16 GB of weights, over 128 KiB: an estimate.
    return Profile(costs, 450_000, "H100 80 GB, Llama-3-8B (Figure 6 and 8)")


_EMULATED = Costs(
    name="emulated",
    layers=8,
    kv_bytes=32 << 10,
    bus_bytes_per_s=0.1e9,
    prefill_s=0.05,
    prefill_token_s=0.00076,
    decode_s=0.06,
    call_s=0.01,
    emulated=True,
    source="fitted to results/single-0.1gbps.json: two CPU cores, the random model of "
    "`kvflow bench single`",
)

PROFILES = {
    "a10g": Profile(
        TESTBEDS["a10g"].costs,
        TESTBEDS["a10g"].pool_tokens,
        "A10G 24 GB, Llama-3.1-8B, PCIe 2 GB/s (Figure 5a)",
    ),
    "h100": Profile(
        TESTBEDS["h100"].costs,
        TESTBEDS["h100"].pool_tokens,
        "H100 80 GB, Qwen2.5-32B, PCIe 64 GB/s (Figures 5b, 6 and 8)",
    ),
    "h100-llama3-8b": _h100_llama3_8b(),
    "emulated": Profile(
        _EMULATED, 4_812, "the emulated accelerator of `kvflow bench single`, 0.1 GB/s"
    ),
}
