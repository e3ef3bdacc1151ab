"""``kvflow simulate``: what KVFlow would do on hardware that is not here."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvflow_server.bench.names import names_in

if TYPE_CHECKING:
    from .profiles import Profile
    from .server import ServerSize
    from .sweep import Setup

__all__ = ["app"]

app = typer.Typer(
    help="Simulate workflows on a model of a GPU, with KVFlow's own policy.\n\n"
    "Without a subcommand: one workload on several systems, or a sweep of one quantity.",
    invoke_without_command=True,
    add_completion=False,
)

JsonPath = Annotated[Path | None, typer.Option("--json", help="Write the report here.")]
PlotPath = Annotated[Path | None, typer.Option("--plot", help="Write a PNG here.")]
ProfileName = Annotated[
    str, typer.Option(help="The machine; see `kvflow simulate profiles`.")
]
CostsFile = Annotated[
    Path | None,
    typer.Option(
        "--costs",
        help="A machine of your own in place of a profile: JSON with the fields that "
        "`kvflow simulate profiles --json` shows.",
    ),
]


@app.callback()
def simulate(
    ctx: typer.Context,
    profile: ProfileName = "a10g",
    costs_file: CostsFile = None,
    agents: Annotated[int, typer.Option(help="Agents, one after the other.")] = 10,
    fixed: Annotated[int, typer.Option(help="Tokens of a fixed prompt.")] = 4096,
    dynamic: Annotated[int, typer.Option(help="New tokens after it, each call.")] = 32,
    output: Annotated[int, typer.Option(help="Tokens that a call generates.")] = 32,
    workflows: Annotated[int, typer.Option(help="Programs at the same time.")] = 1,
    runs: Annotated[int, typer.Option(help="Measured runs of each program.")] = 10,
    branches: Annotated[
        int, typer.Option(help="Agents of which each stage picks one.")
    ] = 1,
    dynamic_graph: Annotated[
        bool,
        typer.Option("--dynamic-graph", help="Who comes next is chosen at run time."),
    ] = False,
    jitter_ms: Annotated[
        float, typer.Option(help="Mean time that programs add between calls.")
    ] = 0.0,
    pool_tokens: Annotated[
        int | None, typer.Option(help="Device pool.  [default: the profile's]")
    ] = None,
    host_tokens: Annotated[
        int | None,
        typer.Option(
            help="Host memory.  [default: twice all fixed prompts; for a trace four "
            "times the pool]"
        ),
    ] = None,
    bus_gbps: Annotated[
        float | None, typer.Option(help="Bus, GB/s.  [default: the profile's]")
    ] = None,
    horizon: Annotated[
        int, typer.Option(help="Agents at most this many steps away are prefetched.")
    ] = 1,
    systems: Annotated[
        str, typer.Option(help="Comma-separated; see `kvflow simulate systems`.")
    ] = "ideal,recompute,hicache,steps,kvflow",
    sweep_text: Annotated[
        str,
        typer.Option(
            "--sweep",
            metavar="NAME=V,V,...",
            help="Run it for each value of bus-gbps, pool-tokens, host-tokens, horizon, "
            "inflight, agents, fixed, dynamic, output or workflows.",
        ),
    ] = "",
    seed: Annotated[int, typer.Option(help="Of what is drawn.")] = 0,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Serve a trace in place of a workload: of `kvflow record`, or "
            "Mooncake's (.jsonl). Pool, host memory, bus and systems count."
        ),
    ] = None,
    speed: Annotated[
        float, typer.Option(help="Of the trace: 2 is twice as fast as recorded.")
    ] = 1.0,
    json_path: JsonPath = None,
    plot: PlotPath = None,
) -> None:
    """Simulate a workload. Times are of the simulated machine."""
    if ctx.invoked_subcommand is not None:
        return
    from .scenario import Scenario
    from .server import ServerSize
    from .shown import run_sweep, run_trace, run_workload
    from .sweep import Setup, parse_sweep

    with _said():
        machine = _machine(profile, costs_file)
        costs = machine.costs
        if bus_gbps is not None:
            costs = costs.changed(bus_bytes_per_s=bus_gbps * 1e9)
        if trace is not None:
            sizes = machine.pool_tokens, pool_tokens, host_tokens
            run_trace(trace, costs, _size(*sizes), _systems(systems), speed, json_path)
            return
        scenario = Scenario(
            agents=agents,
            fixed=fixed,
            dynamic=dynamic,
            output=output,
            workflows=workflows,
            runs=runs,
            branches=branches,
            dynamic_graph=dynamic_graph,
            jitter_s=jitter_ms / 1000,
            seed=seed,
        )
        pool = machine.pool_tokens if pool_tokens is None else pool_tokens
        host = 2 * scenario.prompt_tokens if host_tokens is None else host_tokens
        size = ServerSize(pool=pool, host=host)
        setup = _with_horizon(Setup(costs, size, scenario), horizon)
        names = _systems(systems)
        if sweep_text:
            run_sweep(setup, parse_sweep(sweep_text), names, json_path, plot)
        else:
            run_workload(setup, names, json_path, plot)


@app.command()
def paper(
    fig: Annotated[
        str, typer.Option(help="5, 6, 8, branches, dynamic, or all.", show_default=True)
    ] = "5",
    json_path: JsonPath = None,
    plot: PlotPath = None,
) -> None:
    """The paper's figures on the paper's hardware, beside what the paper prints."""
    from .figures import FIGURES
    from .shown import run_figures

    names = list(FIGURES) if fig == "all" else fig.split(",")
    for name in names:
        if name not in FIGURES:
            raise typer.BadParameter(
                f"{name!r} is unknown, use {', '.join(FIGURES)} or all",
                param_hint="--fig",
            )
    run_figures(names, json_path, plot)


@app.command(name="map")
def map_(
    profile: ProfileName = "a10g",
    costs_file: CostsFile = None,
    bus_gbps: Annotated[str, typer.Option(help="Comma-separated.")] = "0.5,2,8,32",
    pool_ratio: Annotated[
        str, typer.Option(help="Device pools over all fixed prompts.")
    ] = "0.2,0.45,0.7,0.9,1.2",
    output: Annotated[str, typer.Option(help="Tokens generated.")] = "8,32,128,512",
    fixed: Annotated[int, typer.Option(help="Tokens of a fixed prompt.")] = 4096,
    dynamic: Annotated[int, typer.Option(help="New tokens after it.")] = 32,
    workflows: Annotated[int, typer.Option(help="Programs at the same time.")] = 1,
    json_path: JsonPath = None,
    plot: PlotPath = None,
) -> None:
    """Speed-ups over bus x pool x output length, and the worst cell."""
    from .maps import Grid
    from .scenario import Scenario
    from .shown import run_map

    with _said():
        grid = Grid(
            tuple(map(float, bus_gbps.split(","))),
            tuple(map(float, pool_ratio.split(","))),
            tuple(map(int, output.split(","))),
        )
        scenario = Scenario(fixed=fixed, dynamic=dynamic, workflows=workflows, runs=5)
        run_map(_machine(profile, costs_file).costs, scenario, grid, json_path, plot)


@app.command()
def check(
    report: Annotated[
        Path, typer.Argument(help="Of `kvflow bench paper --fig 5`.", exists=True)
    ],
    json_path: JsonPath = None,
) -> None:
    """How far simulated workflow times are from those that were measured."""
    from .shown import run_check

    with _said():
        run_check(report, json_path)


@app.command()
def hits(
    traces: Annotated[
        list[Path],
        typer.Argument(
            metavar="TRACE...",
            help="Of `kvflow record`, or Mooncake's.",
            show_default=False,
        ),
    ],
    pools: Annotated[
        str, typer.Option(help="Tokens, comma-separated.")
    ] = "0.5e6,1e6,2e6,4e6,8e6,16e6,32e6",
    json_path: JsonPath = None,
) -> None:
    """Hit rates of recorded traces by pool, beside the offline optimum's."""
    from .hits import parse_pools, run_hits

    with _said():
        try:
            run_hits(traces, parse_pools(pools), json_path)
        except OSError as error:
            raise ValueError(str(error)) from error


@app.command()
def profiles(json_path: JsonPath = None) -> None:
    """List the machines that can be simulated."""
    from kvflow_server.bench.report import write_json

    from .profiles import PROFILES

    for name, profile in PROFILES.items():
        typer.echo(f"{name:16} {profile.about}; pool {profile.pool_tokens:,} tokens")
        typer.echo(f"{'':16} {profile.costs.source}")
    if json_path is not None:
        write_json({n: p.costs.to_dict() for n, p in PROFILES.items()}, json_path)


@app.command()
def systems() -> None:
    """List the systems that can be compared."""
    from .experiment import SYSTEMS

    for system in SYSTEMS.values():
        typer.echo(f"{system.name:12} {system.about}")


@contextmanager
def _said() -> Iterator[None]:
    """A value that makes no sense ends the command with what is wrong with it."""
    try:
        yield
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _machine(profile: str, costs_file: Path | None) -> Profile:
    from kvflow_server.emulated.costs import load_costs

    from .profiles import PROFILES, Profile

    if costs_file is not None:
        # Its pool is what --pool-tokens says; half of the usual prompts without.
        return Profile(load_costs(costs_file), 20_480, str(costs_file))
    if profile not in PROFILES:
        raise ValueError(f"profile {profile!r} is unknown, use {', '.join(PROFILES)}")
    return PROFILES[profile]


def _size(usual: int, pool: int | None, host: int | None) -> ServerSize:
    """Of a server for a trace, whose prompts nobody has counted yet."""
    from .server import ServerSize

    pool = usual if pool is None else pool
    return ServerSize(pool=pool, host=4 * pool if host is None else host)


def _systems(text: str) -> list[str]:
    from .experiment import SYSTEMS

    names = names_in(text, SYSTEMS, "--systems", what="system ")
    if not names:
        raise ValueError("name at least one system")
    return names


def _with_horizon(setup: Setup, horizon: int) -> Setup:
    if horizon < 0:
        raise ValueError(f"horizon: at least 0, not {horizon}")
    limits = dataclasses.replace(
        setup.limits, horizon=horizon, idle_horizon=horizon + 1
    )
    return dataclasses.replace(setup, limits=limits)
