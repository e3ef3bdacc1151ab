"""The emulated attention computes what SGLang's torch_native backend computes."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

with warnings.catch_warnings():
    # SGLang's modules warn of hardware that is not there.
    warnings.simplefilter("ignore")
    # First, or its lazy choice of a platform meets itself half imported.
    from sglang.srt.platforms import current_platform  # noqa: F401  # isort: skip
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

    from kvflow_server.emulated.attention import EmulatedAttention

pytestmark = pytest.mark.sglang

SIZE = 16
SLOTS = 256


class Stock(TorchNativeAttnBackend):
    """SGLang's class on pools of our own, without a model runner."""

    def __init__(self) -> None:
        self.use_sliding_window_kv_pool = False


class Ours(EmulatedAttention, Stock):
    pass


BATCH = SimpleNamespace(out_cache_loc=None)

requests = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 12)), min_size=1, max_size=4
)
heads = st.sampled_from([(4, 4), (6, 2), (3, 1)])


def run(
    batch: list[tuple[int, int]], heads: tuple[int, int], kind: str, **changes: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """The outputs of both, for requests of (prefix, new) tokens."""
    generator = torch.Generator().manual_seed(len(batch))
    shape = (SLOTS, heads[1], SIZE)
    keys, values = (torch.randn(shape, generator=generator) for _ in range(2))
    slots = torch.randperm(SLOTS, generator=generator)[: len(batch) * 60]
    table = slots.view(len(batch), 60).to(torch.int32)
    extents = torch.tensor([new for _, new in batch])
    prefixes = torch.tensor([prefix for prefix, _ in batch])
    if kind == "decode":
        extents = torch.ones_like(extents)
    lengths = prefixes + extents
    numbers = torch.arange(len(batch))
    query = torch.randn((int(extents.sum()), heads[0], SIZE), generator=generator)
    how: dict[str, Any] = {
        "scaling": SIZE**-0.5,
        "enable_gqa": heads[0] != heads[1],
        "causal": kind == "extend",
        "is_cross_attn": False,
        "sliding_window_size": None,
        **changes,
    }
    spans = (prefixes, extents) if kind == "extend" else ()
    args = (keys, values, table, numbers, lengths, *spans, None)
    results = []
    for backend in (Stock(), Ours()):
        backend.init_forward_metadata(BATCH)
        output = torch.full_like(query, float("nan"))
        run = getattr(backend, f"_run_sdpa_forward_{kind}")
        # Twice, as two layers of one pass do: the second reuses what the first found.
        run(query, output, *args, **how)
        results.append(run(query, output.fill_(float("nan")), *args, **how))
    return results[0], results[1]


@settings(max_examples=60, deadline=None)
@given(batch=requests, heads=heads, kind=st.sampled_from(["extend", "decode"]))
def test_same_result_as_sglangs_backend(
    batch: list[tuple[int, int]], heads: tuple[int, int], kind: str
) -> None:
    stock, ours = run(batch, heads, kind)
    torch.testing.assert_close(ours, stock, rtol=1e-5, atol=1e-5)


def test_a_new_pass_forgets_the_last_ones_requests() -> None:
    backend = Ours()
    backend._spans = [None]  # type: ignore[list-item]
    backend.init_forward_metadata(BATCH)
    assert backend._spans == []


@pytest.mark.parametrize("kind", ["extend", "decode"])
def test_a_sliding_window_is_left_to_sglang(kind: str) -> None:
    stock, ours = run([(20, 4), (0, 6)], (4, 4), kind, sliding_window_size=5)
    full, _ = run([(20, 4), (0, 6)], (4, 4), kind)
    assert torch.equal(ours, stock)
    assert not torch.allclose(ours, full)
