"""KVFlow asked for and impossible: the server does not start, and says why."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kvflow_server.edge.launcher import free_port
from kvflow_server.emulated.tiny import TinyDims, tiny_model

pytestmark = [pytest.mark.sglang, pytest.mark.server]

DIMS = TinyDims(
    hidden=64, layers=2, heads=4, kv_heads=4, intermediate=128, vocab=512, context=512
)

MODELS: dict[str, dict[str, object]] = {
    "sliding-window": {
        "is_hybrid_swa": True,
        "hybrid_layer_pattern": [1, 0],
        "sliding_window": 64,
    },
    "Mamba": {
        "architectures": ["Lfm2ForCausalLM"],
        "model_type": "lfm2",
        "layer_types": ["conv", "full_attention"],
        "block_multiple_of": 16,
    },
    "MLA": {
        "architectures": ["MiniCPM3ForCausalLM"],
        **{"scale_emb": 1, "scale_depth": 1, "dim_model_base": DIMS.hidden},
        **{"kv_lora_rank": 32, "q_lora_rank": 32, "v_head_dim": 16},
        **{"qk_rope_head_dim": 16, "qk_nope_head_dim": 16},
    },
}
"""Kind of model -> how its config differs from that of the tests' model."""


def sglang_alone(*flags: str) -> list[str]:
    """SGLang's own command line, without what `kvflow serve` would add or check."""
    return [
        *(sys.executable, "-P", "-m", "sglang.launch_server"),
        *("--model-path", str(tiny_model(DIMS)), "--host", "127.0.0.1"),
        *("--port", str(free_port()), "--device", "cpu", "--dtype", "float32"),
        *("--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
        *("--max-total-tokens", "1000", *flags),
    ]


def said_at_its_end(log: Path, *flags: str) -> str:
    """By a server on the emulated accelerator, which is expected not to start."""
    with log.open("wb") as out:
        ended = subprocess.run(
            sglang_alone("--radix-cache-backend", "kvflow", *flags),
            env={**os.environ, "SGLANG_PLATFORM": "kvflow_emulated"},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            # SGLang's scheduler signals its parent, and that shall not be pytest.
            start_new_session=True,
        )
    assert ended.returncode != 0
    return log.read_text(encoding="utf-8", errors="replace")


def test_a_server_that_cannot_have_kvflow_ends_and_says_everything_that_is_wrong(
    tmp_path: Path,
) -> None:
    said = said_at_its_end(tmp_path / "log", "--radix-eviction-policy", "lfu")
    assert "KVFlowActivationError: KVFlow was chosen" in said
    assert "--radix-eviction-policy: KVFlow brings its own order" in said
    assert "prefetch needs host memory: add --enable-hierarchical-cache" in said


@pytest.mark.full
@pytest.mark.parametrize("kind", MODELS)
def test_a_model_that_is_not_supported_ends_the_start_and_is_named(
    kind: str, tmp_path: Path
) -> None:
    said = said_at_its_end(
        tmp_path / "log",
        *("--model-path", str(model_without_weights(tmp_path / "model", MODELS[kind]))),
        *("--load-format", "dummy", "--enable-hierarchical-cache"),
        *("--hicache-io-backend", "direct", "--hicache-mem-layout", "layer_first"),
    )
    assert "KVFlowActivationError: KVFlow was chosen" in said
    assert f"  - {kind} models: " in said


def model_without_weights(folder: Path, differs: Mapping[str, object]) -> Path:
    """A model of another kind, as small as the tests' own and with its tokenizer."""
    shutil.copytree(
        tiny_model(DIMS), folder, ignore=shutil.ignore_patterns("*.safetensors")
    )
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | differs))
    return folder


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--pp-size", "2"), "--pp-size"),
        (("--radix-eviction-policy", "lfu"), "--radix-eviction-policy"),
        (("--tokenizer-worker-num", "2", "--api-key", "k"), "--tokenizer-worker-num"),
    ],
)
def test_flags_that_are_not_supported_are_refused_by_name(
    flags: tuple[str, ...], named: str
) -> None:
    (refusal,) = refusals_of(*flags)
    assert refusal.startswith(f"{named}: ")


def test_the_flags_of_kvflow_serve_are_not_refused() -> None:
    flags = ("--enable-hierarchical-cache", "--radix-cache-backend", "kvflow")
    assert refusals_of(*flags) == []


def test_the_doctor_reads_a_config_file_as_sglang_does(tmp_path: Path) -> None:
    from kvflow_server.edge.doctor import refused_flags

    config = tmp_path / "sglang.yaml"
    config.write_text("model-path: m\npp-size: 2\n")
    refusals_of()  # imports SGLang in an order that it bears
    (refusal,) = refused_flags(["--config", str(config)])
    assert refusal.startswith("--pp-size: ")
    (unknown,) = refused_flags(["--model-path", "m", "--no-such-flag", "1"])
    assert unknown == "SGLang has no flag --no-such-flag"
    (unread,) = refused_flags(["--config", str(tmp_path / "gone.yaml")])
    assert "gone.yaml" in unread


def refusals_of(*flags: str) -> list[str]:
    """For SGLang's own reading of the command line."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # First, or its lazy choice of a platform meets itself half imported.
        from sglang.srt.platforms import current_platform  # noqa: F401  # isort: skip
        from sglang.srt.server_args import prepare_server_args

        argv = sglang_alone(*flags)
        args: Any = prepare_server_args(argv[argv.index("--model-path") :])
    from kvflow_server.engine.support import refusals

    return refusals(args)
