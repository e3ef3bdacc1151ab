"""Stock HiCache on the emulated accelerator, in one real server.

SGLang's scheduler, radix tree and HiCache are unmodified here and KVFlow's cache is
not used: what is tested is the ground that KVFlow stands on.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from kvflow_server.edge.launcher import ServerProcess
from kvflow_server.emulated.tiny import TinyDims, tiny_model

pytestmark = [pytest.mark.sglang, pytest.mark.server]

DIMS = TinyDims(
    hidden=256,
    layers=4,
    heads=4,
    kv_heads=4,
    intermediate=512,
    vocab=2048,
    context=4096,
)
PROMPT = 400
POOL = 1000
"""Device slots: two prompts and a bit, so that a third pushes one out."""
LOGPROB_TOLERANCE = 1e-4


@dataclass(frozen=True, slots=True)
class Answer:
    """What a greedy request came back with."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    device: int
    """Prompt tokens found in the device's memory."""
    host: int
    """Prompt tokens loaded from host memory."""

    def agrees_with(self, other: Answer) -> bool:
        return self.tokens == other.tokens and self.logprobs == pytest.approx(
            other.logprobs, rel=0, abs=LOGPROB_TOLERANCE
        )


class Client:
    def __init__(self, server: ServerProcess, http: httpx.Client, fault: Path) -> None:
        self.server = server
        self._http = http
        self._fault = fault

    def ask(self, prompt: list[int]) -> Answer:
        body = {
            "input_ids": prompt,
            "sampling_params": {
                "temperature": 0,
                "max_new_tokens": 8,
                "ignore_eos": True,
            },
            "return_logprob": True,
        }
        meta = self.post("/generate", body)["meta_info"]
        where = meta["cached_tokens_details"] or {"device": 0, "host": 0}
        logprobs, tokens, *_ = zip(*meta["output_token_logprobs"], strict=True)
        return Answer(tokens, logprobs, where["device"], where["host"])

    def ask_with_a_spoilt_slot(self, prompt: list[int]) -> Answer:
        self._fault.touch()
        answer = self.ask(prompt)
        assert not self._fault.exists(), "no slot was spoilt"
        return answer

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        response = self._http.post(path, json=body)
        response.raise_for_status()
        found: dict[str, Any] = response.json()
        return found


def fault_plugin(folder: Path) -> Path:
    """A distribution with the plugin of kv_fault.py; returns its folder."""
    shutil.copy(Path(__file__).with_name("kv_fault.py"), folder)
    info = folder / "kv_fault-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: kv-fault\nVersion: 0\n"
    )
    (info / "entry_points.txt").write_text(
        "[sglang.srt.plugins]\nkv_fault = kv_fault:register\n"
    )
    return folder


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("server")
    order = folder / "spoil"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(fault_plugin(folder)), prepend=":")
        server = ServerProcess(
            [
                *("--model-path", str(tiny_model(DIMS)), "--kvflow-stock"),
                *("--max-total-tokens", str(POOL), "--hicache-ratio", "8"),
                *("--emulated", "--emulated-pcie-gbps", "0.02"),
            ],
            env={"KV_FAULT_FILE": str(order)},
            log_path=folder / "log",
        )
    with server, httpx.Client(base_url=server.url, timeout=60, trust_env=False) as http:
        yield Client(server, http, order)


def prompts(count: int, seed: int) -> list[list[int]]:
    """Random prompts that share no prefix with those of another seed."""
    source = random.Random(seed)
    return [
        [source.randrange(3, DIMS.vocab) for _ in range(PROMPT)] for _ in range(count)
    ]


def test_what_is_loaded_back_from_host_answers_like_fresh_computation(
    client: Client,
) -> None:
    asked = prompts(4, seed=1)
    fresh = [client.ask(prompt) for prompt in asked]
    assert [(a.device, a.host) for a in fresh] == [(0, 0)] * 4
    # Twice and without a flush: what a wrong load computes would stay in the tree.
    for _ in range(2):
        again = [client.ask(prompt) for prompt in asked]
        assert [answer.host for answer in again] == [PROMPT - 1] * 4
        assert all(map(Answer.agrees_with, again, fresh))


def test_what_is_still_on_the_device_answers_like_fresh_computation(
    client: Client,
) -> None:
    (prompt,) = prompts(1, seed=2)
    fresh, again = client.ask(prompt), client.ask(prompt)
    assert (again.device, again.host) == (PROMPT - 1, 0)
    assert again.agrees_with(fresh)


def test_one_spoilt_kv_slot_changes_the_answer(client: Client) -> None:
    (prompt,) = prompts(1, seed=3)
    fresh = client.ask(prompt)
    assert not client.ask_with_a_spoilt_slot(prompt).agrees_with(fresh)


def test_chat_uses_the_models_tokenizer_and_template(client: Client) -> None:
    body = {
        "model": "any",
        "messages": [{"role": "user", "content": "Hello."}],
        "max_tokens": 4,
        "temperature": 0,
    }
    answer = client.post("/v1/chat/completions", body)
    assert answer["usage"]["completion_tokens"] >= 1
    assert answer["usage"]["prompt_tokens"] > len("Hello.")


def test_the_server_says_that_it_is_emulated(client: Client) -> None:
    log = client.server.log_path.read_text()
    assert "EMULATED accelerator" in log
    assert "0.02 GB/s" in log


def test_stopping_the_server_ends_every_process_of_it(client: Client) -> None:
    # The last test: the others need the server.
    family = psutil.Process(client.server.pid).children(recursive=True)
    assert len(family) >= 2
    client.server.stop()
    # A killed process goes when the kernel gets to it; a survivor hits the time limit.
    while any(alive(process) for process in family):
        time.sleep(0.01)


def alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
