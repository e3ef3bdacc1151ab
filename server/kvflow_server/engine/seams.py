"""Every name of SGLang that KVFlow touches, in one table, checked at start.

SGLang only logs when a hook's target is missing or a plugin raises, and then runs
without it. So the cache factory and `kvflow doctor` check this table, and a server that
was asked for KVFlow and cannot have it refuses to start, saying what is missing.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from typing import Any

__all__ = [
    "BACKEND",
    "HOOKS",
    "HTTP_READY",
    "SEAMS",
    "TESTED",
    "Hook",
    "KVFlowActivationError",
    "Role",
    "Seam",
    "check_seams",
    "refusals",
    "sglang_version",
    "unapplied_hooks",
]

BACKEND = "kvflow"
"""The value of ``--radix-cache-backend`` that chooses KVFlow."""

HTTP_READY = "KVFLOW_HTTP_READY"
"""Set for the schedulers once the HTTP process has its routes and hooks."""

TESTED = ("0.5.22", "0.5.23")
"""SGLang releases that have every seam; the recipes were run on the last."""


class KVFlowActivationError(RuntimeError):
    """KVFlow was asked for and cannot run on this SGLang or with these flags."""


class Role(Enum):
    """Which process a seam is used in."""

    SCHEDULER = "scheduler"
    HTTP = "http"


@dataclass(frozen=True, slots=True)
class Seam:
    """A name that KVFlow overrides, calls or reads."""

    target: str
    """``module.Class.attribute``."""
    parameters: tuple[str, ...] = ()
    """Parameter names that must be among the callable's."""
    role: Role = Role.SCHEDULER


@dataclass(frozen=True, slots=True)
class Hook:
    """A function that runs after (or before) one of SGLang's."""

    target: str
    parameters: tuple[str, ...]
    role: Role
    load: Callable[[], Callable[..., Any]]
    """Imports the hook function late: registering must stay light."""
    when: str = "after"
    """`HookType` by its value: "after" or "before"."""


def _scheduling(name: str) -> Callable[..., Any]:
    from . import scheduling

    hook: Callable[..., Any] = getattr(scheduling, name)
    return hook


def _openai(name: str) -> Callable[..., Any]:
    from . import openai_hints

    hook: Callable[..., Any] = getattr(openai_hints, name)
    return hook


def _auth() -> Callable[..., Any]:
    from .access import after_auth

    return after_auth


def _handlers() -> Callable[..., Any]:
    from .messages import add_handlers

    return add_handlers


def _adder_class(stock: Any, scheduler: Any) -> Any:
    from .cache import KVFlowCache
    from .scheduling import KVFlowPrefillAdder

    chosen = isinstance(scheduler.tree_cache, KVFlowCache)
    return KVFlowPrefillAdder if chosen else stock


def _tagged(req: Any, scheduler: Any, *_args: Any, **_kwargs: Any) -> None:
    _scheduling("tag_request")(req, scheduler)


def _passed(plan: Any, scheduler: Any, *_args: Any, **_kwargs: Any) -> None:
    _scheduling("after_pass")(plan, scheduler)


_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
_CHAT = "sglang.srt.entrypoints.openai.serving_chat.OpenAIServingChat"
_COMPLETION = (
    "sglang.srt.entrypoints.openai.serving_completions.OpenAIServingCompletion"
)
_TOKENIZER = "sglang.srt.managers.tokenizer_manager.TokenizerManager"

HOOKS: tuple[Hook, ...] = (
    Hook(
        f"{_SCHEDULER}.get_prefill_adder_class",
        (),
        Role.SCHEDULER,
        lambda: _adder_class,
    ),
    Hook(f"{_SCHEDULER}._create_generation_req", (), Role.SCHEDULER, lambda: _tagged),
    Hook(
        f"{_SCHEDULER}.get_next_batch_to_run",
        ("running_batch", "last_batch"),
        Role.SCHEDULER,
        lambda: _passed,
    ),
    Hook(f"{_SCHEDULER}.init_request_dispatcher", (), Role.SCHEDULER, _handlers),
    Hook(
        f"{_SCHEDULER}.flush_cache",
        (),
        Role.SCHEDULER,
        lambda: _scheduling("before_flush"),
        when="before",
    ),
    Hook(
        f"{_CHAT}._convert_to_internal_request",
        ("request", "raw_request"),
        Role.HTTP,
        lambda: _openai("after_chat"),
    ),
    Hook(
        f"{_COMPLETION}._convert_to_internal_request",
        ("request", "raw_request"),
        Role.HTTP,
        lambda: _openai("after_completion"),
    ),
    Hook(
        f"{_TOKENIZER}._create_tokenized_object",
        ("obj", "input_text", "input_ids"),
        Role.HTTP,
        lambda: _openai("after_tokenize"),
    ),
    Hook("sglang.srt.utils.auth.decide_request_auth", ("path",), Role.HTTP, _auth),
)

_CORE = "sglang.srt.mem_cache.unified_cache.unified_tree_core.UnifiedTreeCore"
_CACHE = "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache"
_FULL = "sglang.srt.mem_cache.unified_cache.components.full.FullComponent"
_ADDER = "sglang.srt.managers.schedule_policy.PrefillAdder"
_CONTROLLER = "sglang.srt.managers.cache_controller"

SEAMS: tuple[Seam, ...] = (
    Seam("sglang.srt.mem_cache.registry.register_radix_cache_backend", ("name",)),
    Seam("sglang.srt.mem_cache.registry.create_unified_radix_cache", ("cache_class",)),
    Seam(
        "sglang.srt.mem_cache.unified_cache.tree_core_registry"
        ".register_tree_core_backend",
        ("name", "factory"),
    ),
    Seam(f"{_CORE}.reset"),
    Seam(f"{_CORE}._touch_node", ("node",)),
    Seam(f"{_CORE}._match_post_processor", ("params", "value", "best_match_node")),
    Seam(f"{_CORE}._update_evictable_leaf_sets", ("node",)),
    Seam(
        f"{_CORE}._evict_host_leaf",
        ("node", "tracker", "device_frees", "host_frees", "cache_actions"),
    ),
    Seam(f"{_CORE}._new_node", ("priority",)),
    Seam(f"{_CORE}._split_node", ("key", "child", "split_len")),
    Seam(f"{_CORE}._remove_leaf_from_parent", ("node",)),
    Seam(f"{_CORE}._inc_hit_count_and_check", ("node",)),
    Seam(f"{_CACHE}.insert", ("params",)),
    Seam(f"{_CACHE}.checkpoint_into_tree", ("req", "up_to")),
    Seam(f"{_CACHE}.init_hicache", ("server_args", "params")),
    Seam(f"{_CACHE}.load_back", ("node_id",)),
    Seam(f"{_CACHE}.init_load_back", ("params",)),
    Seam(f"{_CACHE}.loading_check", ("finish_count",)),
    Seam(f"{_CACHE}.ready_to_load_host_cache"),
    Seam(f"{_CACHE}._reset_full"),
    Seam(f"{_CACHE}.evictable_size"),
    Seam(f"{_FULL}._evict_device_start", ("request_cnt",)),
    Seam(f"{_FULL}._evict_device_end"),
    Seam(
        f"{_FULL}.drive_host_eviction",
        ("num_tokens", "tracker", "device_frees", "host_frees", "cache_actions"),
    ),
    Seam(
        f"{_FULL}._evict_device_next_node",
        ("tracker", "device_frees", "host_frees", "cache_actions"),
    ),
    Seam(
        f"{_FULL}.evict_component",
        ("node", "device_frees", "host_frees", "cache_actions", "target"),
    ),
    Seam(f"{_SCHEDULER}.init_metrics_collector"),
    Seam(f"{_ADDER}.add_one_req", ("req", "has_chunked_req", "truncation_align_size")),
    Seam(f"{_ADDER}.rem_total_tokens"),
    Seam(f"{_CONTROLLER}.LayerLoadingEvent", ("num_layers",)),
    Seam(f"{_CONTROLLER}.LayerDoneCounter", ("num_layers",)),
    Seam(f"{_CONTROLLER}.HiCacheController.start_loading"),
    Seam("sglang.srt.managers.io_struct.hook_custom_types"),
    Seam("sglang.srt.managers.kv_hints.decode_kv_hints_envelope", ("value",)),
    Seam(f"{_CHAT}._process_messages", ("request", "is_multimodal"), Role.HTTP),
    Seam(
        "sglang.srt.managers.tokenizer_control_mixin._COMMUNICATOR_SPECS",
        role=Role.HTTP,
    ),
    Seam("sglang.srt.entrypoints.http_server.app", role=Role.HTTP),
    Seam("sglang.srt.entrypoints.http_server.get_global_state", role=Role.HTTP),
)


def check_seams(roles: Iterable[Role] = tuple(Role)) -> list[str]:
    """One sentence for each seam that this SGLang lacks; empty if all are there.

    Imports what it checks: the HTTP role costs seconds.
    """
    wanted = set(roles)
    entries = [(s.target, s.parameters) for s in SEAMS if s.role in wanted]
    entries += [(h.target, h.parameters) for h in HOOKS if h.role in wanted]
    return [
        problem
        for target, parameters in entries
        if (problem := _problem(target, parameters)) is not None
    ]


def unapplied_hooks(role: Role) -> list[str]:
    """Targets of this process's hooks that SGLang did not patch."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    return [
        hook.target
        for hook in HOOKS
        if hook.role is role and hook.target not in HookRegistry._patched
    ]


def _problem(target: str, parameters: tuple[str, ...]) -> str | None:
    try:
        found = pkgutil.resolve_name(target)
    except (ImportError, AttributeError, ValueError) as error:
        return f"{target} is missing ({error})"
    if not parameters:
        return None
    known = inspect.signature(found).parameters
    lacking = [name for name in parameters if name not in known]
    if lacking:
        return f"{target} no longer takes {', '.join(lacking)}"
    return None


def sglang_version() -> str:
    try:
        return version("sglang")
    except PackageNotFoundError:
        return "not installed"


def refusals(args: Any) -> list[str]:
    """What in SGLang's `ServerArgs` KVFlow does not work with yet, one sentence each.

    Refused rather than silently wrong.
    """
    return [f"{flag}: {why}" for flag, refused, why in _RULES if refused(args)]


def _more_than_one(*names: str) -> Callable[[Any], bool]:
    return lambda args: any((getattr(args, name, 1) or 1) > 1 for name in names)


def _is_set(*names: str) -> Callable[[Any], bool]:
    return lambda args: any(bool(getattr(args, name, None)) for name in names)


def _differs(name: str, *accepted: object) -> Callable[[Any], bool]:
    return lambda args: getattr(args, name, accepted[0]) not in accepted


_RANKS = "decisions are not yet agreed between ranks; run one rank"
_UNTRIED = "not tried with KVFlow yet; leave it off"

_RULES: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("--tp-size", _more_than_one("tp_size"), _RANKS),
    ("--dp-size", _more_than_one("dp_size"), _RANKS),
    ("--pp-size", _more_than_one("pp_size"), _RANKS),
    (
        "--tokenizer-worker-num",
        _more_than_one("tokenizer_worker_num"),
        "extra workers do not load plugins; use 1",
    ),
    (
        "--radix-eviction-policy",
        _differs("radix_eviction_policy", "lru"),
        "KVFlow brings its own order on top of lru; leave it at lru",
    ),
    (
        "--disable-radix-cache",
        _is_set("disable_radix_cache"),
        "KVFlow orders the radix cache; drop the flag or choose no KVFlow",
    ),
    (
        "--hicache-write-policy",
        _differs("hicache_write_policy", "write_through", "write_through_selective"),
        "write-back evicts on the scheduler's path; use write_through",
    ),
    (
        "--hicache-host-memory-mode",
        _differs("hicache_host_memory_mode", "cache"),
        "KVFlow needs host memory as a cache tier; use cache",
    ),
    ("--speculative-algorithm", _is_set("speculative_algorithm"), _UNTRIED),
    ("--disaggregation-mode", _differs("disaggregation_mode", "null", None), _UNTRIED),
    ("--hicache-storage-backend", _is_set("hicache_storage_backend"), _UNTRIED),
    ("--enable-lora", _is_set("enable_lora", "lora_paths"), _UNTRIED),
    ("--enable-lmcache", _is_set("enable_lmcache"), _UNTRIED),
    ("--enable-flexkv", _is_set("enable_flexkv"), _UNTRIED),
    ("--enable-session-radix-cache", _is_set("enable_session_radix_cache"), _UNTRIED),
    ("--enable-streaming-session", _is_set("enable_streaming_session"), _UNTRIED),
    (
        "--enable-unified-cache-external-linker",
        _is_set("enable_unified_cache_external_linker"),
        _UNTRIED,
    ),
)
