"""KVFlow asked for and impossible: the server does not start, and says why."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from kvflow_server.edge.launcher import free_port
from kvflow_server.emulated.tiny import TinyDims, tiny_model

pytestmark = [pytest.mark.sglang, pytest.mark.server]

DIMS = TinyDims(
    hidden=64, layers=2, heads=4, kv_heads=4, intermediate=128, vocab=512, context=512
)


def sglang_alone(*flags: str) -> list[str]:
    """SGLang's own command line, without what `kvflow serve` would add or check."""
    return [
        *(sys.executable, "-P", "-m", "sglang.launch_server"),
        *("--model-path", str(tiny_model(DIMS)), "--host", "127.0.0.1"),
        *("--port", str(free_port()), "--device", "cpu", "--dtype", "float32"),
        *("--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
        *("--max-total-tokens", "1000", *flags),
    ]


def test_a_server_that_cannot_have_kvflow_ends_and_says_everything_that_is_wrong(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    with log.open("wb") as out:
        ended = subprocess.run(
            sglang_alone(
                *("--radix-cache-backend", "kvflow", "--radix-eviction-policy", "lfu")
            ),
            env={**os.environ, "SGLANG_PLATFORM": "kvflow_emulated"},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            # SGLang's scheduler signals its parent, and that shall not be pytest.
            start_new_session=True,
        )
    said = log.read_text(encoding="utf-8", errors="replace")
    assert ended.returncode != 0
    assert "KVFlowActivationError: KVFlow was chosen" in said
    assert "--radix-eviction-policy: KVFlow brings its own order" in said
    assert "prefetch needs host memory: add --enable-hierarchical-cache" in said


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
