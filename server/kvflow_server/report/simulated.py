"""The sections about the simulator: figures, agreement with what was measured, maps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvflow_server.sim.check import Agreement, agreements
from kvflow_server.sim.figures import FIGURES
from kvflow_server.sim.maps import Cell
from kvflow_server.sim.plots import NOTE, save_figure_bars, save_maps

from .page import Section, Table
from .sections import Results, number

__all__ = ["SIMULATED_SECTIONS"]

_DIFFERENCES = {
    "5": "On the A10G the simulated KVFlow is near the paper's in all six mixes, and a "
    "little better: its prompts are complete when the agent calls, while the prototype "
    "pays for eviction and copies that the simulator's bus does for nothing. On the H100 "
    "a load of 4 096 tokens takes 17 ms, of which layer-wise overlap hides all but a few; "
    "so HiCache comes out as good as KVFlow, and far better than the paper's HiCache, "
    "which is even slower than recomputation at 8192/32/32 (0.805). No model of the "
    "hardware gives that; it must be the implementation of the time.",
    "6": "As in Figure 5 the bus of the H100 is too quick for the order of eviction to "
    "matter, once loads overlap with computing. What the paper measured as a loss of "
    "HiCache (0.57 of recomputation) is not in the hardware: 512 tokens are copied in "
    "1.2 ms.",
    "8": "The four prompts of a task are short, and whether they fit depends on how much "
    "of the pool the running calls leave; where they all fit nobody gains.",
    "branches": "Two agents per stage: which of the two comes is known only when it "
    "calls. Both are one step away, and both are fetched.",
    "dynamic": "Every agent may follow every other, so all are one step away and steps "
    "alone order nothing (`steps` is the paper's policy). What the SDK learns of the "
    "transitions does: likelihoods break ties in the eviction order and say whom to fetch.",
}


def figures_section(results: Results) -> Section:
    """The paper's figures on the paper's hardware."""
    section = Section(
        "The paper's figures, simulated on the paper's hardware",
        [NOTE, "Speed-ups over recomputation; constants are not tuned to the paper's."],
        ["kvflow simulate paper --fig all --json results/simulated-figures.json"],
    )
    report = results.get("simulated-figures", section)
    for name, cases in (report or {"figures": {}})["figures"].items():
        title = FIGURES[name].title
        labels = [f"{case['profile']}\n{case['label']}" for case in cases]
        systems = ("hicache", "steps", "kvflow", "ideal")
        speedups = {s: [_over_recompute(c, s) for c in cases] for s in systems}
        paper = {
            s: [case["paper"].get(s) for case in cases] for s in ("hicache", "kvflow")
        }
        section.parts.append(
            results.picture(
                f"simulated-{name}",
                title,
                lambda path, t=title, ls=labels, s=speedups, p=paper: (  # type: ignore[misc]
                    save_figure_bars(path, t, ls, s, p)
                ),
            )
        )
        section.parts.append(_figure_table(title, cases))
        section.text.append(f"{title}. {_DIFFERENCES.get(name, '')}")
    return section


def _over_recompute(case: Mapping[str, Any], system: str) -> float:
    return float(case["speedup"].get(f"{system}_over_recompute", 0.0))


def _figure_table(title: str, cases: list[Mapping[str, Any]]) -> Table:
    systems = [s for s in cases[0]["systems"] if s != "recompute"]
    rows = [
        [
            case["profile"],
            case["label"],
            *(number(_over_recompute(case, system), 3) for system in systems),
            number(case["paper"].get("hicache"), 3),
            number(case["paper"].get("kvflow"), 3),
            _share(case),
        ]
        for case in cases
    ]
    head = ["machine", "case", *systems, "paper: HiCache", "paper: KVFlow"]
    return Table(title, [*head, "KVFlow of Belady"], rows)


def _share(case: Mapping[str, Any]) -> str:
    belady = case.get("belady_s")
    return number(case["systems"]["kvflow"]["workflow_s"] / belady, 3) if belady else ""


def agreement_section(results: Results) -> Section:
    """Simulated against measured."""
    section = Section(
        "How well the simulator predicts",
        [
            "The costs of the emulated device are known; what a call takes beside it is "
            "fitted to the system `ideal` of a run of Figure 5. Recomputation, HiCache "
            "and KVFlow are then predicted. The goal is 10% in every mix.",
        ],
        ["kvflow simulate check results/paper-fig5….json"],
    )
    for name in results.names("paper-fig5*"):
        report = results.get(name, section)
        if report["emulated"]:
            section.parts.append(_agreement_table(name, agreements(report)))
    if not section.parts:
        section.missing.append("paper-fig5.json")
    return section


def _agreement_table(name: str, found: list[Agreement]) -> Table:
    rows = [
        [
            one.testbed,
            one.mix,
            one.system,
            number(one.measured),
            number(one.simulated),
            f"{one.error:+.1%}",
        ]
        for one in found
    ]
    head = ["testbed", "mix", "system", "measured, s", "simulated, s", "error"]
    return Table(name, head, rows)


def maps_section(results: Results) -> Section:
    """Where it helps and where it could hurt."""
    section = Section(
        "Where KVFlow helps, and where it does not",
        [NOTE],
        ["kvflow simulate map --json results/simulated-map-….json"],
    )
    for name in results.names("simulated-map*"):
        report = results.get(name, section)
        cells = [Cell(**cell) for cell in report["cells"]]
        machine = report["costs"]["name"]
        section.parts.append(
            results.picture(
                name,
                f"Speed-ups on {machine}",
                lambda path, c=cells, m=machine: save_maps(path, c, m),  # type: ignore[misc]
            )
        )
        for over in ("over_hicache", "over_recompute"):
            worst = report[over]["worst"]
            section.text.append(
                f"{machine}, {over.replace('_', ' ')}: the worst cell is "
                f"{worst[over]:.3f}, at {worst['bus_gbps']:g} GB/s with a pool of "
                f"{worst['pool_ratio']:g} of all prompts and {worst['output']} tokens "
                "out."
            )
    if not section.parts:
        section.missing.append("simulated-map.json")
    return section


SIMULATED_SECTIONS = (figures_section, agreement_section, maps_section)
