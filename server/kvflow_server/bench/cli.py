"""``kvflow bench``: experiments on real servers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from .names import names_in
from .paper.cli import app as paper
from .settings import COLD_SYSTEMS, DEFAULT_SYSTEMS, Settings, parse_dims

__all__ = ["app"]

app = typer.Typer(
    help="Measure KVFlow against stock SGLang, on servers of its own.",
    no_args_is_help=True,
)
app.add_typer(paper)

JsonPath = Annotated[Path | None, typer.Option("--json", help="Write the report here.")]
PcieGbps = Annotated[float, typer.Option(help="Emulated bus, GB/s each way.")]
ModelDims = Annotated[
    str, typer.Option(help="Of the random model: hidden=512,layers=8,...")
]


@app.command()
def single(
    agents: Annotated[int, typer.Option(help="Agents, one after the other.")] = 10,
    fixed: Annotated[int, typer.Option(help="Tokens of a fixed prompt.")] = 1024,
    dynamic: Annotated[int, typer.Option(help="New tokens after it, each run.")] = 32,
    output: Annotated[int, typer.Option(help="Tokens that a call generates.")] = 16,
    pool_ratio: Annotated[
        float, typer.Option(help="Device pool over all fixed prompts.")
    ] = 0.47,
    pcie_gbps: PcieGbps = 0.1,
    runs: Annotated[int, typer.Option(help="Measured workflows per system.")] = 7,
    warm_runs: Annotated[int, typer.Option(help="Workflows run before those.")] = 2,
    cold: Annotated[
        bool,
        typer.Option(
            "--cold",
            help="First runs: an empty cache and a new client each time, with and "
            "without prompts registered before (speedup.prewarm_over_cold).",
        ),
    ] = False,
    stamp: Annotated[
        int,
        typer.Option(help="New tokens before every fixed prompt, as a time would be."),
    ] = 0,
    dynamic_graph: Annotated[
        bool,
        typer.Option(
            "--dynamic-graph",
            help="Who comes next is chosen at run time: nine times of ten the next "
            "agent, else any other (kvflow_over_steps, kvflow_over_unlearnt).",
        ),
    ] = False,
    systems: Annotated[
        str,
        typer.Option(
            help="Comma-separated; see `kvflow bench systems`.", show_default=False
        ),
    ] = "",
    model_dims: ModelDims = "",
    seed: Annotated[int, typer.Option(help="Of the prompts.")] = 0,
    json_path: JsonPath = None,
    plot: Annotated[Path | None, typer.Option(help="Write a PNG here.")] = None,
) -> None:
    """The paper's single workflow: sequential agents, a pool too small for them.

    Ratios are medians over paired runs: the systems take turns, workflow by workflow.
    """
    from .systems import SYSTEMS

    chosen = tuple(names_in(systems, SYSTEMS, "--systems"))
    names = chosen or (COLD_SYSTEMS if cold else DEFAULT_SYSTEMS)
    try:
        settings = Settings(
            agents=agents,
            fixed=fixed,
            dynamic=dynamic,
            output=output,
            pool_ratio=pool_ratio,
            pcie_gbps=pcie_gbps,
            runs=runs,
            warm_runs=warm_runs,
            cold=cold,
            stamp=stamp,
            dynamic_graph=dynamic_graph,
            systems=names,
            model_dims=parse_dims(model_dims),
            seed=seed,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    _single(settings, json_path, plot)


def _single(settings: Settings, json_path: Path | None, plot: Path | None) -> None:
    from .report import EMULATED, build_report, make_console, show
    from .single import measure

    console = make_console()
    with _servers(console):
        results, counters, drift = measure(settings, console)
    show(console, results, counters, emulated=True)
    report = build_report(settings, results, counters, drift, emulated=True)
    for name, agents in drift.items():
        if agents:
            _tell_drift(console, name, agents)
    _save(console, report, json_path)
    if plot is not None:
        from .plot import save_bars
        from .results import summarise

        save_bars(
            plot,
            {name: [run.seconds for run in runs] for name, runs in results.items()},
            {name: summarise(runs)["tokens"] for name, runs in results.items()},
            title=f"{settings.agents} agents, fixed/dynamic/output "
            f"{settings.fixed}/{settings.dynamic}/{settings.output}, pool "
            f"{settings.pool_tokens} tokens, {settings.pcie_gbps:g} GB/s",
            note=EMULATED,
        )
        console.print(f"Plot: {plot}")


def _tell_drift(console: Console, name: str, agents: list[dict[str, Any]]) -> None:
    lost = sum(agent["lost"] for agent in agents)
    tokens = sorted(agent["token"] for agent in agents)
    console.print(
        f"{name}: the prompts of {len(agents)} agents part from call to call, at token "
        f"{tokens[0]} to {tokens[-1]}; {lost:,} tokens were computed again for it."
    )


@app.command()
def admission(
    pairs: Annotated[int, typer.Option(help="Calls per mix and system.")] = 15,
    pcie_gbps: PcieGbps = 0.1,
    model_dims: ModelDims = "",
    seed: Annotated[int, typer.Option(help="Of the prompts.")] = 0,
    mix: Annotated[str, typer.Option(help="One only: fixed/dynamic/output.")] = "",
    json_path: JsonPath = None,
) -> None:
    """A lone request whose prefix is in host memory, against stock HiCache.

    One request at a time, its metadata and step stream beside it, in four mixes of
    lengths. The systems take turns, call by call; ratios are medians over the pairs.
    """
    from .admission import build_report, measure, mixes, show
    from .report import make_console

    try:
        chosen = mixes(pairs, pcie_gbps, parse_dims(model_dims), seed, mix)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    console = make_console()
    with _servers(console):
        results = measure(chosen, console)
    show(console, results)
    _save(console, build_report(results), json_path)


@app.command()
def soak(
    minutes: Annotated[float, typer.Option(help="How long.")] = 20.0,
    clients: Annotated[int, typer.Option(help="Applications at the same time.")] = 32,
    pool: Annotated[int, typer.Option(help="Device pool, in tokens.")] = 4096,
    pcie_gbps: PcieGbps = 0.02,
    lease_s: Annotated[int, typer.Option(help="Lease of a client, seconds.")] = 10,
    seed: Annotated[int, typer.Option(help="Of graphs and prompts.")] = 0,
    json_path: JsonPath = None,
) -> None:
    """Many applications with random graphs and prompts, for a long time.

    Reports the slope of the resident memory, the time that KVFlow adds to scheduler
    passes, and what the server still holds when all of them are gone. Exits with 1
    when a call failed, something hangs, or something is left behind. Ctrl-C ends it
    early, with a report.
    """
    from .report import make_console
    from .soak import SoakSettings, show
    from .soak import soak as run_soak

    try:
        settings = SoakSettings(
            minutes=minutes,
            clients=clients,
            pool=pool,
            pcie_gbps=pcie_gbps,
            lease_s=lease_s,
            seed=seed,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    console = make_console()
    with _servers(console):
        report = run_soak(settings, console)
    show(report, console)
    _save(console, report.to_dict(), json_path)
    if report.interrupted:
        raise typer.Exit(130)
    raise typer.Exit(1 if report.problems else 0)


@app.command()
def systems() -> None:
    """List the systems that an experiment can compare."""
    from .systems import SYSTEMS

    for system in SYSTEMS.values():
        typer.echo(f"{system.name:14} {system.about}")


@app.command()
def graph(
    nodes: Annotated[int, typer.Option(help="Nodes of the graph.")] = 2000,
    edges: Annotated[int, typer.Option(help="Edges of the graph.")] = 8000,
    repeats: Annotated[int, typer.Option(help="Computations to time.")] = 50,
    json_path: JsonPath = None,
) -> None:
    """Time steps-to-execution on a random graph with loops and barriers."""
    from .graph import measure
    from .report import write_json

    if not 1 <= nodes <= edges or repeats < 1:
        raise typer.BadParameter("need 1 <= nodes <= edges and repeats >= 1")
    timing = measure(nodes, edges, repeats)
    spread = timing.compute_ms
    typer.echo(
        f"{timing.nodes} nodes, {timing.edges} edges, {timing.reached:.0f} reached: "
        f"median {spread.median:.2f} ms, {spread.min:.2f} .. {spread.max:.2f} ms "
        f"over {spread.n}; graph built in {timing.build_ms:.0f} ms"
    )
    if json_path is not None:
        write_json(dataclasses.asdict(timing), json_path)


@app.command()
def sdk(
    runs: Annotated[int, typer.Option(help="Workflows of 500 agents.")] = 7,
    json_path: JsonPath = None,
) -> None:
    """Time what the SDK adds to each LLM call, with 50 and with 500 agents.

    Needs no model and no GPU. The figures are call_overhead_ms_50 and
    call_overhead_ms_500: the median call of kvflow.OpenAI in an agent, less that of the
    plain client. The first run, in which nothing is known from runs before, is given
    apart. gone_overhead_ms is by how much later a call fails whose server is gone.
    """
    from .report import write_json
    from .sdk import SIZES, measure, measure_gone, report

    if runs < 1:
        raise typer.BadParameter("need runs >= 1", param_hint="--runs")
    results = [measure(size, runs * times) for size, times in SIZES.items()]
    for result in results:
        typer.echo(
            f"{result.agents} agents: {result.overhead:.3f} ms per call "
            f"(median {result.tagged.median:.3f} tagged, {result.plain.median:.3f} "
            f"plain, {result.tagged.n} pairs), {result.first_run:.3f} ms in the first "
            f"run; header {result.header_bytes:.0f} bytes; "
            f"{result.threads_of_runs} threads for further runs"
        )
    gone = measure_gone(min(SIZES), runs)
    typer.echo(
        f"server gone: {gone.overhead:.3f} ms per call (median {gone.tagged.median:.3f} "
        f"tagged, {gone.plain.median:.3f} plain, {gone.tagged.n} pairs); the client's "
        f"end took {gone.end_ms:.1f} ms; raised: {', '.join(gone.errors)}"
    )
    if json_path is not None:
        write_json(report(results, gone), json_path)


@app.command()
def engine(
    leaves: Annotated[int, typer.Option(help="Leaves of the tree.")] = 40_000,
    clients: Annotated[int, typer.Option(help="Clients with prompts in it.")] = 500,
    agents: Annotated[int, typer.Option(help="Agents of each client.")] = 20,
    repeats: Annotated[
        int, typer.Option(help="Evictions, and updates, to time.")
    ] = 200,
    throughput: Annotated[
        bool,
        typer.Option(help="Compare requests per second with stock SGLang, too."),
    ] = True,
    blocks: Annotated[int, typer.Option(help="Blocks of requests per server.")] = 8,
    json_path: JsonPath = None,
) -> None:
    """What the engine costs on a large tree: evictions, updates, memory, throughput.

    The tree is SGLang's own, without a model, once for KVFlow and once for each of
    SGLang's tree cores. For the throughput two real servers take turns.
    """
    from .engine import measure_engine
    from .report import make_console, versions, write_json
    from .throughput import ThroughputSettings, measure_throughput
    from .tree import ForestSize

    if repeats < 1 or blocks < 1:
        raise typer.BadParameter("need at least one repeat and one block")
    try:
        size = ForestSize(leaves, clients, agents)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    console = make_console()
    with console.status("") as status:
        report = measure_engine(size, repeats, status.update).to_dict()
        if throughput:
            settings = ThroughputSettings(blocks=blocks)
            with _servers(console):
                report |= measure_throughput(settings, status.update).to_dict()
    report["versions"] = versions()
    for line in _engine_lines(report):
        typer.echo(line)
    if json_path is not None:
        write_json(report, json_path)


def _engine_lines(report: dict[str, Any]) -> list[str]:
    stock = report["stock_evict_ms"]
    lines = [
        f"eviction of {report['size']['victims']} of {report['size']['leaves']} leaves: "
        f"{report['evict_ms']:.2f} ms (SGLang's Python core {stock['python']:.2f}, "
        f"Rust core {stock['rust']:.2f})",
        f"step update of {report['size']['agents']} agents: {report['update_ms']:.3f} ms",
        f"garbage collection: {report['collection_ms']:.0f} ms every 1024 nodes, in "
        f"place of {report['full_collection_ms']:.0f} ms",
        f"memory: {report['bytes_per_node']:.0f} bytes per tagged node",
        *(
            f"a call with a fixed prompt of {fixed} tokens: {ms['kvflow']:.2f} ms in the "
            f"tree (SGLang's Python core {ms['python']:.2f}, Rust core {ms['rust']:.2f})"
            for fixed, ms in report["call_ms"].items()
        ),
    ]
    if "rps_ratio" in report:
        lines.append(
            f"requests per second over stock's: {report['rps_ratio']:.3f}; scheduler "
            f"CPU over stock's: {report['scheduler_cpu_ratio']:.3f}"
        )
    return lines


@contextmanager
def _servers(console: Console) -> Iterator[None]:
    """A server that does not start ends the command with the end of its log."""
    from kvflow_server.edge.launcher import ServerError

    try:
        yield
    except ServerError as error:
        console.print(str(error), style="red", markup=False, highlight=False)
        raise typer.Exit(1) from error


def _save(console: Console, report: Mapping[str, object], path: Path | None) -> None:
    from .report import write_json

    if path is not None:
        write_json(report, path)
        console.print(f"Report: {path}")
