"""Attention of the emulated accelerator: what a GPU's kernel would compute, no more.

SGLang's `TorchNativeAttnBackend` computes, for a request that extends a cached prefix,
the rows of the prefix too, and throws them away; for grouped queries it copies every
key once per query head. A GPU does neither. That work, which stands in no proportion
to the tokens computed, would hide on this machine what a cache hit saves.

Same mathematics on the same pools. Whatever is not plain causal self-attention
(sliding windows, cross-attention, encoders) is left to SGLang's class.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from torch.nn.functional import scaled_dot_product_attention

from kvflow_server.emulated.pace import PacedDevice, paced_device
from kvflow_server.emulated.streams import COMPUTE

if TYPE_CHECKING:
    # What SGLang's untyped base is to the type checker.
    class _Backend:
        def __init__(self, runner: Any) -> None: ...
        def init_forward_metadata(self, forward_batch: Any) -> None: ...
        def _run_sdpa_forward_extend(self, *args: Any, **kwargs: Any) -> Any: ...
        def _run_sdpa_forward_decode(self, *args: Any, **kwargs: Any) -> Any: ...

else:
    _Backend = TorchNativeAttnBackend

__all__ = ["EmulatedAttention", "attend"]


@dataclass(frozen=True, slots=True)
class _Span:
    """One request of a batch: its rows among the queries, its slots in the pool."""

    begin: int
    end: int
    slots: torch.Tensor
    """int64 [tokens], in the order of the sequence."""
    mask: torch.Tensor | None
    """float32 [rows, tokens], added to the scores; None if nothing is to be masked
    or `causal` says it."""
    causal: bool


class EmulatedAttention(_Backend):
    """`TorchNativeAttnBackend` without its needless rows and copies."""

    _spans: list[_Span]

    @cached_property
    def _device(self) -> PacedDevice | None:
        return paced_device()

    def init_forward_metadata(self, forward_batch: Any) -> None:
        super().init_forward_metadata(forward_batch)
        self._spans = []
        if self._device is not None:
            if forward_batch.forward_mode.is_extend():
                new = forward_batch.extend_seq_lens_cpu
                self._device.begin_prefill(forward_batch.extend_prefix_lens_cpu, new)
            else:
                lengths = forward_batch.seq_lens.tolist()
                self._device.begin_decode(len(lengths), sum(lengths))

    def _run_sdpa_forward_extend(
        self, query: Any, output: Any, keys: Any, values: Any, *rest: Any, **how: Any
    ) -> Any:
        """As in `TorchNativeAttnBackend`: query and output [rows, heads, head size],
        keys and values [slots, KV heads, head size]."""
        table, requests, lengths, prefixes, extents, encoder = rest
        if _is_special(encoder, how) or not how["causal"]:
            return super()._run_sdpa_forward_extend(
                query, output, keys, values, *rest, **how
            )
        if not self._spans:
            self._spans = _spans(table, requests, lengths, prefixes, extents)
        return self._attend(query, output, keys, values, how["scaling"])

    def _run_sdpa_forward_decode(
        self, query: Any, output: Any, keys: Any, values: Any, *rest: Any, **how: Any
    ) -> Any:
        """As above, with one row per request."""
        table, requests, lengths, encoder = rest
        if _is_special(encoder, how):
            return super()._run_sdpa_forward_decode(
                query, output, keys, values, *rest, **how
            )
        if not self._spans:
            one = torch.ones_like(lengths)
            self._spans = _spans(table, requests, lengths, lengths - one, one)
        return self._attend(query, output, keys, values, how["scaling"])

    def _attend(
        self, query: Any, output: Any, keys: Any, values: Any, scaling: float
    ) -> Any:
        for span in self._spans:
            output[span.begin : span.end] = attend(
                query[span.begin : span.end],
                _rows(keys, span.slots),
                _rows(values, span.slots),
                mask=span.mask,
                causal=span.causal,
                scaling=scaling,
            )
        if self._device is not None:
            # The caller has waited for this layer's KV; the other waits were before.
            self._device.end_layer(COMPUTE.unblocked_at)
        return output


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    mask: torch.Tensor | None,
    causal: bool,
    scaling: float,
) -> torch.Tensor:
    """Attention of query [rows, heads, size] over key, value [tokens, KV heads, size].

    Query heads that share a KV head become rows of it, so that no key is copied.
    Returns [rows, heads, size].
    """
    rows, heads, size = query.shape
    shared = heads // key.shape[1]
    grouped = shared > 1 and not causal
    queries = query.movedim(0, 1)
    if grouped:
        queries = queries.reshape(heads // shared, shared * rows, size)
        mask = None if mask is None else mask.repeat(shared, 1)
    out = scaled_dot_product_attention(
        queries.unsqueeze(0),
        key.to(query.dtype).movedim(0, 1).unsqueeze(0),
        value.to(query.dtype).movedim(0, 1).unsqueeze(0),
        attn_mask=mask,
        is_causal=causal,
        scale=scaling,
        enable_gqa=shared > 1 and not grouped,
    )
    return out.reshape(heads, rows, size).movedim(0, 1)


def _spans(
    table: torch.Tensor,
    requests: torch.Tensor,
    lengths: torch.Tensor,
    prefixes: torch.Tensor,
    extents: torch.Tensor,
) -> list[_Span]:
    spans = []
    begin = 0
    for request, length, prefix, rows in zip(
        requests.tolist(),
        lengths.tolist(),
        prefixes.tolist(),
        extents.tolist(),
        strict=True,
    ):
        slots = table[request, :length].long()
        whole = prefix == 0 and rows > 1
        mask = None if whole or rows == 1 else _mask(rows, length)
        spans.append(_Span(begin, begin + rows, slots, mask, whole))
        begin += rows
    return spans


def _mask(rows: int, tokens: int) -> torch.Tensor:
    """The last `rows` of `tokens`, each seeing itself and all before it."""
    hidden = torch.full((rows, tokens), float("-inf"))
    return hidden.triu_(tokens - rows + 1)


def _rows(pool: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """The rows of a pool [slots, heads, size] at `slots`; copies whole rows."""
    flat = pool.view(pool.shape[0], -1)
    return flat.index_select(0, slots).view(-1, *pool.shape[1:])


def _is_special(encoder: Any, how: dict[str, Any]) -> bool:
    return (
        encoder is not None
        or how["is_cross_attn"]
        or how["sliding_window_size"] is not None
    )
