"""Builds the cache in each scheduler, or says why it cannot be had."""

from __future__ import annotations

import os
from typing import Any

from sglang.srt.mem_cache.registry import create_unified_radix_cache

from .cache import KVFlowCache
from .config import settings_problems
from .seams import (
    ACTIVATED,
    BACKEND,
    LAUNCH,
    Role,
    activation_error,
    check_seams,
    sglang_version,
    unapplied_hooks,
)
from .support import model_refusals, refusals
from .tree import KVFlowTreeCore

__all__ = ["create_cache", "create_tree_core"]


def create_tree_core(params: Any, components: Any) -> KVFlowTreeCore:
    """SGLang's tree-core factory interface."""
    return KVFlowTreeCore(params, components)


def create_cache(ctx: Any) -> Any:
    """SGLang's radix-cache factory interface (`TreeCacheBuildContext`).

    Raises `KVFlowActivationError` with everything that stands in the way.
    """
    problems = _seam_problems()
    problems += refusals(ctx.server_args)
    problems += _model_refusals(ctx)
    problems += settings_problems(hierarchical_cache=ctx.enable_hierarchical_cache)
    if problems:
        raise activation_error(problems)
    ctx.params.tree_core_backend = BACKEND
    return create_unified_radix_cache(ctx, cache_class=KVFlowCache)


def _seam_problems() -> list[str]:
    problems = [
        f"SGLang {sglang_version()}: {p}" for p in check_seams([Role.SCHEDULER])
    ]
    problems += [
        f"the hook on {target} was not applied (see the log above)"
        for target in unapplied_hooks(Role.SCHEDULER)
    ]
    if ACTIVATED not in os.environ:
        problems.append(
            f"the process that launched this server did not call {LAUNCH} with KVFlow's "
            "plugin loaded, so it has neither KVFlow's hooks nor its routes"
        )
    return problems


def _model_refusals(ctx: Any) -> list[str]:
    from sglang.srt.configs.model_config import AttentionArch

    return model_refusals(
        sliding_window=ctx.is_hybrid_swa,
        mamba=ctx.is_hybrid_ssm,
        mla=ctx.model_config.attention_arch is not AttentionArch.MHA,
    )
