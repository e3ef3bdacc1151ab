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
    "ACTIVATED",
    "BACKEND",
    "HOOKS",
    "LAUNCH",
    "ON_IDLE",
    "SEAMS",
    "TESTED",
    "Hook",
    "KVFlowActivationError",
    "Role",
    "Seam",
    "activation_error",
    "check_seams",
    "register_hooks",
    "sglang_version",
    "unapplied_hooks",
]

BACKEND = "kvflow"
"""The value of ``--radix-cache-backend`` that chooses KVFlow."""

ACTIVATED = "KVFLOW_ACTIVATED"
"""Set for a server's processes once the launching one has let KVFlow in."""

LAUNCH = "sglang.srt.server_args.ServerArgs.check_server_args"
"""Runs once per server, in the process that launches it: after every plugin is loaded
and the flags are read, before any other process is started."""

TESTED = ("0.5.22", "0.5.23")
"""SGLang releases that have every seam; the recipes were run on the last."""


class KVFlowActivationError(RuntimeError):
    """KVFlow was asked for and cannot run on this SGLang or with these flags."""


class Role(Enum):
    """Which process a seam is used in."""

    SCHEDULER = "scheduler"
    TOKENIZER = "tokenizer"
    """Where requests are turned into tokens: the HTTP server's, or an `Engine`'s."""
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
    """A function of ours that runs after (or before) one of SGLang's."""

    target: str
    function: str
    """``module:name`` in this package."""
    parameters: tuple[str, ...] = ()
    role: Role = Role.SCHEDULER
    when: str = "after"
    """`HookType` by its value: "after" or "before"."""

    def load(self) -> Callable[..., Any]:
        """Imports the module late: this table must stay light."""
        found: Callable[..., Any] = pkgutil.resolve_name(
            f"{__package__}.{self.function}"
        )
        return found


_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
ON_IDLE = f"{_SCHEDULER}.on_idle"
"""Called in every turn of the scheduler's loop that has nothing to run."""
_CHAT = "sglang.srt.entrypoints.openai.serving_chat.OpenAIServingChat"
_COMPLETION = (
    "sglang.srt.entrypoints.openai.serving_completions.OpenAIServingCompletion"
)
_TOKENIZER = "sglang.srt.managers.tokenizer_manager.TokenizerManager"

HOOKS: tuple[Hook, ...] = (
    Hook(f"{_SCHEDULER}.get_prefill_adder_class", "scheduling:choose_adder"),
    Hook(
        f"{_SCHEDULER}._create_generation_req", "scheduling:tag_request", ("recv_req",)
    ),
    Hook(
        f"{_SCHEDULER}.get_next_batch_to_run",
        "scheduling:after_pass",
        ("running_batch", "last_batch"),
    ),
    Hook(ON_IDLE, "idling:after_idle"),
    Hook(f"{_SCHEDULER}.flush_cache", "scheduling:before_flush", when="before"),
    Hook(f"{_SCHEDULER}.init_request_dispatcher", "handlers:add_handlers"),
    Hook(f"{_SCHEDULER}._poll_timeout_aborts", "handlers:append_tick"),
    Hook(
        f"{_SCHEDULER}.process_input_requests",
        "handlers:take_ticks",
        ("recv_reqs",),
        when="before",
    ),
    Hook(
        f"{_TOKENIZER}._create_tokenized_object",
        "openai_hints:after_tokenize",
        ("obj", "input_text", "input_ids"),
        Role.TOKENIZER,
    ),
    Hook(
        f"{_TOKENIZER}._create_tokenized_object",
        "fanout:tell_all_replicas",
        role=Role.TOKENIZER,
    ),
    Hook(
        f"{_CHAT}._convert_to_internal_request",
        "openai_hints:after_chat",
        ("request", "raw_request"),
        Role.HTTP,
    ),
    Hook(
        f"{_COMPLETION}._convert_to_internal_request",
        "openai_hints:after_completion",
        ("request", "raw_request"),
        Role.HTTP,
    ),
    Hook(
        "sglang.srt.utils.auth.decide_request_auth",
        "access:after_auth",
        ("path",),
        Role.HTTP,
    ),
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
    Seam(f"{_CORE}._update_duplicate_tracking", ("node",)),
    Seam(
        f"{_CORE}.commit_load_back",
        ("node_id", "device_indices", "kv_xfer", "comp_xfers"),
    ),
    Seam(f"{_CACHE}.insert", ("params",)),
    Seam(f"{_CACHE}.checkpoint_into_tree", ("req", "up_to")),
    Seam(f"{_CACHE}.init_hicache", ("server_args", "params")),
    Seam(f"{_CACHE}.load_back", ("node_id",)),
    Seam(f"{_CACHE}.init_load_back", ("params",)),
    Seam(f"{_CACHE}.loading_check", ("finish_count",)),
    Seam(f"{_CACHE}.ready_to_load_host_cache"),
    Seam(f"{_CACHE}._reset_full"),
    Seam(f"{_CACHE}.evictable_size"),
    Seam(f"{_CACHE}._evict", ("params", "available_size_targets")),
    Seam(f"{_CACHE}._component_available_size", ("component_type",)),
    Seam(f"{_CACHE}.writing_check", ("finish_count",)),
    Seam(f"{_CACHE}.flush_pending_backups"),
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
    Seam(f"{_SCHEDULER}.init_idle_sleeper"),
    Seam(f"{_SCHEDULER}.is_fully_idle", ("for_health_check",)),
    Seam("sglang.srt.constants.HEALTH_CHECK_RID_PREFIX"),
    Seam("sglang.srt.runtime_context.get_parallel"),
    Seam("sglang.srt.managers.io_struct.TokenizedGenerateReqInput"),
    Seam("sglang.srt.managers.io_struct.FlushCacheReqInput"),
    Seam("sglang.srt.sampling.sampling_params.SamplingParams.normalize"),
    Seam(f"{_ADDER}.add_one_req", ("req", "has_chunked_req", "truncation_align_size")),
    Seam(f"{_ADDER}.rem_total_tokens"),
    Seam(f"{_CONTROLLER}.LayerLoadingEvent", ("num_layers",)),
    Seam(f"{_CONTROLLER}.LayerDoneCounter", ("num_layers",)),
    Seam(f"{_CONTROLLER}.HiCacheController.start_loading"),
    Seam("sglang.srt.managers.io_struct.hook_custom_types"),
    Seam("sglang.srt.managers.kv_hints.decode_kv_hints_envelope", ("value",)),
    Seam(f"{_CHAT}._process_messages", ("request", "is_multimodal"), Role.HTTP),
    Seam(LAUNCH, role=Role.TOKENIZER),
    Seam(
        "sglang.srt.managers.tokenizer_control_mixin._COMMUNICATOR_SPECS",
        role=Role.TOKENIZER,
    ),
    Seam(f"{_TOKENIZER}._dispatch_to_scheduler", ("obj",), Role.TOKENIZER),
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
    """Targets of this process's hooks that are not in place."""
    return [h.target for h in HOOKS if h.role is role and not _is_applied(h)]


def _is_applied(hook: Hook) -> bool:
    """Whether the hook is in the chain of wrappers that SGLang has put on its target.

    SGLang's own list of patched targets would not do: a target that another plugin has
    patched before is in it, and our hook was ignored.
    """
    function = hook.load()
    try:
        found = pkgutil.resolve_name(hook.target)
    except (ImportError, AttributeError):
        return False
    while found is not None:
        cells = getattr(found, "__closure__", None) or ()
        if any(cell.cell_contents is function for cell in cells):
            return True
        found = getattr(found, "__wrapped__", None)
    return False


def register_hooks(role: Role) -> None:
    """Ask SGLang to put the hooks of `role` in place in this process."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for hook in HOOKS:
        function = hook.load() if hook.role is role else None
        known = [entry[1] for entry in HookRegistry._hooks.get(hook.target, ())]
        if function is not None and function not in known:
            HookRegistry.register(hook.target, function, HookType(hook.when))


def activation_error(problems: Iterable[str]) -> KVFlowActivationError:
    """The error that ends a launch, with everything that stands in the way."""
    return KVFlowActivationError(
        f"KVFlow was chosen (--radix-cache-backend {BACKEND}) and cannot run:\n  - "
        + "\n  - ".join(problems)
        + f"\nTested with SGLang {' and '.join(TESTED)}. `kvflow doctor` checks an "
        "installation; without the flag SGLang runs as it is."
    )


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
