"""Two real servers for all tests here: KVFlow with far too small a pool, and the truth.

The truth is stock SGLang without any prefix cache: it computes every prompt from its
first token, so no KV that was kept, copied or fetched can have touched its answers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvflow_sdk import wire
from kvflow_sdk.wire import FixedMark, StepUpdate
from kvflow_server.edge.launcher import ServerProcess
from kvflow_server.emulated.platform import STALL_ENV
from kvflow_server.emulated.tiny import SMALL_DIMS, tiny_model

API_KEY = "the-key-of-this-server"
LOGPROB_TOLERANCE = 1e-4
DIMS = SMALL_DIMS
POOL = 1200
"""Device slots: what three or four requests of the soak test need."""
COMMON = ("--emulated", "--chunked-prefill-size", "192", "--context-length", "1024")
KVFLOW = (
    *("--max-total-tokens", str(POOL), "--hicache-ratio", "3"),
    *("--emulated-pcie-gbps", "0.02", "--enable-metrics"),
)
KEY = ("--api-key", API_KEY)
DEBUG = {"KVFLOW_DEBUG": "1", "KVFLOW_PREFETCH_PIECE_TOKENS": "64"}
"""Every invariant check after every scheduler pass; and small pieces, so that small
prompts come in several."""
Serve = Callable[..., AbstractContextManager["Server"]]
TRUTH = (
    *("--kvflow-stock", "--no-hicache", "--disable-radix-cache"),
    *("--max-total-tokens", "8192"),
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a greedy request came back with."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    device: int = field(compare=False)
    """Prompt tokens found in the device's memory."""
    host: int = field(compare=False)
    """Prompt tokens loaded from host memory."""

    @classmethod
    def of(cls, reply: Mapping[str, Any]) -> Answer:
        meta = reply["meta_info"]
        where = meta.get("cached_tokens_details") or {}
        logprobs, tokens, *_ = zip(*meta["output_token_logprobs"], strict=True)
        return cls(tokens, logprobs, where.get("device", 0), where.get("host", 0))

    def agrees_with(self, other: Answer) -> bool:
        return self.tokens == other.tokens and self.logprobs == pytest.approx(
            other.logprobs, rel=0, abs=LOGPROB_TOLERANCE
        )


class Server:
    """A running server and an HTTP client that has its key. Safe in any thread."""

    def __init__(self, process: ServerProcess, key: str | None) -> None:
        self.process = process
        self.key = key
        self.url = process.url
        self.http = httpx.Client(
            base_url=process.url,
            headers={"authorization": f"Bearer {key}"} if key else {},
            timeout=120,
            trust_env=False,
        )

    def ask(
        self,
        prompt: Sequence[int],
        hints: object = None,
        *,
        output: int = 4,
        **fields: object,
    ) -> Answer:
        """`prompt` on /generate, `hints` in its field ``kv_hints`` as they are, and
        any further `fields`."""
        body = generate_body(prompt, output=output) | fields
        if hints is not None:
            body["kv_hints"] = hints
        return Answer.of(self.json("/generate", body))

    def hang_up(self, prompt: Sequence[int], hints: object = None) -> None:
        """Ask for a long answer and go away after its first piece."""
        body = generate_body(prompt, output=32) | {"stream": True}
        if hints is not None:
            body["kv_hints"] = hints
        with self.http.stream("POST", "/generate", json=body) as response:
            next(response.iter_bytes())

    def json(
        self, path: str, body: object, headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        response = self.http.post(path, json=body, headers=headers)
        assert response.status_code == 200, response.text
        found: dict[str, Any] = response.json()
        return found

    def post(self, path: str, body: object) -> None:
        """For routes whose answer has no content."""
        self.http.post(path, json=body).raise_for_status()

    def send(self, *updates: StepUpdate) -> httpx.Response:
        """Out of band."""
        return self.http.post(wire.STEPS_PATH, json=wire.to_envelope(updates))

    def state(self) -> dict[str, Any]:
        response = self.http.get(wire.STATE_PATH)
        response.raise_for_status()
        found: dict[str, Any] = response.json()
        return found

    def settle(self) -> dict[str, Any]:
        """The state once no copy moves any more; the test's time limit is the bound."""
        while True:
            state = self.state()
            pool = state["pool"]
            if not pool["loads_in_flight"] and (
                pool["free"] + pool["evictable"] == pool["tokens"]
            ):
                return state

    def client(self, client: str) -> dict[str, Any]:
        """What the state says of the client with this id; empty if nothing."""
        found: dict[str, Any] = self.state()["clients"].get(
            wire.shown_client(client), {}
        )
        return found

    def agents(self, client: str) -> dict[str, Any]:
        found: dict[str, Any] = self.client(client).get("agents", {})
        return found

    def dropped(self, reason: str) -> int:
        return int(self.state()["dropped_metadata"].get(reason, 0))

    def log_count(self, text: str) -> int:
        log = self.process.log_path.read_text(encoding="utf-8", errors="replace")
        return log.count(text)


def generate_body(prompt: Sequence[int], *, output: int) -> dict[str, Any]:
    return {
        "input_ids": list(prompt),
        "sampling_params": {
            "temperature": 0,
            "max_new_tokens": output,
            "ignore_eos": True,
        },
        "return_logprob": True,
    }


class Fleet:
    """Starts the two servers together; one that a test has killed starts again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.stall = folder / "stall"
        """While this file exists, the bus of the servers stands still."""
        self.trace = folder / "trace.jsonl"
        """What KVFlow's server has seen since its last start."""
        self._running: dict[str, Server] = {}
        self._ready: set[str] = set()
        self._starts = 0
        for name in ("kvflow", "truth"):
            self._spawn(name)

    def __getitem__(self, name: str) -> Server:
        if not self._running[name].process.alive:
            self._running[name].http.close()
            self._spawn(name)
        if name not in self._ready:
            self._running[name].process.wait_ready()
            self._ready.add(name)
        return self._running[name]

    def _spawn(self, name: str) -> None:
        self._ready.discard(name)
        self._starts += 1
        ours = name == "kvflow"
        process = ServerProcess(
            [
                *("--model-path", str(tiny_model(DIMS))),
                *(*COMMON, *((*KVFLOW, *KEY) if ours else TRUTH)),
            ],
            env=DEBUG
            | {STALL_ENV: str(self.stall)}
            | ({"KVFLOW_RECORD": str(self.trace)} if ours else {}),
            log_path=self._folder / f"{name}-{self._starts}.log",
        )
        process.spawn()
        self._running[name] = Server(process, API_KEY if ours else None)

    def close(self) -> None:
        for server in self._running.values():
            server.http.close()
            server.process.stop()


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path_factory.mktemp("servers"))
    try:
        yield fleet
    finally:
        fleet.close()


@pytest.fixture
def stall(fleet: Fleet) -> Iterator[Path]:
    """Write this file, and the bus stands still until it is gone again."""
    try:
        yield fleet.stall
    finally:
        fleet.stall.unlink(missing_ok=True)


@pytest.fixture
def server(fleet: Fleet) -> Server:
    """KVFlow, every feature on, with an API key."""
    return fleet["kvflow"]


@pytest.fixture
def answer_of() -> Callable[[Mapping[str, Any]], Answer]:
    """Reads a reply of /generate."""
    return Answer.of


@pytest.fixture
def truth(fleet: Fleet) -> Server:
    """Stock SGLang without a prefix cache; the plugin is installed and not chosen."""
    return fleet["truth"]


@pytest.fixture(scope="session")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Serve:
    """Starts a server of its own for ``with serve(flags) as server``: like the shared
    ones, without a key; with `stock`, SGLang without a prefix cache."""

    @contextmanager
    def start(
        *flags: str, stock: bool = False, env: Mapping[str, str] | None = None
    ) -> Iterator[Server]:
        process = ServerProcess(
            [
                *("--model-path", str(tiny_model(DIMS))),
                *(*COMMON, *(TRUTH if stock else KVFLOW), *flags),
            ],
            env=DEBUG | (env or {}),
            log_path=tmp_path_factory.mktemp("server") / "log",
        )
        with process:
            server = Server(process, None)
            yield server
            server.http.close()

    return start


class Caller:
    """One client of KVFlow with an id of its own, and what it would send."""

    def __init__(self, source: random.Random) -> None:
        self.id = f"client-{source.getrandbits(128):032x}"
        self.run = f"run-{source.getrandbits(64):x}"
        self._source = source
        self._seq = 0

    def prompt(self, length: int) -> list[int]:
        """Random tokens that no other prompt begins with."""
        return [self._source.randrange(3, DIMS.vocab) for _ in range(length)]

    def text(self, words: int) -> str:
        letters = "abcdefghijklmnopqrstuvwxyz"
        return " ".join(
            "".join(self._source.choices(letters, k=self._source.randint(3, 9)))
            for _ in range(words)
        )

    def update(
        self,
        steps: Mapping[str, int] | None = None,
        *,
        agent: str | None = None,
        fixed: FixedMark | None = None,
        final: bool = False,
    ) -> StepUpdate:
        self._seq += 1
        return StepUpdate(
            client=self.id,
            run=self.run,
            seq=self._seq,
            agent=agent,
            steps=None if steps is None else dict(steps),
            fixed=fixed,
            final=final,
        )


@pytest.fixture
def caller(request: pytest.FixtureRequest) -> Caller:
    """Seeded by the test's name: the same prompts whichever other tests run."""
    return Caller(random.Random(request.node.nodeid))
