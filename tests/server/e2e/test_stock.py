"""Installed and not chosen: SGLang behaves as if KVFlow were not there."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from kvflow_sdk import wire

if TYPE_CHECKING:
    from conftest import Caller, Server

pytestmark = [pytest.mark.sglang, pytest.mark.server]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", wire.CAPABILITIES_PATH),
        ("POST", wire.STEPS_PATH),
        ("GET", "/kvflow/v1/state"),
    ],
)
def test_the_routes_are_not_there(truth: Server, method: str, path: str) -> None:
    answer = truth.http.request(method, path, json={})
    assert answer.status_code == 404
    assert not wire.speaks_kvflow(answer.json())


def test_the_header_changes_nothing(truth: Server, caller: Caller) -> None:
    body = {
        "model": "any",
        "prompt": caller.text(40),
        "max_tokens": 8,
        "temperature": 0,
        "logprobs": 1,
    }
    value = wire.to_header(caller.update({"planner": 0}, agent="planner"))
    plain = truth.json("/v1/completions", body)
    for header in (value, "not what KVFlow sends"):
        tagged = truth.json("/v1/completions", body, {wire.HEADER: header})
        assert tagged["choices"] == plain["choices"]


def test_hints_in_the_body_change_nothing(truth: Server, caller: Caller) -> None:
    prompt = caller.prompt(40)
    update = caller.update({"planner": 0}, agent="planner")
    tagged = truth.ask(prompt, wire.to_envelope([update]))
    assert tagged.agrees_with(truth.ask(prompt))


def test_no_part_of_the_server_says_anything_about_kvflow(truth: Server) -> None:
    # The banner of `kvflow serve` names it, and SGLang lists every plugin it finds.
    log = truth.process.log_path.read_text(encoding="utf-8", errors="replace")
    assert "Serving with stock SGLang" in log
    assert "KVFlow metadata dropped" not in log


def test_the_scheduler_keeps_its_own_admission() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # First, or its lazy choice of a platform meets itself half imported.
        from sglang.srt.platforms import current_platform  # noqa: F401  # isort: skip
        from sglang.srt.managers.schedule_policy import PrefillAdder
        from sglang.srt.mem_cache.radix_cache import RadixCache

        from kvflow_server.engine.seams import HOOKS

        (hook,) = [h for h in HOOKS if h.target.endswith(".get_prefill_adder_class")]
        scheduler = SimpleNamespace(tree_cache=RadixCache.create_simulated())
        assert hook.load()(PrefillAdder, scheduler) is PrefillAdder
