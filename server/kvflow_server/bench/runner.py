"""Running the workflow against one server, as a program with the SDK would."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import httpx

from kvflow_sdk.wire import DRIFT_PATH, STATE_PATH

from .program import Program, SilentProgram
from .results import Call, Workflow
from .workload import Workload

__all__ = ["Meter", "Runner"]

TIMEOUT_S = 120.0
POLL_S = 0.1


class Runner:
    """One client of one server.

    `hints` tells whether the client speaks KVFlow, `marks` whether it says where fixed
    prompts end. The calls of the first `important` agents, if any, carry SGLang's
    priority 1, those of the others 0. `learn`: its client learns transitions.
    `logprobs` asks for those of the answers, which takes the server some milliseconds.
    A context manager.
    """

    def __init__(
        self,
        url: str,
        workload: Workload,
        *,
        hints: bool,
        marks: bool = True,
        important: int = 0,
        logprobs: bool = True,
        learn: bool = True,
    ) -> None:
        self._url = url
        self.workload = workload
        """May be exchanged between runs, for one with the same fixed prompts."""
        self._http = httpx.Client(base_url=url, timeout=TIMEOUT_S)
        self.hints = hints
        self._important = important
        self._logprobs = logprobs
        self._learn = learn
        self._marks = marks
        self._program = self._new_program()

    def _new_program(self) -> SilentProgram:
        if not self.hints:
            return SilentProgram()
        graph = self.workload.graph
        load = self.workload
        fixed = {name: load.mark(n) for n, name in enumerate(load.agents)}
        marks = fixed if self._marks else {}
        return Program(self._url, marks, graph, learn=self._learn)

    def __enter__(self) -> Runner:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._program.close()
        self._http.close()

    def warm_up(self, agent: int) -> None:
        """Serve the fixed prompt alone until it is certainly backed up."""
        prompt = self.workload.fixed(agent)
        for _ in range(3):
            self._generate(prompt, 1, self._extra(agent, None))

    def run(self, index: int, agents: Sequence[int] | None = None) -> Workflow:
        """A workflow of `agents` (None: of all), one after the other; `index` chooses
        the suffixes."""
        numbers = self.workload.order(index) if agents is None else agents
        names = [self.workload.agents[n] for n in numbers]
        prompts = [
            self.workload.prompt(n, index, list(numbers[:place]).count(n))
            for place, n in enumerate(numbers)
        ]
        calls = []
        start = time.perf_counter()
        with self._program.workflow(names) as step:
            for number, name, prompt in zip(numbers, names, prompts, strict=True):
                with step(name) as hints:
                    extra = self._extra(number, hints)
                    output = self.workload.output(number, index)
                    calls.append(self._call(name, prompt, output, extra))
        return Workflow(time.perf_counter() - start, tuple(calls))

    def counters(self) -> dict[str, float]:
        """The server's own counters; empty where KVFlow is not on."""
        if not self.hints:
            return {}
        counters: Mapping[str, float] = self._state(STATE_PATH)["counters"]
        return dict(counters)

    def bus_bytes_per_s(self) -> float | None:
        """As the server has measured it; None where it has not, or KVFlow is not on."""
        if not self.hints:
            return None
        rate: float | None = self._state(STATE_PATH)["bus_bytes_per_s"]
        return rate

    def flush(self) -> None:
        """Empty the server's cache; it has nothing else to do."""
        wait = {"timeout": TIMEOUT_S / 2}  # for copies to host memory
        self._http.post("/flush_cache", params=wait).raise_for_status()

    def start_anew(self, *, register: bool = False) -> None:
        """An empty cache and a client that has never run.

        With `register` it has registered its prompts, and the server has had the time
        to compute them.
        """
        self._program.close()
        self.flush()
        self._program = self._new_program()
        if register and isinstance(self._program, Program):
            numbers = range(self.workload.settings.agents)
            names = self.workload.agents
            self._program.register({names[n]: self.workload.fixed(n) for n in numbers})
            while self._state(STATE_PATH)["prewarm"]["waiting"]:
                time.sleep(POLL_S)

    def drift(self) -> list[dict[str, Any]]:
        """The server's drift report; empty where KVFlow is not on."""
        if not self.hints:
            return []
        agents: list[dict[str, Any]] = self._state(DRIFT_PATH)["agents"]
        return agents

    def _state(self, path: str) -> dict[str, Any]:
        state: dict[str, Any] = self._http.get(path).raise_for_status().json()
        return state

    def _extra(self, number: int, hints: object) -> dict[str, object]:
        """What a call of this agent carries besides the prompt."""
        extra = {} if hints is None else {"kv_hints": hints}
        return extra | (
            {"priority": int(number < self._important)} if self._important else {}
        )

    def _call(
        self, agent: str, prompt: list[int], output: int, extra: dict[str, object]
    ) -> Call:
        start = time.perf_counter()
        reply = self._generate(prompt, output, extra)
        seconds = time.perf_counter() - start
        meta = reply["meta_info"]
        cached = meta.get("cached_tokens_details") or {}
        return Call(
            agent=agent,
            output=tuple(reply["output_ids"]),
            logprobs=tuple(
                entry[0] for entry in meta.get("output_token_logprobs") or ()
            ),
            prompt=meta["prompt_tokens"],
            device=cached.get("device", 0),
            host=cached.get("host", 0),
            seconds=seconds,
        )

    def _generate(
        self, prompt: list[int], output: int, extra: dict[str, object]
    ) -> dict[str, Any]:
        body: dict[str, object] = {
            "input_ids": prompt,
            "sampling_params": {
                "temperature": 0,
                "max_new_tokens": output,
                "ignore_eos": True,
            },
            "return_logprob": self._logprobs,
        }
        reply = self._http.post("/generate", json=body | extra).raise_for_status()
        answer: dict[str, Any] = reply.json()
        return answer


class Meter:
    """What the servers count from now on, each asked through one of its clients."""

    def __init__(self, clients: Mapping[str, Runner]) -> None:
        self._clients = clients
        self._before = {name: client.counters() for name, client in clients.items()}

    def per_workflow(self, workflows: int) -> dict[str, dict[str, float]]:
        """By system, divided by so many workflows; empty where KVFlow is not on."""
        return {
            name: {
                key: (value - self._before[name].get(key, 0)) / workflows
                for key, value in client.counters().items()
            }
            for name, client in self._clients.items()
        }
