"""The section about traces without metadata: LRU, KVFlow and what could be had."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvflow_server.sim.plots import save_hit_rates

from .page import Section, Table
from .sections import Results, number

__all__ = ["traces_section"]

POLICIES = ("lru", "kvflow", "belady")
COMMAND = (
    "kvflow simulate hits mooncake_conversation.jsonl mooncake_synthetic.jsonl "
    "--pools 0.5e6,1e6,2e6,4e6,8e6,16e6,32e6,64e6 --json results/mooncake.json"
)


def traces_section(results: Results) -> Section:
    """Mooncake's public traces."""
    section = Section(
        "Traffic that says nothing: Mooncake's traces",
        [
            "Public traces, one recorded from a chat service and one synthetic, without a "
            "word of metadata. Calls one at a time, so time plays no part: tokens of prompts that a pool of some "
            "size still holds. KVFlow must not do worse than stock LRU here. Belady is "
            "the offline optimum, an upper bound on every policy, which knows the future.",
        ],
        [COMMAND],
    )
    report = results.get("mooncake", section)
    for name, found in (report or {"traces": {}})["traces"].items():
        pools, stem = found["pools"], name.partition(".")[0]
        sizes = [pool["pool"] for pool in pools]
        rates = {p: [pool["hit_rate"][p] for pool in pools] for p in POLICIES}
        section.parts.append(
            results.picture(
                f"hits-{stem}",
                f"Hit rates on {name}",
                lambda path, n=name, s=sizes, r=rates: (  # type: ignore[misc]
                    save_hit_rates(path, f"Hit rates on {n}", s, r)
                ),
            )
        )
        section.parts.append(_table(name, pools))
        section.text.append(_verdict(name, pools))
    return section


def _table(name: str, pools: list[Mapping[str, Any]]) -> Table:
    rows = [
        [
            f"{pool['pool']:,}",
            *(f"{pool['hit_rate'][policy]:.1%}" for policy in POLICIES),
            number(pool["fetched_over_optimum"]),
        ]
        for pool in pools
    ]
    head = ["pool, tokens", *POLICIES, "KVFlow brings in, times the least possible"]
    return Table(name, head, rows)


def _verdict(name: str, pools: list[Mapping[str, Any]]) -> str:
    """Whether KVFlow is as good as LRU, and whether more could be had."""
    worse = [pool for pool in pools if pool["kvflow"] < pool["lru"]]
    same = all(pool["kvflow"] == pool["lru"] for pool in pools)
    against = (
        "finds exactly what LRU finds" if same else "finds at least what LRU finds"
    )
    if worse:
        against = f"finds less than LRU in {len(worse)} of {len(pools)} pools"
    most = max(pools, key=lambda pool: pool["fetched_over_optimum"])
    enough = [p["pool"] for p in pools if p["fetched_over_optimum"] < 1.05]
    until = f"; from {min(enough):,} tokens on it is under 5%" if enough else ""
    return (
        f"{name}: KVFlow {against}. With a pool of {most['pool']:,} tokens it brings in "
        f"{most['fetched_over_optimum']:.2f} times what must be (hit rate "
        f"{most['hit_rate']['kvflow']:.1%}, {most['hit_rate']['belady']:.1%} at best), "
        f"the largest gap{until}. How much of the gap a policy could close that does not "
        "know the future, these numbers do not tell."
    )
