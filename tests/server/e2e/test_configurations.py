"""KVFlow in SGLang's other configurations: each a server of its own, far too small.

The prompts of two programs that run at once, side by side, are 2.5 times the pool, so
everything is evicted, loaded, prefetched and joined; and every answer is compared with
stock SGLang's that caches nothing. Replayed without a flush: what a wrong copy computes
would stay in the tree.
"""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import save_file

from kvflow_sdk import wire
from kvflow_sdk.wire import FixedMark

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from conftest import Answer, Caller, Serve, Server

pytestmark = [pytest.mark.sglang, pytest.mark.server]

AGENTS = tuple(f"agent-{number}" for number in range(6))
FIXED = 256
"""Tokens: whole pages of every size."""
TURNS = 4
CONSENSUS = {"SGLANG_ENABLE_RANK_CONSENSUS_CHECKER": "1"}


@dataclass(frozen=True, slots=True)
class Configuration:
    flags: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    happens: tuple[str, ...] = ("prefetch_used_tokens", "load_on_demand_tokens")
    """Counters that must have moved, or the comparison says nothing."""
    fields: tuple[dict[str, object], ...] = ({},)
    """Further fields of a request, one set after the other."""


# Two in `make test`, and each holds as much as goes together.
RANKS = Configuration(
    (
        *("--tp-size", "2", "--page-size", "16", "--disable-overlap-schedule"),
        *("--enable-priority-scheduling", "--max-running-requests", "1"),
        *("--priority-scheduling-preemption-threshold", "1"),
    ),
    env=CONSENSUS,
    fields=({"priority": 0}, {"priority": 5}),
)
REPLICAS = Configuration(
    (
        *("--dp-size", "2", "--tokenizer-worker-num", "2", "--page-size", "64"),
        *("--hicache-write-policy", "write_through_selective"),
    ),
)
MORE = {
    "write back": Configuration(
        ("--hicache-write-policy", "write_back", "--page-size", "16"),
        happens=("load_on_demand_tokens",),
    ),
    "write back on two ranks": Configuration(
        ("--hicache-write-policy", "write_back", "--tp-size", "2"),
        env=CONSENSUS,
        happens=("load_on_demand_tokens",),
    ),
    "mixed chunks, pages of 64": Configuration(
        ("--enable-mixed-chunk", "--page-size", "64"),
    ),
    "no overlap, longest prefix first": Configuration(
        ("--disable-overlap-schedule", "--schedule-policy", "lpm"),
    ),
    "no host memory": Configuration(
        ("--no-hicache", "--kvflow-mode", "evict"), happens=()
    ),
}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(RANKS, id="ranks"),
        pytest.param(REPLICAS, id="replicas", marks=pytest.mark.full),
        *(
            pytest.param(made, id=name, marks=pytest.mark.full)
            for name, made in MORE.items()
        ),
    ],
)
def configured(
    request: pytest.FixtureRequest, serve: Serve
) -> Iterator[tuple[Configuration, Server]]:
    made = request.param
    with serve(*made.flags, env=made.env) as server:
        yield made, server


def test_answers_are_those_of_stock_under_pressure(
    configured: tuple[Configuration, Server], truth: Server, caller: Caller
) -> None:
    made, server = configured
    before = server.state()["counters"]
    asked = run_programs(server, caller, made.fields)
    state = server.settle()
    wrong = [
        (len(prompt), answer)
        for prompt, answer in asked
        if not truth.ask(prompt, output=len(answer.tokens)).agrees_with(answer)
    ]
    assert wrong == []
    moved = {name: state["counters"][name] - before[name] for name in made.happens}
    assert all(moved.values()), moved
    assert state["integrity"] == "ok"
    assert "rank_consensus" not in server.process.log_tail(400)


def test_steps_reach_the_whole_server_and_a_flush_empties_it(
    configured: tuple[Configuration, Server], truth: Server, caller: Caller
) -> None:
    _made, server = configured
    prompt = caller.prompt(FIXED + 16)
    mark = FixedMark(tokens=FIXED)
    inband = caller.update({"planner": 0, "writer": 3}, agent="planner", fixed=mark)
    answer = server.ask(prompt, wire.to_envelope([inband]))
    shown = wire.shown_client(caller.id)
    for state in replicas_of(server.settle()):
        assert state["clients"][shown]["runs"] == {
            caller.run: {"planner": 0, "writer": 3}
        }
    assert server.send(caller.update({"writer": 1})).status_code == 202
    for state in replicas_of(server.settle()):
        assert state["clients"][shown]["runs"] == {caller.run: {"writer": 1}}
    assert server.http.post("/flush_cache").status_code == 200
    state = server.state()
    assert state["pool"]["free"] == state["pool"]["tokens"]
    assert state["sizes"]["prompts"] == 0
    again = server.ask(prompt)
    assert (again.device, again.host) == (0, 0)
    assert again.agrees_with(answer)
    assert truth.ask(prompt).agrees_with(answer)


WEIGHTS: list[dict[str, Any]] = [{"lora_path": name} for name in ("a", "b", None)]


@pytest.fixture(scope="module")
def adapted(
    serve: Serve, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, Server]]:
    """KVFlow, and the truth of it, with two LoRA adapters; with room for two of the
    three sets of weights, so that adapters come and go as prompts do."""
    folder = tmp_path_factory.mktemp("adapters")
    paths = [f"{n}={adapter(folder / n, seed)}" for seed, n in enumerate("ab")]
    flags = ("--enable-lora", "--lora-backend", "torch_native", "--lora-paths", *paths)
    with (
        serve(*flags, "--max-loras-per-batch", "2") as server,
        serve(*flags, stock=True) as stock,
    ):
        yield server, stock


@pytest.mark.full
def test_lora_answers_are_those_of_stock_under_pressure(
    adapted: tuple[Server, Server], caller: Caller
) -> None:
    server, stock = adapted
    asked = run_programs(server, caller, WEIGHTS)
    state = server.settle()
    # Each program's calls go round the weights in order.
    calls = len(asked) // 2
    for index, (prompt, answer) in enumerate(asked):
        weights = WEIGHTS[index % calls % len(WEIGHTS)]
        fresh = stock.ask(prompt, output=len(answer.tokens), **weights)
        assert fresh.agrees_with(answer)
    assert state["counters"]["prefetch_used_tokens"] > 0
    assert state["counters"]["load_on_demand_tokens"] > 0
    assert state["integrity"] == "ok"


@pytest.mark.full
def test_lora_adapters_do_not_share_a_prompt(
    adapted: tuple[Server, Server], caller: Caller
) -> None:
    server, stock = adapted
    assert server.http.post("/flush_cache").status_code == 200
    prompt = caller.prompt(FIXED)
    first, again = (
        [answer_to_agent(server, caller, prompt, weights) for weights in WEIGHTS]
        for _ in range(2)
    )
    assert [answer.device for answer in first] == [0, 0, 0]
    assert all(answer.device > 0 for answer in again)
    assert len({answer.logprobs for answer in first}) == len(WEIGHTS)
    for one, other, weights in zip(first, again, WEIGHTS, strict=True):
        assert other.agrees_with(one)
        assert stock.ask(prompt, **weights).agrees_with(one)
    # The agent's one prompt has an entry for each set of weights.
    prompts = server.agents(caller.id)["translator"]["prompts"]
    assert [entry["tokens"] for entry in prompts] == [FIXED] * len(WEIGHTS)
    assert server.settle()["integrity"] == "ok"


def answer_to_agent(
    server: Server, caller: Caller, prompt: list[int], weights: dict[str, Any]
) -> Answer:
    mark = FixedMark(tokens=FIXED)
    update = caller.update({"translator": 0}, agent="translator", fixed=mark)
    return server.ask(prompt, wire.to_envelope([update]), **weights)


def replicas_of(state: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = state.get("replicas", [state])
    return found


def run_programs(
    server: Server, caller: Caller, fields: Sequence[dict[str, Any]]
) -> list[tuple[list[int], Answer]]:
    """Two programs of one client at once, each several runs of the agents; each run in
    an order of its own, which it says in full, in part, or only when it calls."""
    prompts = {agent: caller.prompt(FIXED) for agent in AGENTS}
    programs = [
        Program(caller, server, prompts, name, list(fields)) for name in ("one", "two")
    ]
    with ThreadPoolExecutor(len(programs)) as pool:
        done = list(pool.map(Program.run, programs))
    return [one for asked in done for one in asked]


class Program:
    """A client program: sequential agents, in band and out of band."""

    def __init__(
        self,
        caller: Caller,
        server: Server,
        prompts: dict[str, list[int]],
        name: str,
        fields: list[dict[str, Any]],
    ) -> None:
        self.caller, self.server, self.name = caller, server, name
        # Some prompts are shared by both programs, some are their own.
        self.prompts = {
            agent: prompt if number % 2 else [*prompt[:64], *caller.prompt(FIXED - 64)]
            for number, (agent, prompt) in enumerate(prompts.items())
        }
        self.fields = fields
        self.source = random.Random(name)
        self.suffixes = iter([caller.prompt(16) for _ in range(TURNS * len(AGENTS))])
        self.calls = 0

    def run(self) -> list[tuple[list[int], Answer]]:
        asked = []
        for turn in range(TURNS):
            order = self.source.sample(AGENTS, len(AGENTS)) if turn else list(AGENTS)
            run = f"{self.caller.run}-{self.name}-{turn}"
            for number, agent in enumerate(order):
                known = order[number:] if turn % 2 == 0 else [agent]
                steps = {later: step for step, later in enumerate(known)}
                asked.append(self.call(run, 2 * number, agent, steps))
            self.server.send(self.update(run, 2 * len(order), final=True))
        return asked

    def call(
        self, run: str, seq: int, agent: str, steps: dict[str, int]
    ) -> tuple[list[int], Answer]:
        if self.calls % 3 == 1:
            self.server.send(self.update(run, seq, steps=steps))
        mark = FixedMark(tokens=FIXED)
        update = self.update(run, seq + 1, steps=steps, agent=agent, fixed=mark)
        prompt = self.prompts[agent] + next(self.suffixes)
        answer = self.server.ask(
            prompt,
            wire.to_envelope([update]),
            output=self.source.choice((1, 2, 8, 24)),
            **self.fields[self.calls % len(self.fields)],
        )
        self.calls += 1
        return prompt, answer

    def update(self, run: str, seq: int, **fields: Any) -> wire.StepUpdate:
        return wire.StepUpdate(client=self.caller.id, run=run, seq=seq, **fields)


def adapter(folder: Path, seed: int) -> Path:
    """A LoRA adapter of the tests' model, in the format of peft."""
    rank, hidden, layers = 8, 128, 2
    folder.mkdir()
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "tiny",
        "r": rank,
        "lora_alpha": 32,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": ["q_proj", "v_proj"],
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    source = torch.Generator().manual_seed(seed + 1)
    weights = {}
    for layer in range(layers):
        for module in ("q_proj", "v_proj"):
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            for part, shape in (("A", (rank, hidden)), ("B", (hidden, rank))):
                made = torch.randn(shape, generator=source) * 0.1
                weights[f"{name}.lora_{part}.weight"] = made
    save_file(weights, folder / "adapter_model.safetensors")
    return folder
