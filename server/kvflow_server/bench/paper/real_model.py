"""The paper's models on a GPU: their dimensions, and weights of no meaning."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from kvflow_server.emulated.models import fingerprint, materialize
from kvflow_server.emulated.tiny import TinyDims, llama_config, tokenizer

from .scale import DIMS
from .testbeds import Model

__all__ = ["model_dims", "shape_only"]

CONTEXT = 32_768


def model_dims(model: Model) -> TinyDims:
    """Not tiny at all."""
    return TinyDims(
        hidden=model.hidden,
        layers=model.layers,
        heads=model.heads,
        kv_heads=model.kv_heads,
        intermediate=model.intermediate,
        vocab=model.vocab,
        context=CONTEXT,
    )


def shape_only(dims: TinyDims) -> Path:
    """A directory that says what the model is like, for ``--load-format dummy``."""
    import transformers

    def make(path: Path) -> None:
        llama_config(dims, "bfloat16").save_pretrained(path)
        tokenizer(DIMS.vocab).save_pretrained(path)

    recipe = asdict(dims) | {"transformers": transformers.__version__}
    return materialize(f"shape-{dims.hidden}x{dims.layers}-{fingerprint(recipe)}", make)
