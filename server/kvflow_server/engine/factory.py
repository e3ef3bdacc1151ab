"""Builds the cache in each scheduler, or says why it cannot be had."""

from __future__ import annotations

import logging
import os
from typing import Any

from sglang.srt.mem_cache.registry import create_unified_radix_cache

from .cache import KVFlowCache
from .config import EngineConfig, EngineConfigError
from .seams import (
    BACKEND,
    HTTP_READY,
    TESTED,
    KVFlowActivationError,
    Role,
    check_seams,
    refusals,
    sglang_version,
    unapplied_hooks,
)
from .tree import KVFlowTreeCore

__all__ = ["create_cache", "create_tree_core"]

logger = logging.getLogger(__name__)


def create_tree_core(params: Any, components: Any) -> KVFlowTreeCore:
    """SGLang's tree-core factory interface."""
    return KVFlowTreeCore(params, components)


def create_cache(ctx: Any) -> Any:
    """SGLang's radix-cache factory interface (`TreeCacheBuildContext`).

    Raises `KVFlowActivationError` with everything that stands in the way.
    """
    problems = [f"SGLang {sglang_version()}: {text}" for text in _seam_problems()]
    problems += refusals(ctx.server_args)
    problems += _model_refusals(ctx)
    try:
        config = EngineConfig.from_env()
    except EngineConfigError as error:
        problems.append(str(error))
        config = EngineConfig()
    if config.mode.prefetches and not ctx.enable_hierarchical_cache:
        problems.append(
            "prefetch needs host memory: add --enable-hierarchical-cache, or choose "
            "eviction only with KVFLOW_MODE=evict (kvflow serve --kvflow-mode evict)"
        )
    if problems:
        raise KVFlowActivationError(
            "KVFlow was chosen (--radix-cache-backend kvflow) and cannot run:\n  - "
            + "\n  - ".join(problems)
            + f"\nTested with SGLang {' and '.join(TESTED)}. `kvflow doctor` checks an "
            "installation; without the flag SGLang runs as it is."
        )
    if HTTP_READY not in os.environ:
        logger.warning(
            "KVFlow's HTTP routes and the OpenAI hook are not in place: put "
            "--radix-cache-backend kvflow on the command line (not in a config file) "
            "to have them. kv_hints on /generate work."
        )
    ctx.params.tree_core_backend = BACKEND
    return create_unified_radix_cache(ctx, cache_class=KVFlowCache)


def _seam_problems() -> list[str]:
    problems = check_seams([Role.SCHEDULER])
    unapplied = unapplied_hooks(Role.SCHEDULER)
    return problems + [
        f"the hook on {target} was not applied (see the log above)"
        for target in unapplied
    ]


def _model_refusals(ctx: Any) -> list[str]:
    from sglang.srt.configs.model_config import AttentionArch

    found = []
    if ctx.is_hybrid_swa:
        found.append("sliding-window models: not tried with KVFlow yet")
    if ctx.is_hybrid_ssm:
        found.append("Mamba models: a skipped request would leak its state slot")
    if ctx.model_config.attention_arch is not AttentionArch.MHA:
        found.append("MLA models: not tried with KVFlow yet")
    return found
