"""A llama-shaped model with random weights, of any size, made in a second.

For benchmarks and tests: the arithmetic of a real model at a size that two cores
can run. The weights have transformers' ordinary initialisation. SGLang's dummy
weights (within ±0.001) would not do: with them every prefix gives the same output,
which hides a wrong KV cache.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import islice, product
from pathlib import Path
from typing import TYPE_CHECKING

from kvflow_server.emulated.models import fingerprint, materialize

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transformers import LlamaConfig, PreTrainedTokenizerFast

__all__ = [
    "CHAT_TEMPLATE",
    "SMALL_DIMS",
    "SPECIAL_TOKENS",
    "TinyDims",
    "llama_config",
    "tiny_model",
    "tokenizer",
]

RECIPE_VERSION = 1

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Ids 0, 1, 2: padding and start of text; start and end of a chat message."""

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyDims:
    """Size of a tiny model. The default has 32 KiB of float32 KV per token."""

    hidden: int = 512
    layers: int = 8
    heads: int = 8
    kv_heads: int = 8
    intermediate: int = 1408
    vocab: int = 8192
    context: int = 32768
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value < (0 if name == "seed" else 1):
                raise ValueError(f"{name} is {value}, too small")
        if self.hidden % self.heads or (self.hidden // self.heads) % 2:
            raise ValueError(
                f"hidden ({self.hidden}) must be an even multiple of heads ({self.heads})"
            )
        if self.heads % self.kv_heads:
            raise ValueError(
                f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})"
            )
        if self.vocab < 512:
            raise ValueError(f"vocab is {self.vocab}, must be at least 512")

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of KV cache per token in float32, all layers."""
        return 2 * self.layers * self.kv_heads * (self.hidden // self.heads) * 4


SMALL_DIMS = TinyDims(
    hidden=128,
    layers=2,
    heads=4,
    kv_heads=4,
    intermediate=256,
    vocab=2048,
    context=4096,
)
"""As small as serves to see what a server does; for tests and soaks."""


def tiny_model(dims: TinyDims | None = None) -> Path:
    """Return the directory of the model with these dimensions, making it if absent.

    Same dimensions and seed, same weights, bit for bit (on one torch version).
    """
    dims = dims or TinyDims()
    import torch
    import transformers

    recipe = asdict(dims) | {
        "recipe": RECIPE_VERSION,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    name = f"tiny-{dims.hidden}x{dims.layers}-{fingerprint(recipe)}"
    return materialize(name, lambda path: _make(path, dims))


def tokenizer(vocab: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE with exactly `vocab` tokens and a chat template.

    Any text survives encoding and decoding. The merges are letter pairs in a fixed
    order, then pairs of pairs: no training, so nothing to download and nothing that
    changes with a library's version.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    base = (*SPECIAL_TOKENS, *alphabet)
    if vocab < len(base):
        raise ValueError(f"vocab is {vocab}, must be at least {len(base)}")
    merges = list(islice(_merges(), vocab - len(base)))
    tokens = (*base, *(left + right for left, right in merges))
    if len(tokens) != vocab:
        raise ValueError(f"vocab is {vocab}, this recipe ends at {len(tokens)}")
    bpe = models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges)
    core = Tokenizer(bpe)
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(t, special=True) for t in SPECIAL_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=SPECIAL_TOKENS[0],
        eos_token=SPECIAL_TOKENS[2],
        pad_token=SPECIAL_TOKENS[0],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def _merges() -> Iterator[tuple[str, str]]:
    # Letters by how common they are in English, so that ordinary text gets shorter.
    letters = "Ġetaoinsrhldcumfpgwybvkxjqz0123456789.,-ETAOINSRHLDCUMFPGWYBVKXJQZ"
    pairs = list(product(letters, letters[1:]))
    yield from pairs
    joined = [left + right for left, right in pairs]
    yield from ((a, b) for a, b in product(joined, joined) if "Ġ" not in b)


def llama_config(dims: TinyDims, dtype: str) -> LlamaConfig:
    """Of a model with these dimensions, to be saved."""
    from transformers import LlamaConfig

    return LlamaConfig(
        hidden_size=dims.hidden,
        intermediate_size=dims.intermediate,
        num_hidden_layers=dims.layers,
        num_attention_heads=dims.heads,
        num_key_value_heads=dims.kv_heads,
        vocab_size=dims.vocab,
        max_position_embeddings=dims.context,
        bos_token_id=0,
        eos_token_id=2,
        pad_token_id=0,
        tie_word_embeddings=False,
        dtype=dtype,
        architectures=["LlamaForCausalLM"],
    )


def _make(path: Path, dims: TinyDims) -> None:
    import torch
    from transformers import LlamaForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(dims.seed)
        model = LlamaForCausalLM(llama_config(dims, "float32"))
    model.save_pretrained(path)
    tokenizer(dims.vocab).save_pretrained(path)
