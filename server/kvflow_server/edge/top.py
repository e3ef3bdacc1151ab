"""`kvflow top`: what a server knows, holds and does, live in the terminal.

Reads ``GET /kvflow/v1/state`` and shows differences between two readings as rates. It
asks for a bounded number of clients; the report is made on the scheduler's thread.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kvflow_sdk.wire import STATE_PATH

__all__ = ["Reading", "StateSource", "TopError", "rates", "run", "view"]

SHOWN_CLIENTS = 32
_BAR = 24

_STATES = {
    "in_gpu": ("█", "green"),
    "loading": ("▓", "yellow"),
    "offloading": ("▒", "cyan"),
    "backed_up": ("░", "blue"),
}
"""State of a prompt's tokens -> how a bar shows it."""

State = Mapping[str, Any]


class TopError(Exception):
    """The server cannot be read; the message says why, and what would help."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One answer of the server, and when it came."""

    at: float
    """Monotonic seconds of this process."""
    state: State
    """As ``GET /kvflow/v1/state`` gives it."""


class StateSource:
    """One server. `read` raises `TopError`."""

    def __init__(self, url: str, api_key: str | None, timeout_s: float = 10.0) -> None:
        self.url = url.rstrip("/")
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = httpx.Client(headers=headers, timeout=timeout_s)

    def read(self) -> Reading:
        try:
            answer = self._http.get(
                self.url + STATE_PATH, params={"clients": SHOWN_CLIENTS}
            )
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise TopError(
                f"{self.url!r} is not the URL of a server, such as "
                f"http://127.0.0.1:30000 ({error})"
            ) from error
        except httpx.HTTPError as error:
            raise TopError(f"{self.url} does not answer: {error}") from error
        return Reading(time.monotonic(), self._checked(answer))

    def close(self) -> None:
        self._http.close()

    def _checked(self, answer: httpx.Response) -> State:
        if answer.status_code in (401, 403):
            raise TopError(
                f"{self.url} wants a key: give --api-key (or KVFLOW_API_KEY) the "
                "server's --admin-api-key, or its --api-key if it has no other"
            )
        try:
            body = answer.json()
        except ValueError:
            body = None
        if not isinstance(body, dict):
            body = {}
        if answer.is_success and {"counters", "pool", "clients"} <= body.keys():
            return body
        error = body.get("error")
        told = error.get("message") if isinstance(error, dict) else None
        raise TopError(
            f"{self.url} is not a KVFlow server: {STATE_PATH} was answered with "
            f"{answer.status_code}. {told or ''}".rstrip()
        )


def rates(before: Reading | None, after: Reading) -> dict[str, float]:
    """Every counter's growth per second; empty if there is nothing to compare.

    A counter that went back says that the server was started again.
    """
    if before is None or after.at <= before.at:
        return {}
    old: Mapping[str, float] = before.state["counters"]
    new: Mapping[str, float] = after.state["counters"]
    if any(new.get(name, 0) < value for name, value in old.items()):
        return {}
    seconds = after.at - before.at
    return {name: (value - old.get(name, 0)) / seconds for name, value in new.items()}


def run(
    source: StateSource, console: Console, *, interval_s: float, once: bool, lines: bool
) -> None:
    """Show readings until interrupted, or one; `lines`: as JSON, one to a line.

    Raises `TopError` if the first reading fails; a later one is shown and tried again.
    """
    if once or lines or not console.is_terminal:
        for before, now in _readings(source, interval_s, once):
            if lines:
                print(json.dumps(_as_json(source, before, now)), flush=True)
            else:
                console.print(view(source.url, before, now, rows=None))
        return
    before, now = None, source.read()
    with Live(console=console, screen=True, auto_refresh=False) as live:
        trouble = ""
        while True:
            rows = max(3, console.height - 18)
            shown = view(source.url, before, now, rows=rows, trouble=trouble)
            live.update(shown, refresh=True)
            time.sleep(interval_s)
            try:
                before, now = now, source.read()
                trouble = ""
            except TopError as error:
                trouble = str(error)


def _readings(
    source: StateSource, interval_s: float, once: bool
) -> Iterator[tuple[Reading | None, Reading]]:
    before = None
    while True:
        now = source.read()
        yield before, now
        if once:
            return
        before = now
        time.sleep(interval_s)


def _as_json(
    source: StateSource, before: Reading | None, now: Reading
) -> dict[str, Any]:
    return {"url": source.url, "rates": rates(before, now), "state": now.state}


def view(
    url: str,
    before: Reading | None,
    now: Reading,
    *,
    rows: int | None,
    trouble: str = "",
) -> RenderableType:
    """The screen: at most `rows` agents, all of them if None."""
    state = now.state
    sizes = state["sizes"]
    head = Text.assemble(
        ("KVFlow ", "bold"),
        (url, "cyan"),
        f"  mode {state['config']['mode']}  ",
        ", ".join(
            f"{sizes[name]} {name}" for name in ("clients", "runs", "agents", "prompts")
        ),
    )
    if trouble:
        head.append(f"\n{trouble}", "bold red")
    return Group(head, _pool(state["pool"]), _flows(before, now), _agents(state, rows))


def _pool(pool: Mapping[str, int]) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    used = pool["tokens"] - pool["free"] - pool["evictable"]
    grid.add_row(
        "device",
        _bar([(used, "█", "red"), (pool["evictable"], "█", "green")], pool["tokens"]),
        f"{used:,} in use, {pool['evictable']:,} cached, {pool['free']:,} free "
        f"of {pool['tokens']:,} tokens",
    )
    if pool.get("host_tokens"):
        held = pool["host_tokens"] - pool["host_free"]
        grid.add_row(
            "host",
            _bar([(held, "░", "blue")], pool["host_tokens"]),
            f"{held:,} cached, {pool['host_free']:,} free of {pool['host_tokens']:,}; "
            f"{pool['loads_in_flight']} loads in flight",
        )
    return grid


def _flows(before: Reading | None, now: Reading) -> RenderableType:
    """Per second since the last reading; in total if this is the first."""
    by_second = rates(before, now)
    values: Mapping[str, float] = by_second or now.state["counters"]

    def shown(name: str) -> str:
        return f"{values.get(name, 0):,.0f}"

    table = Table(
        title="per second" if by_second else "since the start",
        title_justify="left",
        title_style="dim",
        box=None,
        padding=(0, 2),
    )
    for column in ("prompt tokens", "on device", "from host", "recomputed"):
        table.add_column(column, justify="left" if column[0] == "p" else "right")
    for kind in ("fixed", "dynamic", "untagged"):
        tiers = (f"{kind}_{tier}_tokens" for tier in ("device", "host", "recomputed"))
        table.add_row(kind, *map(shown, tiers))
    return Group(table, _grid([*_events(values, now.state), *_in_all(now.state)]))


def _events(
    values: Mapping[str, float], state: State
) -> Iterator[tuple[str, list[str]]]:
    """(what, how much of it); one line each."""

    def shown(name: str, scale: float = 1) -> str:
        return f"{scale * values.get(name, 0):,.0f}"

    yield (
        "prefetch",
        [
            f"{shown('prefetch_tokens')} issued",
            f"{shown('prefetch_used_tokens')} used",
            f"{shown('prefetch_unused_tokens')} unused",
            f"{shown('late_join_tokens')} late",
            f"{shown('load_on_demand_tokens')} loaded on demand",
        ],
    )
    speed = state.get("bus_bytes_per_s")
    yield (
        "bus",
        [
            f"{shown('h2d_bytes', 1e-6)} MB to the device",
            f"{shown('d2h_bytes', 1e-6)} MB to host memory",
            f"measured {speed / 1e6:,.0f} MB/s" if speed else "not measured yet",
        ],
    )
    yield (
        "skips",
        [
            f"{shown('skipped_requests')} requests",
            f"{shown('skipped_passes')} passes",
            f"{values.get('skipped_s', 0):,.1f} s waited",
        ],
    )
    yield "updates", [f"{shown('step_updates')} applied", _latency(values)]


def _in_all(state: State) -> Iterator[tuple[str, list[str]]]:
    """The same of what is only shown in total."""
    evicted = state.get("evicted_tokens", {})
    counts = [f"{n:,} {name.replace('_', ' ')}" for name, n in evicted.items() if n]
    yield "evicted in all", counts or ["none"]
    dropped = sum(state["dropped_metadata"].values())
    refused = sum(state.get("refused_updates", {}).values())
    yield "in all", [f"{dropped:,} dropped in band", f"{refused:,} messages refused"]


def _grid(events: Iterable[tuple[str, list[str]]]) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    for what, counts in events:
        grid.add_row(Text(what, "bold"), ", ".join(counts))
    return grid


def _latency(values: Mapping[str, float]) -> str:
    messages = values.get("step_messages", 0)
    if not messages:
        return "none out of band"
    return f"{1000 * values['step_latency_s'] / messages:.1f} ms until applied"


def _agents(state: State, rows: int | None) -> RenderableType:
    table = Table(box=None, padding=(0, 2))
    for column in ("client", "agent", "steps", "next run", "prompt", "where"):
        number = column in ("steps", "next run", "prompt")
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    entries = sorted(
        (
            (client, name, agent)
            for client, known in state["clients"].items()
            for name, agent in known["agents"].items()
        ),
        key=_nearness,
    )
    for client, name, agent in entries[:rows]:
        tokens = sum(prompt["tokens"] for prompt in agent["prompts"])
        table.add_row(
            client,
            Text(name),
            _number(agent["steps"]),
            _number(agent["steps_of_next_run"]),
            f"{tokens:,}" if tokens else "",
            _where(agent["prompts"], tokens),
        )
    hidden = len(entries) - len(entries[:rows])
    legend = Text("\n")
    for name, (mark, style) in _STATES.items():
        legend.append(f"{mark} ", style).append(f"{name.replace('_', ' ')}  ")
    if hidden or state["clients_left_out"]:
        legend.append(
            f"… {hidden} more agents, {state['clients_left_out']} more clients", "dim"
        )
    return Group(table, legend)


def _nearness(entry: tuple[str, str, Mapping[str, Any]]) -> tuple[float, float, str]:
    _client, name, agent = entry
    far = float("inf")
    steps, again = agent["steps"], agent["steps_of_next_run"]
    return (far if steps is None else steps, far if again is None else again, name)


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def _where(prompts: list[Mapping[str, int]], tokens: int) -> Text:
    parts = [
        (sum(prompt.get(state, 0) for prompt in prompts), mark, style)
        for state, (mark, style) in _STATES.items()
    ]
    return _bar(parts, tokens) if tokens else Text("")


def _bar(parts: list[tuple[int, str, str]], total: int) -> Text:
    """`_BAR` characters for `total`; each part ends where its share of it does."""
    bar = Text()
    seen = drawn = 0
    for amount, mark, style in parts:
        seen += amount
        end = round(_BAR * seen / total) if total else 0
        bar.append(mark * (end - drawn), style)
        drawn = max(drawn, end)
    bar.append("·" * (_BAR - drawn), "dim")
    return bar
