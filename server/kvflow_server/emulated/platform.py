"""The emulated accelerator: SGLang's platform for machines without a GPU.

Entry point `kvflow_emulated` of the group `sglang.srt.platforms`, chosen with
SGLANG_PLATFORM=kvflow_emulated and inert otherwise. Scheduler, radix tree, model
arithmetic and KV copies are real; a rate limit stands in place of the bus.
"""

from __future__ import annotations

import os

__all__ = [
    "BANDWIDTH_ENV",
    "DEFAULT_GBPS",
    "DEVICE_ENV",
    "PLATFORM_NAME",
    "STALL_ENV",
    "activate",
    "bandwidth_gbps",
]

PLATFORM_NAME = "kvflow_emulated"
BANDWIDTH_ENV = "KVFLOW_EMULATED_PCIE_GBPS"
DEVICE_ENV = "KVFLOW_EMULATED_DEVICE"
"""Path of a JSON file with the costs of a device (`costs.Costs`): no pass takes less
than they say, and the bus has their rate. Unset: passes take what the processor takes."""
STALL_ENV = "KVFLOW_EMULATED_STALL"
"""Path of a file for tests: while it exists the bus stands still, as a broken one would.
A file that names ``h2d`` or ``d2h`` stalls that direction only."""
DEFAULT_GBPS = 0.1
"""GB/s (1e9 bytes) each way. A two-core machine computes about as much slower than
a GPU as this is slower than PCIe, which keeps the two in proportion."""


def activate() -> str | None:
    """Return the platform class's name if chosen, else None (SGLang's contract).

    SGLang also calls this to discover platforms when none is chosen, on machines
    with a GPU too; answering None there leaves it alone.
    """
    if os.environ.get("SGLANG_PLATFORM") != PLATFORM_NAME:
        return None
    return "kvflow_server.emulated.accelerator.EmulatedPlatform"


def bandwidth_gbps() -> float:
    """The bus rate that the environment asks for; 0 means no limit.

    Raises `ValueError` naming the variable.
    """
    text = os.environ.get(BANDWIDTH_ENV, "").strip()
    try:
        gbps = float(text) if text else DEFAULT_GBPS
    except ValueError:
        gbps = -1.0
    if not 0 <= gbps < float("inf"):
        raise ValueError(
            f"{BANDWIDTH_ENV} is {text!r}, must be a number of GB/s >= 0 (0: no limit)"
        )
    return gbps
