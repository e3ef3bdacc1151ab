"""Tiny models: same seed, same weights; another prefix, another answer."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from kvflow_server.emulated.models import CACHE_ENV
from kvflow_server.emulated.tiny import SPECIAL_TOKENS, TinyDims, tiny_model, tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SMALL = TinyDims(
    hidden=64, layers=2, heads=4, kv_heads=2, intermediate=128, vocab=700, context=512
)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_ENV, str(tmp_path_factory.mktemp("models")))
        return tiny_model(SMALL)


@pytest.fixture(scope="module")
def saved_tokenizer(model_dir: Path) -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(model_dir)


def digest(model: Path) -> str:
    return hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()


def test_the_same_dimensions_and_seed_give_the_same_weights(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(CACHE_ENV, str(tmp_path))
    again = tiny_model(SMALL)
    assert again != model_dir
    assert digest(again) == digest(model_dir)


def test_another_seed_gives_other_weights(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(CACHE_ENV, str(tmp_path))
    dims = TinyDims(
        hidden=64,
        layers=2,
        heads=4,
        kv_heads=2,
        intermediate=128,
        vocab=700,
        context=512,
        seed=1,
    )
    assert digest(tiny_model(dims)) != digest(model_dir)


def test_making_a_model_leaves_the_callers_random_numbers_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(CACHE_ENV, str(tmp_path))
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    tiny_model(SMALL)
    assert torch.equal(torch.rand(3), expected)


def test_the_answer_depends_on_the_prefix(model_dir: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_dir)
    random = torch.Generator().manual_seed(1)
    prefixes = torch.randint(3, SMALL.vocab, (4, 100), generator=random)
    ending = torch.randint(3, SMALL.vocab, (1, 16), generator=random)
    tokens = torch.cat([prefixes, ending.expand(4, -1)], dim=1)
    with torch.no_grad():
        found = torch.log_softmax(model(tokens).logits[:, -1], dim=-1)
    distances = torch.cdist(found, found, p=float("inf"))
    # Far beyond the 1e-4 that outputs are compared with, for every pair.
    assert distances[~torch.eye(4, dtype=torch.bool)].min() > 1e-2


def test_the_default_model_has_32_kib_of_kv_per_token() -> None:
    assert TinyDims().kv_bytes_per_token == 32 * 1024


@pytest.mark.parametrize(
    "wrong",
    [
        {"layers": 0},
        {"hidden": 100, "heads": 8},
        {"heads": 8, "kv_heads": 3},
        {"vocab": 100},
        {"seed": -1},
    ],
)
def test_dimensions_that_make_no_model_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="|".join(wrong)):
        TinyDims(**wrong)


@pytest.mark.parametrize("vocab", [512, 700, 8192, 32000])
def test_the_tokenizer_has_exactly_the_models_vocabulary(vocab: int) -> None:
    assert len(tokenizer(vocab)) == vocab


@given(st.text())
def test_any_text_survives_the_saved_tokenizer(
    saved_tokenizer: PreTrainedTokenizerFast, text: str
) -> None:
    for special in SPECIAL_TOKENS:
        text = text.replace(special, "")
    ids = saved_tokenizer.encode(text)
    assert saved_tokenizer.decode(ids) == text


def test_merges_make_ordinary_text_shorter_than_its_bytes() -> None:
    text = "the planner hands the question to the researcher"
    assert len(tokenizer(8192).encode(text)) < 0.7 * len(text)


def test_the_chat_template_marks_each_message_and_opens_the_answer(
    saved_tokenizer: PreTrainedTokenizerFast,
) -> None:
    messages = [
        {"role": "system", "content": "You plan."},
        {"role": "user", "content": "Go."},
    ]
    text = saved_tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )
    assert text == (
        "<|im_start|>system\nYou plan.<|im_end|>\n"
        "<|im_start|>user\nGo.<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_chat_marks_are_single_tokens(saved_tokenizer: PreTrainedTokenizerFast) -> None:
    assert saved_tokenizer.encode("<|im_start|><|im_end|>") == [1, 2]


def test_the_end_of_a_message_ends_generation(
    saved_tokenizer: PreTrainedTokenizerFast,
) -> None:
    assert saved_tokenizer.eos_token_id == 2
