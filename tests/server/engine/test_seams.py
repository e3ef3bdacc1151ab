"""The table of SGLang's names is checked, and what is missing is said."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest

from kvflow_server.engine import seams


def test_this_sglang_has_every_seam_of_the_scheduler() -> None:
    assert seams.check_seams([seams.Role.SCHEDULER]) == []


def test_a_name_that_is_gone_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = seams.Seam("sglang.srt.mem_cache.registry.no_such_function")
    monkeypatch.setattr(seams, "SEAMS", (*seams.SEAMS, gone))
    (problem,) = seams.check_seams([seams.Role.SCHEDULER])
    assert "no_such_function is missing" in problem


def test_a_parameter_that_is_gone_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    target = "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache.load_back"
    monkeypatch.setattr(seams, "SEAMS", (seams.Seam(target, ("node_id", "colour")),))
    monkeypatch.setattr(seams, "HOOKS", ())
    assert seams.check_seams() == [f"{target} no longer takes colour"]


def test_a_hook_that_sglang_did_not_apply_is_reported() -> None:
    # In this process the plugin is loaded after the scheduler module, and nothing has
    # applied its hooks: SGLang would only have logged that.
    unapplied = seams.unapplied_hooks(seams.Role.SCHEDULER)
    assert any(target.endswith("get_next_batch_to_run") for target in unapplied)


def test_a_hook_is_applied_only_if_it_is_in_the_chain_of_its_target(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    from sglang.srt.utils import auth

    hook = next(h for h in seams.HOOKS if h.target.endswith("decide_request_auth"))
    monkeypatch.setattr(seams, "HOOKS", (hook,))
    monkeypatch.setattr(auth, "decide_request_auth", auth.decide_request_auth)
    monkeypatch.setattr(HookRegistry, "_hooks", defaultdict(list))
    monkeypatch.setattr(HookRegistry, "_patched", set())
    # Another plugin was first: SGLang ignores what comes later for the same target.
    HookRegistry.register(hook.target, lambda *_args, **_kw: None, HookType.AFTER)
    HookRegistry.apply_hooks()
    seams.register_hooks(hook.role)
    HookRegistry.apply_hooks()
    assert hook.target in HookRegistry._patched
    assert seams.unapplied_hooks(hook.role) == [hook.target]

    HookRegistry._patched.clear()
    HookRegistry.apply_hooks()
    assert seams.unapplied_hooks(hook.role) == []


def test_the_factory_refuses_with_everything_that_is_in_the_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from sglang.srt.configs.model_config import AttentionArch

    from kvflow_server.engine.factory import create_cache

    monkeypatch.setenv("KVFLOW_MODE", "everything")
    context: Any = SimpleNamespace(
        server_args=SimpleNamespace(pp_size=2, radix_eviction_policy="lfu"),
        is_hybrid_swa=True,
        is_hybrid_ssm=False,
        enable_hierarchical_cache=False,
        model_config=SimpleNamespace(attention_arch=AttentionArch.MLA),
    )
    with pytest.raises(seams.KVFlowActivationError) as refused:
        create_cache(context)
    text = str(refused.value)
    for part in (
        "--pp-size",
        "--radix-eviction-policy",
        "sliding-window",
        "MLA",
        "KVFLOW_MODE='everything': use one of off, protect, steps, evict, full",
        "--enable-hierarchical-cache",
        "was not applied",
        "did not call sglang.srt.server_args.ServerArgs.check_server_args",
        "kvflow doctor",
    ):
        assert part in text
