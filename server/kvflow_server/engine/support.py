"""What of SGLang works with KVFlow, and what is refused at start, with the reason.

One table for the check at start, for `kvflow doctor` and for the README. A line among
the working ones has a test on a real server; a line leaves the refused ones only for
such a test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = [
    "MODELS_REFUSED",
    "REFUSED",
    "WORKS",
    "Refusal",
    "Works",
    "markdown",
    "model_refusals",
    "refusals",
]


@dataclass(frozen=True, slots=True)
class Works:
    """A mode of SGLang that KVFlow works in."""

    mode: str
    flags: str = ""
    """How it is chosen; empty if by the request."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Flags that a KVFlow server does not start with."""

    flag: str
    applies: Callable[[Any], bool]
    """Asked with SGLang's `ServerArgs`."""
    why: str


WORKS: tuple[Works, ...] = (
    Works("overlap scheduling, and without", "--disable-overlap-schedule"),
    Works("chunked prefill", "--chunked-prefill-size N"),
    Works(
        "pages of 1, 16 or 64 tokens",
        "--page-size N",
    ),
    Works(
        "host memory written at once or on second use",
        "--hicache-write-policy write_through, write_through_selective",
    ),
    Works(
        "host memory written at eviction",
        "--hicache-write-policy write_back",
        "prefetch takes free space only: evicting would stop the scheduler",
    ),
    Works(
        "no host memory",
        "--kvflow-mode evict --no-hicache",
        "eviction order only",
    ),
    Works("several answers to one prompt", note="n > 1"),
    Works("streaming, abort and disconnect"),
    Works("retraction under memory pressure"),
    Works("priorities and preemption", "--enable-priority-scheduling"),
    Works("flush, pause and continue, weight update"),
    Works("sessions", note="/open_session; a mark counts in the first turn"),
    Works("separate caches", note="cache_salt, extra_key"),
    Works("LoRA", "--enable-lora", "adapters share no prompt; none is computed ahead"),
    Works("tensor parallelism", "--tp-size N", "time and decisions agreed by ranks"),
    Works(
        "data parallelism",
        "--dp-size N",
        "every replica hears every step update",
    ),
    Works(
        "several tokenizer workers",
        "--tokenizer-worker-num N",
        "without API keys",
    ),
    Works("API keys", "--api-key, --admin-api-key", "also for KVFlow's routes"),
)


def refusals(args: Any) -> list[str]:
    """What in SGLang's `ServerArgs` KVFlow does not work with yet, one sentence each.

    Refused rather than silently wrong.
    """
    return [f"{rule.flag}: {rule.why}" for rule in REFUSED if rule.applies(args)]


def model_refusals(*, sliding_window: bool, mamba: bool, mla: bool) -> list[str]:
    """The same of the model, whose kind is known once its config has been read."""
    found = {"sliding_window": sliding_window, "mamba": mamba, "mla": mla}
    return [MODELS_REFUSED[kind] for kind, present in found.items() if present]


MODELS_REFUSED: Mapping[str, str] = {
    "sliding_window": "sliding-window models: a window frees parts of a prefix that "
    "prefetch and admission take for whole",
    "mamba": "Mamba models: a skipped request would leak its state slot",
    "mla": "MLA models: not tried with KVFlow yet",
}


def _more_than_one(*names: str) -> Callable[[Any], bool]:
    return lambda args: any((getattr(args, name, 1) or 1) > 1 for name in names)


def _is_set(*names: str) -> Callable[[Any], bool]:
    return lambda args: any(bool(getattr(args, name, None)) for name in names)


def _differs(name: str, *accepted: object) -> Callable[[Any], bool]:
    return lambda args: getattr(args, name, accepted[0]) not in accepted


def _both(first: Callable[[Any], bool], second: Callable[[Any], bool]) -> Any:
    return lambda args: first(args) and second(args)


def markdown() -> str:
    """Both tables, for the README."""
    lines = ["| works | chosen by |", "|---|---|"]
    for row in WORKS:
        note = f" ({row.note})" if row.note else ""
        flags = f"`{row.flags}`" if row.flags else ""
        lines.append(f"| {row.mode}{note} | {flags} |")
    lines += ["", "| refused at start | why |", "|---|---|"]
    lines += [f"| `{rule.flag}` | {rule.why} |" for rule in REFUSED]
    for text in MODELS_REFUSED.values():
        kind, _, why = text.partition(": ")
        lines.append(f"| {kind} | {why} |")
    return "\n".join(lines)


_UNTRIED = "not tried with KVFlow yet; leave it off"
_ONE_STAGE = "pipeline stages do not see the same requests in the same pass; run one"

REFUSED: tuple[Refusal, ...] = (
    Refusal(
        "--disable-radix-cache",
        _is_set("disable_radix_cache"),
        "KVFlow orders the radix cache; drop the flag or choose no KVFlow",
    ),
    Refusal(
        "--radix-eviction-policy",
        _differs("radix_eviction_policy", "lru"),
        "KVFlow brings its own order on top of lru; leave it at lru",
    ),
    Refusal(
        "--hicache-host-memory-mode",
        _differs("hicache_host_memory_mode", "cache"),
        "KVFlow needs host memory as a cache tier; use cache",
    ),
    Refusal(
        "--tokenizer-worker-num",
        _both(
            _more_than_one("tokenizer_worker_num"), _is_set("api_key", "admin_api_key")
        ),
        "with an API key: SGLang checks none where several workers are, so KVFlow's "
        "routes would be open; use one worker, or a gateway that checks",
    ),
    Refusal("--pp-size", _more_than_one("pp_size"), _ONE_STAGE),
    Refusal("--enable-dp-attention", _is_set("enable_dp_attention"), _UNTRIED),
    Refusal("--attn-cp-size", _more_than_one("attn_cp_size"), _UNTRIED),
    Refusal("--dcp-size", _more_than_one("dcp_size"), _UNTRIED),
    Refusal("--nnodes", _more_than_one("nnodes"), _UNTRIED),
    Refusal("--use-ray", _is_set("use_ray"), _UNTRIED),
    Refusal("--smg-grpc-mode", _is_set("smg_grpc_mode", "grpc_mode"), _UNTRIED),
    Refusal("--encoder-only", _is_set("encoder_only"), _UNTRIED),
    Refusal("--speculative-algorithm", _is_set("speculative_algorithm"), _UNTRIED),
    Refusal("--dllm-algorithm", _is_set("dllm_algorithm"), _UNTRIED),
    Refusal(
        "--disaggregation-mode", _differs("disaggregation_mode", "null", None), _UNTRIED
    ),
    Refusal("--enable-pdmux", _is_set("enable_pdmux"), _UNTRIED),
    Refusal("--hicache-storage-backend", _is_set("hicache_storage_backend"), _UNTRIED),
    Refusal("--enable-lmcache", _is_set("enable_lmcache"), _UNTRIED),
    Refusal("--enable-flexkv", _is_set("enable_flexkv"), _UNTRIED),
    Refusal("--enable-hisparse", _is_set("enable_hisparse"), _UNTRIED),
    Refusal("--enable-unified-memory", _is_set("enable_unified_memory"), _UNTRIED),
    Refusal(
        "--enable-unified-cache-external-linker",
        _is_set("enable_unified_cache_external_linker"),
        _UNTRIED,
    ),
    Refusal(
        "--enable-session-radix-cache", _is_set("enable_session_radix_cache"), _UNTRIED
    ),
    Refusal(
        "--enable-streaming-session", _is_set("enable_streaming_session"), _UNTRIED
    ),
)
