"""KVFlow in SGLang's offline `Engine`: no HTTP server, chosen by an argument."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from kvflow_sdk import wire
from kvflow_sdk.wire import FixedMark
from kvflow_server.emulated.tiny import SMALL_DIMS, tiny_model

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Caller, Server

pytestmark = [pytest.mark.sglang, pytest.mark.server, pytest.mark.full]

PROGRAM = """
import json, sys
from sglang import Engine

if __name__ == "__main__":
    flags, texts, hints = json.load(sys.stdin)
    engine = Engine(radix_cache_backend="kvflow", **flags)
    params = {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}
    found = [
        engine.generate(text, params, return_logprob=True, kv_hints=hint)
        for text, hint in zip(texts, hints)
    ]
    engine.shutdown()
    print("ANSWERS", json.dumps(found))
"""
FLAGS = {
    "device": "cpu",
    "dtype": "float32",
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "hicache_io_backend": "direct",
    "hicache_mem_layout": "layer_first",
    "hicache_ratio": 3.0,
    "max_total_tokens": 600,
    "chunked_prefill_size": 192,
    "context_length": 512,
    "log_level": "info",  # an Engine's own is error: nothing would be said
}


def run(folder: Path, texts: list[str], hints: list[object], **flags: object) -> str:
    """The program's output and log."""
    program = folder / "program.py"
    program.write_text(PROGRAM)
    given = FLAGS | {"model_path": str(tiny_model(SMALL_DIMS))} | flags
    ended = subprocess.run(
        [sys.executable, "-P", str(program)],
        input=json.dumps([given, texts, hints]),
        env={**os.environ, "SGLANG_PLATFORM": "kvflow_emulated", "KVFLOW_DEBUG": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    return ended.stdout


def test_an_offline_engine_answers_as_stock(
    truth: Server, caller: Caller, tmp_path: Path
) -> None:
    fixed = [caller.text(60) for _ in range(4)]
    texts = [text + caller.text(5) for text in fixed * 2]
    marks = [FixedMark(message=0, chars=len(text)) for text in fixed * 2]
    hints = [
        wire.to_envelope([caller.update({f"a{n % 4}": 0}, agent=f"a{n % 4}", fixed=m)])
        for n, m in enumerate(marks)
    ]
    said = run(tmp_path, texts, hints, enable_hierarchical_cache=True)
    (line,) = [row for row in said.splitlines() if row.startswith("ANSWERS ")]
    for text, found in zip(texts, json.loads(line[8:]), strict=True):
        params = {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}
        body = {"text": text, "sampling_params": params, "return_logprob": True}
        expected = truth.json("/generate", body)["meta_info"]["output_token_logprobs"]
        logprobs, tokens, *_ = zip(*expected, strict=True)
        ours, same, *_ = zip(*found["meta_info"]["output_token_logprobs"], strict=True)
        assert same == tokens
        assert ours == pytest.approx(logprobs, rel=0, abs=1e-4)
    assert "source=registered('kvflow')" in said
    assert "KVFlow metadata dropped" not in said


def test_an_offline_engine_that_cannot_have_it_says_why(tmp_path: Path) -> None:
    said = run(tmp_path, [], [], enable_hierarchical_cache=False, pp_size=2)
    assert "KVFlowActivationError" in said
    assert "prefetch needs host memory" in said
    assert "--pp-size: " in said
