"""The research team on three real servers: KVFlow, stock HiCache, and recompute.

Starts the servers (SmolLM2-135M-Instruct on the emulated accelerator: no GPU, no
download), asks the team questions, and compares. `research_team.py` is the program; of
KVFlow it knows one line, `kvflow.wrap(graph.compile())`, and the other two systems run
it without.

    make demo          or, with the `kvflow` command of a server environment:
    KVFLOW_SERVER_COMMAND=…/kvflow python examples/demo.py --question "What drives gold?"
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import research_team
from recorder import Measured, Recorder, chat
from rich.console import Console
from rich.panel import Panel
from rich.progress import Progress
from rich.table import Table

import kvflow_sdk as kvflow
from kvflow_sdk.wire import STATE_PATH
from kvflow_server.bench.plot import save_bars
from kvflow_server.bench.progress import progress_bar, rotated, tracked
from kvflow_server.bench.report import EMULATED, make_console
from kvflow_server.bench.results import Spread
from kvflow_server.edge.launcher import ServerProcess

SYSTEMS: Mapping[str, tuple[str, ...]] = {
    "kvflow": (),
    "hicache": ("--kvflow-stock",),
    "recompute": ("--kvflow-stock", "--no-hicache"),
}

QUESTIONS = (
    "Should a young family fix its mortgage rate now or wait for lower rates?",
    "Why do bank shares often fall when the central bank cuts rates?",
    "What moves the price of gold, and does it protect from inflation?",
    "How does a weaker currency change the profits of an exporter?",
    "Is a low price to earnings ratio a reason to buy a share?",
    "What happens to a bond fund when interest rates rise?",
    "Why can a fast growing company run out of cash?",
)
WARM_UP = {"kvflow": 2, "hicache": 1, "recompute": 0}
"""Questions asked first, unmeasured, and hardly answered: the prompts reach the host,
and KVFlow learns where they end by seeing them twice."""
WARM_UP_TOKENS = 2


@dataclass(frozen=True, slots=True)
class Answer:
    """One question answered by the whole team on one system."""

    seconds: float
    calls: tuple[Measured, ...]
    notes: Mapping[str, str]

    def tokens(self, kind: str) -> int:
        return sum(getattr(call, kind) for call in self.calls)

    @property
    def outputs(self) -> list[tuple[str, tuple[int, ...], str]]:
        """Every call's output; parallel agents may end in either order."""
        return sorted((call.agent, call.output_ids, call.text) for call in self.calls)


class Team:
    """The program, connected to one system's server."""

    def __init__(self, system: str, server: ServerProcess, max_tokens: int) -> None:
        self.server = server
        self._tracked = system == "kvflow"
        self._app = self._program(max_tokens)
        self._brief = self._program(WARM_UP_TOKENS)

    def _program(self, max_tokens: int) -> Any:
        graph = research_team.build(chat(self.server.url, max_tokens))
        return kvflow.wrap(graph) if self._tracked else graph

    def warm_up(self, question: str) -> None:
        """Let everybody read the question and hardly answer."""
        self._brief.invoke({"question": question, "notes": {}, "reviews": 0})

    def ask(self, question: str) -> Answer:
        recorder = Recorder()
        state: research_team.State = {"question": question, "notes": {}, "reviews": 0}
        start = time.perf_counter()
        end = self._app.invoke(state, config={"callbacks": [recorder]})
        seconds = time.perf_counter() - start
        return Answer(seconds, tuple(recorder.calls), end["notes"])

    def counters(self) -> dict[str, float]:
        """The KVFlow server's own counters."""
        reply = httpx.get(f"{self.server.url}{STATE_PATH}", timeout=30)
        counters: dict[str, float] = reply.raise_for_status().json()["counters"]
        return counters


def main() -> None:
    options = _options()
    console = make_console()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    others = (question for question in QUESTIONS if question != options.question)
    questions = [options.question, *others]
    console.print(Panel(f"{__doc__.splitlines()[0]}\n{EMULATED}", title="KVFlow"))
    with ExitStack() as stack, progress_bar(console) as progress:
        teams = _start(stack, progress, options)
        # The last ones, so that the first measured is the one that was asked.
        warm_ups = [
            (question, name)
            for name, count in WARM_UP.items()
            for question in questions[len(questions) - count :]
        ]
        for question, name in tracked(progress, "warming up", warm_ups):
            teams[name].warm_up(question)
        before = teams["kvflow"].counters()
        answers: dict[str, list[Answer]] = {name: [] for name in teams}
        turns = [
            (turn, name)
            for turn in range(options.runs)
            for name in rotated(list(teams), turn)
        ]
        for turn, name in tracked(progress, "measuring", turns):
            answers[name].append(teams[name].ask(questions[turn]))
        after = teams["kvflow"].counters()
    _show_notes(console, options.question, answers["kvflow"][0])
    _show_agents(console, {name: runs[0] for name, runs in answers.items()})
    _show_comparison(console, answers)
    changed = {key: after[key] - before.get(key, 0) for key in after}
    console.print(_loads(changed), style="dim")
    _plot(options, answers)
    console.print(f"Plot: {options.plot}    {EMULATED}")
    if not _identical(answers):
        raise SystemExit(1)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--question", default=QUESTIONS[0])
    parser.add_argument("--runs", type=int, default=1, help="questions measured")
    parser.add_argument("--max-tokens", type=int, default=16, help="of an answer")
    parser.add_argument("--pool-tokens", type=int, default=3200, help="device pool")
    parser.add_argument("--pcie-gbps", type=float, default=0.03, help="emulated bus")
    parser.add_argument("--plot", type=Path, default=Path("out/demo.png"))
    options = parser.parse_args()
    most = len(QUESTIONS) - max(WARM_UP.values())
    if not 1 <= options.runs <= most:
        parser.error(f"--runs: 1 to {most}")
    return options


def _start(
    stack: ExitStack, progress: Progress, options: argparse.Namespace
) -> dict[str, Team]:
    """All servers at once: most of their start is waiting for one another's imports."""
    named = os.environ.get("KVFLOW_SERVER_COMMAND")
    common = [
        "--emulated",
        *("--emulated-pcie-gbps", str(options.pcie_gbps)),
        *("--max-total-tokens", str(options.pool_tokens)),
        *("--random-seed", "0"),
        "--sleep-on-idle",
    ]
    servers = {}
    for name, flags in SYSTEMS.items():
        host = () if "--no-hicache" in flags else ("--hicache-ratio", "6")
        servers[name] = server = ServerProcess(
            [*common, *flags, *host], command=[named] if named else None
        )
        stack.callback(server.stop)
        server.spawn()
    for name in tracked(progress, "starting", list(servers)):
        servers[name].wait_ready()
    return {
        name: Team(name, server, options.max_tokens) for name, server in servers.items()
    }


def _identical(answers: Mapping[str, Sequence[Answer]]) -> bool:
    first, *others = ([run.outputs for run in runs] for runs in answers.values())
    return all(other == first for other in others)


def _show_notes(console: Console, question: str, answer: Answer) -> None:
    table = Table(title=question, show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for agent, text in answer.notes.items():
        short = " ".join(text.split())
        table.add_row(agent, short if len(short) <= 160 else f"{short[:157]}...")
    console.print(table)


def _show_agents(console: Console, answers: Mapping[str, Answer]) -> None:
    """The KVFlow run call by call, and the same call's TTFT on the other systems."""
    table = Table(title="Agent by agent, on KVFlow", caption="TTFT in seconds")
    table.add_column("agent", no_wrap=True)
    table.add_column("steps at start", justify="right")
    table.add_column("next, at 1 step", style="dim")
    for name in ("device", "host", "recomputed"):
        table.add_column(name, justify="right")
    for name in answers:
        table.add_column(f"TTFT {name}", justify="right")
    ttft = {name: _ttft(answer) for name, answer in answers.items()}
    seen: dict[str, int] = {}
    at_start = answers["kvflow"].calls[0].steps
    for call in answers["kvflow"].calls:
        number = seen[call.agent] = seen.get(call.agent, 0) + 1
        table.add_row(
            call.agent if number == 1 else f"{call.agent} ({number})",
            str(at_start.get(call.agent, "")),
            ", ".join(sorted(agent for agent, n in call.steps.items() if n == 1)),
            *(f"{count:,}" for count in (call.device, call.host, call.recomputed)),
            *(
                f"{ttft[name].get((call.agent, number), float('nan')):.2f}"
                for name in answers
            ),
        )
    console.print(table)


def _ttft(answer: Answer) -> dict[tuple[str, int], float]:
    """By agent and how often it has been called."""
    found: dict[tuple[str, int], float] = {}
    for call in answer.calls:
        number = sum(agent == call.agent for agent, _ in found) + 1
        found[call.agent, number] = call.ttft_s
    return found


def _show_comparison(console: Console, answers: Mapping[str, Sequence[Answer]]) -> None:
    table = Table(title="A question answered: medians, and where the tokens came from")
    table.add_column("system")
    for name in ("seconds", "min .. max", "KVFlow speedup", "mean TTFT"):
        table.add_column(name, justify="right")
    for name in ("device", "host", "recomputed"):
        table.add_column(name, justify="right")
    for system, runs in answers.items():
        seconds = Spread.of([run.seconds for run in runs])
        pairs = zip(runs, answers["kvflow"], strict=True)
        ratio = Spread.of([mine.seconds / ours.seconds for mine, ours in pairs])
        ttft = [call.ttft_s for run in runs for call in run.calls]
        table.add_row(
            system,
            f"{seconds.median:.1f}",
            f"{seconds.min:.1f} .. {seconds.max:.1f}",
            ""
            if system == "kvflow"
            else f"{ratio.median:.2f} ({ratio.min:.2f} .. {ratio.max:.2f})",
            f"{statistics.fmean(ttft):.2f}",
            *(
                f"{statistics.fmean(run.tokens(kind) for run in runs):,.0f}"
                for kind in ("device", "host", "recomputed")
            ),
        )
    console.print(table)
    if _identical(answers):
        console.print(
            "Outputs identical on all systems, token by token.", style="green"
        )
    else:
        console.print("Outputs DIFFER between the systems.", style="bold red")


def _loads(counters: Mapping[str, float]) -> str:
    return (
        f"KVFlow's server: {counters.get('prefetch_tokens', 0):,.0f} tokens prefetched, "
        f"{counters.get('late_join_tokens', 0):,.0f} of them still on their way when "
        f"their agent called, {counters.get('load_on_demand_tokens', 0):,.0f} loaded "
        f"on demand."
    )


def _plot(options: argparse.Namespace, answers: Mapping[str, Sequence[Answer]]) -> None:
    save_bars(
        options.plot,
        {name: [run.seconds for run in runs] for name, runs in answers.items()},
        {
            name: {
                kind: statistics.fmean(run.tokens(kind) for run in runs)
                for kind in ("device", "host", "recomputed")
            }
            for name, runs in answers.items()
        },
        title=f"A LangGraph team of {len(research_team.AGENTS)} agents, SmolLM2-135M, "
        f"pool {options.pool_tokens} tokens, {options.pcie_gbps:g} GB/s",
        note=EMULATED,
    )


if __name__ == "__main__":
    main()
