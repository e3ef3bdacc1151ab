"""The sections of `kvflow bench paper`: a figure of the paper each, or a question to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from kvflow_server.bench.paper.bars import save_latency, save_systems
from kvflow_server.bench.paper.camera_ready import BREAKDOWN, BREAKDOWN_TESTBED
from kvflow_server.bench.paper.cases import Case, cases_of
from kvflow_server.bench.paper.plot import save_fig5, save_fig6

from .page import Section, Table
from .sections import Report, Results, number
from .typed import typed_command
from .verdicts import verdict

__all__ = ["PAPER_SECTIONS"]

Draw = Callable[[Path, Report], None]
_EMULATED = (
    "Emulated: how long a pass of the model and a copy over the bus take, after the "
    "testbed's data sheet; token counts are divided by one factor, seconds by one for "
    "each case, and long answers are cut to a few tokens that take as long. "
    "Real: servers, requests, scheduler, radix tree, copies, every decision."
)
_HICACHE = (
    "Today's HiCache overlaps a load with the layers that compute, and is a stronger "
    "baseline than the paper's."
)
_OF_A_CROWD = (
    "There is no offline optimum here: with many programs at a time the order of the "
    "calls is the server's doing. The dashed line is the pool that never evicts."
)


@dataclass(frozen=True, slots=True)
class _About:
    """A section: which files it shows, and how."""

    title: str
    files: str
    """All whose name begins so."""
    text: tuple[str, ...]
    pictures: tuple[tuple[str, str, Draw], ...]
    """What is added to the file's name, what is shown, how it is drawn."""
    table: Callable[[str, list[Case]], Table]
    figure: str = "5"
    """That the command makes whose report has not been kept."""


def _section(about: _About, results: Results) -> Section:
    section = Section(about.title, [_EMULATED, *about.text])
    for name in results.names(f"{about.files}*"):
        report = results.get(name, section)
        cases = cases_of(report)
        crowds = cases[0].crowd if cases else False
        drawn = [*about.pictures, *([_LATENCY] if crowds else [])]
        for suffix, words, draw in drawn if cases else ():
            section.parts.append(
                results.picture(f"{name}{suffix}", words, partial(_drawn, draw, report))
            )
        if not report["emulated"]:
            section.text.append(f"{name}: {report['note']}")
        section.parts.append(about.table(name, cases))
        section.parts += verdict(name, cases)
        section.commands.append(typed_command(name, report))
    if not section.parts:
        section.missing.append(f"{about.files}.json")
        section.commands.append(
            f"kvflow bench paper --fig {about.figure} --json results/{about.files}.json"
        )
    return section


def _drawn(draw: Draw, report: Report, path: Path) -> None:
    draw(path, report)


def _over(base: str) -> Draw:
    return lambda path, report: save_systems(path, report, base)


_LATENCY = ("-latency", "Latency of a workflow, p50 and p99", save_latency)


def _fig5_table(name: str, cases: list[Case]) -> Table:
    head = ["testbed", "mix", "recompute, s", "HiCache, s", "KVFlow, s", "ideal, s"]
    head += ["Belady, s", "KVFlow over recompute", "paper", "over HiCache", "paper"]
    head += ["KVFlow of Belady", "load/prefill (wanted)", "run/prefill (wanted)"]
    return Table(name, head, [_fig5_row(case) for case in cases])


def _fig5_row(case: Case) -> list[str]:
    systems = ("recompute", "hicache", "kvflow", "ideal", "belady")
    mix = case.entry
    ours, paper = mix["speedup"], mix["paper"]
    wanted, got = mix["proportion"]["wanted"], mix["proportion"]["reached"]
    return [
        case.testbed,
        case.name,
        *(number(mix[system]) for system in systems),
        number(ours["kvflow"], 3),
        number(paper["kvflow"], 3),
        number(ours["kvflow_over_hicache"], 3),
        number(paper["kvflow_over_hicache"], 3),
        number(mix["kvflow_over_belady"], 3),
        *(f"{number(got[k])} ({number(wanted[k])})" for k in ("load", "hit")),
    ]


def _systems_table(name: str, cases: list[Case]) -> Table:
    """A row for each system of each case."""
    crowds = bool(cases) and cases[0].crowd
    head = ["testbed", "case", "system"]
    head += ["workflows/s", "p50, s", "p99, s"] if crowds else ["median, s"]
    head += ["over recompute", "paper", "over HiCache", "paper"]
    head += [f"times the seconds of {_optimum_of(cases)}"]
    head += ["tokens brought in" if crowds else "tokens brought in (least)"]
    rows = [row for case in cases for row in _system_rows(case)]
    return Table(f"{name}: medians, quartiles of the pairs in brackets", head, rows)


def _optimum_of(cases: list[Case]) -> str:
    bounded = any(case.least_tokens is not None for case in cases)
    return "the bound (Belady)" if bounded else "never evicting"


def _called(case: Case) -> str:
    if not case.crowd:
        return case.name
    return f"{case.name}, here {case.entry['concurrency']}"


def _system_rows(case: Case) -> Iterator[list[str]]:
    least = "" if case.least_tokens is None else f" ({number(case.least_tokens, 0)})"
    for system in case.runs:
        over_hicache = case.paper_over_hicache() if system == "kvflow" else None
        yield [
            case.testbed,
            _called(case),
            system,
            *_how_long(case, system),
            _ratio(case, system, "recompute"),
            number(case.paper(system), 3),
            _ratio(case, system, "hicache"),
            number(over_hicache, 3),
            number(case.over_optimum(system).median, 3),
            f"{number(case.brought_in(system), 0)}{least}",
        ]


def _how_long(case: Case, system: str) -> list[str]:
    if not case.crowd:
        return [number(case.entry[system], 3)]
    latency = case.entry["latency"][system]
    rate = case.entry["throughput"][system]
    return [number(rate), number(latency["p50"]), number(latency["p99"])]


def _ratio(case: Case, system: str, base: str) -> str:
    if system == base or base not in case.runs:
        return ""
    spread = case.over(system, base)
    return f"{spread.median:.3f} ({spread.q1:.3f} to {spread.q3:.3f})"


def _breakdown_table(name: str, cases: list[Case]) -> Table:
    """Over HiCache, a column for each of KVFlow's modes."""
    modes = [s for s in (cases[0].runs if cases else ()) if s.startswith("kvflow")]
    rows = [
        [
            case.testbed,
            _called(case),
            *(_ratio(case, mode, "hicache") for mode in modes),
            number(case.optimum_over("hicache"), 3),
        ]
        for case in cases
    ]
    printed = [number(BREAKDOWN.get(mode)) for mode in modes]
    if any(case.testbed == BREAKDOWN_TESTBED for case in cases):
        rows.append([BREAKDOWN_TESTBED, "camera-ready, one mix", *printed, ""])
    head = ["testbed", "case", *modes, _optimum_of(cases)]
    return Table(f"{name}: speed-ups over HiCache", head, rows)


_FIG5 = _About(
    "Figure 5, rerun on the emulated accelerator",
    "paper-fig5",
    (
        "The paper's twelve mixes. Belady is a bound for whoever knows the future, not a "
        "system. " + _HICACHE,
    ),
    (("", "Speed-ups over recomputation, the paper's beside ours", save_fig5),),
    _fig5_table,
)
_FIG6 = _About(
    "Figure 6: many workflows at a time",
    "paper-fig6",
    (
        "Programs that run at the same time, each with ten prompts of its own. Where "
        "fewer run here than in the paper, each stands for several, and the pool is as "
        "many times smaller. Ratios are of throughput, block by block. " + _HICACHE,
        _OF_A_CROWD,
    ),
    (("", "Throughput over recomputation, the paper's beside ours", save_fig6),),
    _systems_table,
    "6",
)
_FIG8 = replace(
    _FIG6,
    title="Figures 7 and 8: PEER on financial questions",
    files="paper-fig8",
    text=(
        "Tasks of four agents, whose prompts, suffixes and answers are as long as the "
        "paper's histograms say; the questions are a public data set's, the rest is "
        "random tokens. That three drafts in ten are sent back is a guess. " + _HICACHE,
        _OF_A_CROWD,
    ),
    figure="8 --dataset FinQA.jsonl",
)
_ABLATION = _About(
    "What each part of KVFlow does",
    "paper-ablation",
    (
        "Protect: fixed prompts are evicted last, no steps, no prefetching. Evict: "
        "KVFlow's order of eviction alone. Steps: the paper's policy and nothing more. "
        "No-skip: eviction and prefetching, no status-aware scheduling. Kvflow: all.",
        "The camera-ready gives 1.11 over HiCache for eviction alone and 1.29 with "
        "prefetching, on the H100; of which mix, the notes that we go by do not say. "
        + _HICACHE,
    ),
    (("", "Speed-ups over HiCache, by part", _over("hicache")),),
    _breakdown_table,
)
_STOCK = _About(
    "Against every eviction policy of SGLang",
    "paper-stock-policies",
    (
        "HiCache with each of SGLang's own orders of eviction. For `priority` the client "
        "sets priorities by hand, as one would who knows that the pool holds so many "
        "agents and no more.",
    ),
    (("", "Speed-ups over recomputation, by policy", _over("recompute")),),
    _systems_table,
)
_BRANCHES = _About(
    "Two agents at each stage (branches = 2)",
    "paper-branches",
    (
        "Ten stages; each picks one of two agents at random, which share half of their "
        "prompts (the paper: part of them). The program's graph says who may come, not "
        "who will. Of this the camera-ready's text has no number: the bars beside ours "
        "are its branches = 1 for 4096/32/32, 1.42 over SGLang and 1.24 over HiCache.",
        "The bound is Belady's rule on the way that the measured runs took.",
    ),
    (("", "Speed-ups over recomputation", _over("recompute")),),
    _systems_table,
    "branches",
)
_DYNAMIC = replace(
    _BRANCHES,
    title="Agents chosen at run time",
    files="paper-dynamic",
    text=(
        "Ten agents; each has one usual successor and three rare ones, drawn by a seeded "
        "process, and a run has twelve calls. The paper has no such workflow. "
        "`kvflow-steps` is the paper's policy, `kvflow-unlearnt` is KVFlow whose client "
        "learns no transitions.",
        "The bound is Belady's rule on the way that the measured runs took, which no "
        "system knows beforehand.",
    ),
    figure="dynamic",
)
_ALL = (_FIG5, _FIG6, _FIG8, _ABLATION, _STOCK, _BRANCHES, _DYNAMIC)
PAPER_SECTIONS: tuple[Callable[[Results], Section], ...] = tuple(
    partial(_section, about) for about in _ALL
)
