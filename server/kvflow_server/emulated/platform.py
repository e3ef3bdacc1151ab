"""The emulated accelerator: SGLang's platform for machines without a GPU.

Entry point `kvflow_emulated` of the group `sglang.srt.platforms`, chosen with
SGLANG_PLATFORM=kvflow_emulated and inert otherwise. Scheduler, radix tree, model
arithmetic and KV copies are real; a rate limit stands in place of the bus.
"""

from __future__ import annotations

import os

__all__ = ["PLATFORM_NAME", "activate"]

PLATFORM_NAME = "kvflow_emulated"


def activate() -> str | None:
    """Return the platform class's name if chosen, else None (SGLang's contract).

    SGLang also calls this to discover platforms when none is chosen, on machines
    with a GPU too; answering None there leaves it alone.
    """
    if os.environ.get("SGLANG_PLATFORM") != PLATFORM_NAME:
        return None
    return "kvflow_server.emulated.accelerator.EmulatedPlatform"
