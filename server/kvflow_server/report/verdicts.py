"""What the cases of a report do not reach: each named, with its quartiles."""

from __future__ import annotations

from collections.abc import Iterator

from kvflow_server.bench.paper.cases import Case
from kvflow_server.bench.results import Spread

from .page import Table

__all__ = ["verdict"]

SLOWER = 0.99
"""Of a baseline's speed: below it KVFlow counts as slower."""
FAR = 1.05
"""Times the bound in time."""


def verdict(name: str, cases: list[Case]) -> list[Table]:
    """One table: what was asked, how many cases reach it, and those that do not."""
    rows = [row for ask in _ASKED for row in ask(cases)]
    head = ["", "reached", "not reached: KVFlow's, what was asked"]
    return [Table(f"{name}: verdict", head, rows)] if cases else []


def _row(what: str, asked: int, missed: list[str]) -> list[str]:
    return [what, f"{asked - len(missed)} of {asked}", "; ".join(missed)]


def _slower(cases: list[Case]) -> Iterator[list[str]]:
    """Stock SGLang's systems are the baselines."""
    missed = []
    for case in cases:
        found = {base: case.over("kvflow", base) for base in _baselines(case)}
        base, spread = min(found.items(), key=lambda item: item[1].median)
        if spread.median < SLOWER:
            missed.append(f"{case} {_told(spread)} of {base}")
    yield _row(f"at least {SLOWER} of every baseline's speed", len(cases), missed)


def _baselines(case: Case) -> list[str]:
    return [name for name in case.runs if name.startswith(("hicache", "recompute"))]


def _late(cases: list[Case]) -> Iterator[list[str]]:
    """The slowest workflows of a crowd."""
    crowds = [case for case in cases if case.crowd]
    missed = []
    for case in crowds:
        p99 = {name: own["p99"] for name, own in case.entry["latency"].items()}
        base = min(_baselines(case), key=lambda name: p99[name])
        if p99["kvflow"] * SLOWER > p99[base]:
            missed.append(f"{case} {p99['kvflow']:.2f} s, {base} {p99[base]:.2f} s")
    if crowds:
        yield _row("a p99 no longer than every baseline's", len(crowds), missed)


def _short(cases: list[Case]) -> Iterator[list[str]]:
    of = " (at branches = 1)" if cases[0].figure == "branches" else ""
    for what, base in (("recomputation", "recompute"), ("HiCache", "hicache")):
        asked = [(case, _printed(case, base)) for case in cases]
        printed = [(case, paper) for case, paper in asked if paper is not None]
        missed = [
            f"{case} {_told(spread)}, {paper:.3f}"
            for case, paper in printed
            if (spread := case.over("kvflow", base)).median < paper
        ]
        if printed:
            yield _row(f"the paper's speed-up over {what}{of}", len(printed), missed)


def _printed(case: Case, base: str) -> float | None:
    return case.paper("kvflow") if base == "recompute" else case.paper_over_hicache()


def _far(cases: list[Case]) -> Iterator[list[str]]:
    asked = [case for case in cases if case.entry.get("load_below_run")]
    missed = [
        f"{case} {_told(spread)}"
        for case in asked
        if (spread := case.over_optimum("kvflow")).median > FAR
    ]
    if asked:
        what = f"within {FAR - 1:.0%} of the bound, where a load is shorter than a call"
        yield _row(what, len(asked), missed)


def _own_modes(cases: list[Case]) -> Iterator[list[str]]:
    """A part of KVFlow that is better than the whole is worth knowing."""
    modes = [
        (case, system)
        for case in cases
        for system in case.runs
        if system.startswith("kvflow-")
    ]
    missed = [
        f"{case} {_told(spread)} of {system}"
        for case, system in modes
        if (spread := case.over("kvflow", system)).median < SLOWER
    ]
    if modes:
        yield _row(f"at least {SLOWER} of its own modes' speed", len(modes), missed)


def _outputs(cases: list[Case]) -> Iterator[list[str]]:
    missed = [str(case) for case in cases if case.entry["outputs_identical"] is False]
    what = "the same answers on all systems, token by token"
    if any(case.crowd for case in cases):
        what += " (of a crowd not asked: batches differ, and with them rounding)"
    yield _row(what, len(cases), missed)


def _told(spread: Spread) -> str:
    return f"{spread.median:.3f} ({spread.q1:.3f} to {spread.q3:.3f}, n = {spread.n})"


_ASKED = (_slower, _late, _short, _far, _own_modes, _outputs)
