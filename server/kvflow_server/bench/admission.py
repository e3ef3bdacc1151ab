"""What a lone request costs: one call at a time, its prefix in host memory.

Nothing else runs and nothing is known beforehand, so there is nothing for KVFlow to
gain: what is measured is whether looking at the states of a path, and the copies it has
started, ever cost the request time. Stock HiCache serves the same calls.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from kvflow_server.emulated.tiny import SPECIAL_TOKENS, TinyDims, tiny_model

from .progress import progress_bar, rotated, tracked
from .report import EMULATED, versions
from .results import Call, Spread
from .runner import Runner
from .settings import Settings
from .single import start_all, terminable
from .systems import SYSTEMS, start
from .workload import Workload

__all__ = ["MIXES", "MixResult", "build_report", "measure", "mixes", "show"]

STOCK, OURS = "hicache", "kvflow"
MIXES = ((1024, 32, 16), (1024, 256, 32), (512, 64, 128), (512, 128, 256))
"""Tokens of the fixed prompt, behind it, and generated; the last two have answers that
take longer than everything else."""
FIXED_TOKENS = 3072
"""Of all agents together, the same in every mix, and so is the device pool."""
WARM_ROUNDS = 1


@dataclass(frozen=True, slots=True)
class MixResult:
    """One mix: the calls of both systems, pair by pair."""

    settings: Settings
    stock: tuple[Call, ...]
    ours: tuple[Call, ...]

    @property
    def ratios(self) -> list[float]:
        """Seconds with KVFlow over seconds with stock HiCache, pair by pair."""
        pairs = zip(self.ours, self.stock, strict=True)
        return [ours.seconds / stock.seconds for ours, stock in pairs]

    @property
    def ratio(self) -> Spread:
        return Spread.of(self.ratios)

    @property
    def outputs_identical(self) -> bool:
        pairs = zip(self.ours, self.stock, strict=True)
        return all(ours.output == stock.output for ours, stock in pairs)


def mixes(
    pairs: int, pcie_gbps: float, model_dims: TinyDims, seed: int, only: str = ""
) -> list[Settings]:
    """The settings of each mix, or of the one that is named as in the table. Raises
    `ValueError` naming the option."""
    if pairs < 1:
        raise ValueError(f"--pairs: at least 1, not {pairs}")
    names = {"/".join(map(str, mix)): mix for mix in MIXES}
    if only and only not in names:
        raise ValueError(f"--mix: one of {', '.join(names)}, not {only}")
    found = []
    for fixed, dynamic, output in [names[only]] if only else MIXES:
        agents = FIXED_TOKENS // fixed
        settings = Settings(
            agents=agents,
            fixed=fixed,
            dynamic=dynamic,
            output=output,
            pcie_gbps=pcie_gbps,
            runs=-(-pairs // agents),
            warm_runs=WARM_ROUNDS,
            systems=(STOCK, OURS),
            model_dims=model_dims,
            seed=seed,
        )
        found.append(settings)
    return found


def measure(chosen: Sequence[Settings], console: Console) -> list[MixResult]:
    """Both servers, started once for all mixes; flushed in between."""
    largest = max(chosen, key=lambda settings: settings.everything_tokens)
    model = str(tiny_model(largest.model_dims))
    with terminable(), ExitStack() as stack, progress_bar(console) as progress:
        servers = {name: start(SYSTEMS[name], largest, model) for name in (STOCK, OURS)}
        start_all(stack, progress, servers)
        urls = {name: server.url for name, server in servers.items()}
        return [_measure_mix(settings, urls, progress) for settings in chosen]


def _measure_mix(
    settings: Settings, urls: dict[str, str], progress: Progress
) -> MixResult:
    dims = settings.model_dims
    # Tokens of their own, so that no mix meets the prompts of another.
    seed = settings.seed * 1009 + settings.fixed + settings.output
    workload = Workload(
        replace(settings, seed=seed), dims.vocab, first_token=len(SPECIAL_TOKENS)
    )
    title = f"{settings.fixed}/{settings.dynamic}/{settings.output}"
    calls: dict[str, list[Call]] = {name: [] for name in urls}
    with ExitStack() as stack:
        runners = {
            name: stack.enter_context(Runner(url, workload, hints=SYSTEMS[name].hints))
            for name, url in urls.items()
        }
        for runner in runners.values():
            runner.flush()
            for agent in range(settings.agents):
                runner.warm_up(agent)
        rounds = range(settings.warm_runs + settings.runs)
        turns = [(r, agent) for r in rounds for agent in range(settings.agents)]
        for number, (r, agent) in enumerate(tracked(progress, title, turns)):
            for name in rotated(list(runners), number):
                (call,) = runners[name].run(r, [agent]).calls
                if r >= settings.warm_runs:
                    calls[name].append(call)
    return MixResult(settings, tuple(calls[STOCK]), tuple(calls[OURS]))


def build_report(results: Sequence[MixResult]) -> dict[str, Any]:
    """Everything about one experiment as plain values."""
    return {
        "versions": versions(),
        "emulated": True,
        "mixes": [_describe(result) for result in results],
        "ratio": {"worst_mix": max(result.ratio.median for result in results)},
        "outputs_identical": all(result.outputs_identical for result in results),
    }


def _describe(result: MixResult) -> dict[str, Any]:
    settings = result.settings
    return {
        "fixed": settings.fixed,
        "dynamic": settings.dynamic,
        "output": settings.output,
        "agents": settings.agents,
        "pool_tokens": settings.pool_tokens,
        "pcie_gbps": settings.pcie_gbps,
        "ratio": asdict(result.ratio),
        "ratios": result.ratios,
        "systems": {
            name: {
                "seconds": asdict(Spread.of([call.seconds for call in calls])),
                "host_tokens": statistics.fmean(call.host for call in calls),
                "recomputed_tokens": statistics.fmean(c.recomputed for c in calls),
            }
            for name, calls in ((STOCK, result.stock), (OURS, result.ours))
        },
    }


def show(console: Console, results: Sequence[MixResult]) -> None:
    """Print the table."""
    table = Table(title="A lone request, KVFlow over stock HiCache")
    table.add_column("fixed/dynamic/output", no_wrap=True)
    for name in ("ratio", "quartiles", "pairs", "hicache s", "kvflow s", "from host"):
        table.add_column(name, justify="right")
    for result in results:
        settings, spread = result.settings, result.ratio
        table.add_row(
            f"{settings.fixed}/{settings.dynamic}/{settings.output}",
            f"{spread.median:.3f}",
            f"{spread.q1:.3f} .. {spread.q3:.3f}",
            str(spread.n),
            f"{statistics.median(call.seconds for call in result.stock):.3f}",
            f"{statistics.median(call.seconds for call in result.ours):.3f}",
            f"{statistics.fmean(call.host for call in result.stock):,.0f} / "
            f"{statistics.fmean(call.host for call in result.ours):,.0f}",
        )
    console.print(table)
    same = all(result.outputs_identical for result in results)
    console.print(
        f"Outputs {'identical' if same else 'DIFFER'}, token by token.",
        style="green" if same else "bold red",
    )
    console.print(EMULATED, style="dim")
