"""`kvflow simulate hits`: hit rates of traces by pool, and what the optimum adds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from kvflow_server.bench.progress import progress_bar, tracked
from kvflow_server.bench.report import make_console, versions, write_json

from .belady import HitRate, hit_rates
from .trace import open_trace, scan

__all__ = ["parse_pools", "run_hits"]

ABOUT = (
    "Calls one at a time, one pool, no host memory, no time. lru: stock SGLang. kvflow: "
    "KVFlow's order, with the metadata that the trace has. belady: the most that any "
    "policy can find (an upper bound, the future known)."
)


def parse_pools(text: str) -> list[int]:
    """Tokens, comma-separated; ``2e6`` will do. Raises `ValueError`."""
    pools = []
    for word in text.split(","):
        try:
            pool = float(word)
        except ValueError:
            pool = 0.0
        if not 1 <= pool < float("inf"):
            raise ValueError(f"pools: {word.strip()!r} is no number of tokens")
        pools.append(int(pool))
    return pools


def run_hits(
    paths: Sequence[Path], pools: Sequence[int], json_path: Path | None
) -> None:
    """Show a table for each trace. Raises `TraceError`, `OSError`."""
    console = make_console()
    report: dict[str, object] = {}
    for path in paths:
        rates: list[HitRate] = []
        with progress_bar(console) as progress:
            for pool in tracked(progress, path.stem, pools):
                rates += hit_rates(path, [pool])
        console.print(_table(path.name, rates))
        report[path.name] = {
            "trace": scan(open_trace(path)).to_dict(),
            "pools": [rate.to_dict() for rate in rates],
        }
    console.print(ABOUT, style="dim")
    if json_path is not None:
        names = " ".join(path.name for path in paths)
        sizes = ",".join(map(str, pools))
        command = f"kvflow simulate hits {names} --pools {sizes}"
        head = {"simulated": True, "command": command, "about": ABOUT}
        write_json(head | {"versions": versions(), "traces": report}, json_path)
        console.print(f"Report: {json_path}")


def _table(name: str, rates: Sequence[HitRate]) -> Table:
    table = Table(
        title=f"{name}: prompt tokens found in the pool", title_justify="left"
    )
    columns = ("pool", "lru", "kvflow", "belady", "kvflow brings in over the least")
    for column in (*columns, "too long"):
        table.add_column(column, justify="right")
    for rate in rates:
        shares = (f"{rate.rate(kind):.1%}" for kind in ("lru", "kvflow", "belady"))
        over = f"{rate.fetched_over_optimum:.2f}"
        table.add_row(f"{rate.pool:,}", *shares, over, str(rate.too_long))
    return table
