"""An SGLang plugin that spoils one KV slot when told to: the proof that tests see it.

Lives in its own distribution, made by the test, because SGLang finds plugins by entry
point. The scheduler looks for the file named by KV_FAULT_FILE before each prefill; if
it is there, one slot of the request's cached prefix gets the KV of another token, as
if a copy had gone astray, and the file is removed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

FAULT_ENV = "KV_FAULT_FILE"


def register() -> None:
    """Entry point of the group `sglang.srt.plugins`."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(
        "sglang.srt.managers.scheduler.Scheduler.run_batch",
        _before_batch,
        HookType.BEFORE,
    )


def _before_batch(scheduler: Any, batch: Any, *_args: Any, **_kwargs: Any) -> None:
    order = Path(os.environ[FAULT_ENV])
    if not batch.forward_mode.is_extend() or not order.exists():
        return
    row, length = batch.req_pool_indices[0], batch.prefix_lens[0]
    slots = scheduler.req_to_token_pool.req_to_token[row, :length]
    pool = scheduler.token_to_kv_pool_allocator.get_kvcache()
    for layer in (*pool.k_buffer, *pool.v_buffer):
        layer[slots[length // 2]] = layer[slots[0]]
    order.unlink()
