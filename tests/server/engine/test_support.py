"""What is refused at start, and that nothing else is."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from kvflow_server.engine.support import (
    REFUSED,
    WORKS,
    markdown,
    model_refusals,
    refusals,
)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pp_size", 2),
        ("nnodes", 2),
        ("enable_dp_attention", True),
        ("disable_radix_cache", True),
        ("radix_eviction_policy", "lfu"),
        ("speculative_algorithm", "EAGLE"),
        ("disaggregation_mode", "prefill"),
        ("hicache_storage_backend", "file"),
        ("hicache_host_memory_mode", "buffer_only"),
        ("enable_streaming_session", True),
    ],
)
def test_what_was_not_tried_is_refused_by_its_flag(name: str, value: object) -> None:
    (refusal,) = refusals(SimpleNamespace(**{name: value}))
    assert refusal.startswith("--" + name.replace("_", "-") + ": ")


@pytest.mark.parametrize("key", ["api_key", "admin_api_key"])
def test_several_tokenizer_workers_are_refused_only_with_a_key(key: str) -> None:
    several = SimpleNamespace(tokenizer_worker_num=2)
    assert refusals(several) == []
    setattr(several, key, "a key")
    (refusal,) = refusals(several)
    assert refusal.startswith("--tokenizer-worker-num: with an API key: ")


def test_models_that_are_not_supported_are_refused_each_by_name() -> None:
    assert model_refusals(sliding_window=False, mamba=False, mla=False) == []
    found = model_refusals(sliding_window=True, mamba=True, mla=True)
    kinds = [text.partition(" models: ")[0] for text in found]
    assert kinds == ["sliding-window", "Mamba", "MLA"]


def test_no_mode_is_both_working_and_refused() -> None:
    flags = {word for works in WORKS for word in works.flags.replace(",", "").split()}
    refused = {rule.flag for rule in REFUSED}
    # Several workers work, and are refused together with a key.
    assert flags & refused == {"--tokenizer-worker-num"}


def test_the_readme_says_the_same() -> None:
    readme = Path(__file__).parents[3].joinpath("README.md").read_text("utf-8")
    start = readme.index("<!-- support: from")
    table = readme[start : readme.index("<!-- support: end")].partition("-->")[2]
    assert table.strip() == markdown()


@pytest.mark.sglang
def test_sglangs_defaults_are_not_refused() -> None:
    from sglang.srt.server_args import ServerArgs

    assert refusals(ServerArgs(model_path="dummy")) == []


@pytest.mark.sglang
def test_every_flag_in_the_table_is_one_of_sglangs_or_kvflows() -> None:
    import argparse

    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser(add_help=False)
    ServerArgs.add_cli_args(parser)
    known = {option for action in parser._actions for option in action.option_strings}
    known |= {"--kvflow-mode", "--no-hicache"}
    named = [rule.flag for rule in REFUSED]
    named += [w for works in WORKS for w in works.flags.replace(",", "").split()]
    unknown = [word for word in named if word.startswith("--") and word not in known]
    assert unknown == []
