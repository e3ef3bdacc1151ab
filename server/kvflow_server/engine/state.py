"""The state report: clients, runs, agents, where each fixed prompt is, counters.

Names and token counts only, no prompt text ever. The id of a client is the right to
steer its entries, so clients go by the name of `wire.shown_client` unless the admin asks
for ids. Made on the scheduler's thread, so it is bounded: the clients last heard of, and
of each a bounded number of runs and agents.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Any

from kvflow_sdk.wire import shown_client
from kvflow_server.policy.prefetch import Usage
from kvflow_server.policy.states import KVState

from .states import kv_state
from .tree import PromptHandle, state_of

if TYPE_CHECKING:
    from .cache import KVFlowCache

__all__ = ["DEFAULT_CLIENTS", "MAX_CLIENTS", "describe"]

DEFAULT_CLIENTS = 64
MAX_CLIENTS = 1024
MAX_RUNS = 256
"""Runs shown of one client."""
MAX_AGENTS = 256
"""Agents shown of one client."""
MAX_SHARED = 32
"""Beginnings shown that agents of one client share."""


def describe(
    cache: KVFlowCache, *, clients: int = DEFAULT_CLIENTS, ids: bool = False
) -> dict[str, Any]:
    """What the scheduler knows and holds, as JSON values.

    Of the `clients` last heard of, by their ids if `ids`. O(suffixes in the tree +
    owners of prompts + prompts shown · depth).
    """
    shown = list(islice(cache.accounts.recent(), clients))
    owned = _owned(cache, shown)
    suffixes = _suffixes(cache, shown)
    state = {
        "config": cache.config.describe(),
        "pool": _pool(cache),
        "clients": {
            client if ids else shown_client(client): _client(
                cache, client, owned[client], suffixes[client]
            )
            for client in shown
        },
        "clients_left_out": len(cache.accounts) - len(shown),
        "prewarm": cache.prewarmer.as_dict(),
        "speeds": cache.speeds.as_dict(),
        "counters": cache.counters.as_dict(),
        "evicted_tokens": {
            group.name.lower(): tokens
            for group, tokens in cache.full_component.evicted_tokens.items()
        },
        "bytes_per_token": cache.bytes_per_token,
        "bus_bytes_per_s": cache.bus_bytes_per_s,
        "overhead": cache.overhead.as_dict(),
        "recording": cache.recorder.as_dict() if cache.recorder is not None else None,
        "dropped_metadata": dict(cache.dropped.reasons),
        "sizes": {**cache.table.counts(), "prompts": len(cache.prompts)},
    }
    if cache.config.debug:
        state["integrity"] = _integrity(cache)
    return state


def _pool(cache: KVFlowCache) -> dict[str, int]:
    """Tokens, but for `loads_in_flight`."""
    pool = {
        "tokens": int(cache.token_to_kv_pool_allocator.size),
        "free": int(cache.token_to_kv_pool_allocator.available_size()),
        "evictable": int(cache.evictable_size()),
        "loads_in_flight": cache.loads.in_flight,
        "host_tokens": 0,
        "host_free": 0,
    }
    if cache.cache_controller is not None:
        host = cache.cache_controller.mem_pool_host
        pool["host_tokens"] = int(host.size)
        pool["host_free"] = int(host.available_size())
    return pool


def _integrity(cache: KVFlowCache) -> str:
    """What is wrong by SGLang's or KVFlow's own invariants, else "ok". O(tree)."""
    try:
        cache.sanity_check()
        cache.check_integrity()
    except AssertionError as error:
        return str(error) or repr(error)
    return "ok"


def _owned(cache: KVFlowCache, clients: Iterable[str]) -> dict[str, list[str]]:
    """client -> its agents that own prompts."""
    owned: dict[str, list[str]] = {client: [] for client in clients}
    for client, agent in cache.prompts.agents():
        if client in owned:
            owned[client].append(agent)
    return owned


def _suffixes(cache: KVFlowCache, clients: Iterable[str]) -> dict[str, Any]:
    """client -> nodes of dynamic suffixes that it wrote."""
    found: dict[str, list[Any]] = {client: [] for client in clients}
    for client, node in cache.tree_core.writers.by_client():
        if client in found and not state_of(node).fixed:
            found[client].append(node)
    return found


def _client(
    cache: KVFlowCache, client: str, owners: list[str], suffixes: list[Any]
) -> dict[str, Any]:
    runs = cache.table.runs(client)
    agents = dict.fromkeys(agent for steps in runs.values() for agent in steps)
    agents.update(dict.fromkeys(owners))
    # One whose every call begins anew owns no prompt, and is the one to be told of.
    agents.update(dict.fromkeys(cache.learner.agents_of(client)))
    account = cache.accounts.find(client)
    return {
        "runs": {name: dict(steps) for name, steps in islice(runs.items(), MAX_RUNS)},
        "agents": {
            agent: _agent(cache, client, agent) for agent in islice(agents, MAX_AGENTS)
        },
        "left_out": {
            "runs": max(0, len(runs) - MAX_RUNS),
            "agents": max(0, len(agents) - MAX_AGENTS),
        },
        "shared": _shared(cache, client, owners),
        "account": account.as_dict() if account is not None else {},
        "throttled": cache.prefetcher.accounts.throttled(client),
        "held": {
            "fixed": _held(_prompt_nodes(cache, client, owners)),
            "dynamic": _held(suffixes),
            "protected": cache.tree_core.protection.held.get(client, 0),
        },
    }


def _agent(cache: KVFlowCache, client: str, agent: str) -> dict[str, Any]:
    prefetched = cache.prefetcher.accounts.of(client).get(agent, Usage())
    return {
        "steps": cache.table.steps(client, agent),
        "steps_of_next_run": cache.table.steps_of_next_run(client, agent),
        "prefetch": {
            "issued": prefetched.issued,
            "used": prefetched.used,
            "unused": prefetched.unused,
        },
        "prompts": [
            _prompt(cache, handle) for handle in cache.prompts.handles(client, agent)
        ],
        "learned": {
            "boundaries": cache.learner.boundaries(client, agent),
            "found_after_calls": cache.learner.found_after(client, agent),
            "drift": _drift(cache, client, agent),
        },
    }


def _drift(cache: KVFlowCache, client: str, agent: str) -> dict[str, int] | None:
    """Where the agent's calls part too early, in tokens; None if they do not."""
    drift = cache.learner.drift(client, agent)
    return None if drift is None else asdict(drift)


def _prompt(cache: KVFlowCache, handle: PromptHandle) -> dict[str, int]:
    """Tokens of one fixed prompt by the state they are in; the states add up."""
    tokens = {state.value: 0 for state in KVState}
    for node in cache.tree_core.path_to_root(handle.node):
        tokens[kv_state(node).value] += len(node.key)
    return {"tokens": handle.tokens, **tokens}


def _prompt_nodes(cache: KVFlowCache, client: str, owners: list[str]) -> Iterable[Any]:
    """Of the client's fixed prompts, a shared prefix once."""
    return {
        node.id: node
        for agent in owners
        for handle in cache.prompts.handles(client, agent)
        for node in cache.tree_core.path_to_root(handle.node)
    }.values()


def _shared(
    cache: KVFlowCache, client: str, owners: Iterable[str]
) -> list[dict[str, Any]]:
    """Beginnings that several agents' prompts have in common, the longest first."""
    users: dict[int, dict[str, None]] = {}
    depths: dict[int, int] = {}
    for agent in islice(owners, MAX_AGENTS):
        for handle in cache.prompts.handles(client, agent):
            depth = cache.tree_core.depth_of(handle.node)
            for node in cache.tree_core.path_to_root(handle.node):
                users.setdefault(node.id, {})[agent] = None
                depths[node.id] = depth
                depth -= len(node.key)
    longest: dict[tuple[str, ...], int] = {}
    for node_id, agents in users.items():
        if len(agents) > 1:
            names = tuple(sorted(agents))
            longest[names] = max(longest.get(names, 0), depths[node_id])
    found = [{"agents": list(n), "tokens": tokens} for n, tokens in longest.items()]
    return sorted(found, key=lambda entry: -int(str(entry["tokens"])))[:MAX_SHARED]


def _held(nodes: Iterable[Any]) -> dict[str, int]:
    """Tokens; those on the device and in host memory count as both."""
    tokens = {"device": 0, "host": 0}
    for node in nodes:
        tokens["device"] += 0 if node.evicted else len(node.key)
        tokens["host"] += len(node.key) if node.backuped else 0
    return tokens
