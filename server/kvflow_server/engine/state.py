"""The state report: clients, runs, agents, where each fixed prompt is, counters.

Token counts and names only; no prompt text ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvflow_server.policy.states import KVState

from .states import kv_state
from .tree import PromptHandle

if TYPE_CHECKING:
    from .cache import KVFlowCache

__all__ = ["describe"]


def describe(cache: KVFlowCache) -> dict[str, Any]:
    """What the scheduler knows and holds, as JSON values."""
    state = {
        "config": cache.config.describe(),
        "pool": {
            "tokens": int(cache.token_to_kv_pool_allocator.size),
            "free": int(cache.token_to_kv_pool_allocator.available_size()),
            "evictable": int(cache.evictable_size()),
            "loads_in_flight": cache.loads.in_flight,
        },
        "clients": {name: _client(cache, name) for name in _known_clients(cache)},
        "counters": cache.counters.as_dict(),
        "overhead": cache.overhead.as_dict(),
        "dropped_metadata": dict(cache.dropped.reasons),
        "sizes": {**cache.table.counts(), "prompts": len(cache.prompts)},
    }
    if cache.config.debug:
        state["integrity"] = _integrity(cache)
    return state


def _integrity(cache: KVFlowCache) -> str:
    """What is wrong by SGLang's or KVFlow's own invariants, else "ok". O(tree)."""
    try:
        cache.sanity_check()
        cache.check_integrity()
    except AssertionError as error:
        return str(error) or repr(error)
    return "ok"


def _known_clients(cache: KVFlowCache) -> list[str]:
    owners = (client for client, _agent in cache.prompts.agents())
    return list(dict.fromkeys([*cache.table.clients(), *owners]))


def _client(cache: KVFlowCache, client: str) -> dict[str, Any]:
    runs = cache.table.runs(client)
    agents = dict.fromkeys(agent for steps in runs.values() for agent in steps)
    agents.update(
        (agent, None) for owner, agent in cache.prompts.agents() if owner == client
    )
    return {
        "runs": {name: dict(steps) for name, steps in runs.items()},
        "agents": {agent: _agent(cache, client, agent) for agent in agents},
    }


def _agent(cache: KVFlowCache, client: str, agent: str) -> dict[str, Any]:
    return {
        "steps": cache.table.steps(client, agent),
        "steps_of_next_run": cache.table.steps_of_next_run(client, agent),
        "prompts": [
            _prompt(cache, handle) for handle in cache.prompts.handles(client, agent)
        ],
    }


def _prompt(cache: KVFlowCache, handle: PromptHandle) -> dict[str, int]:
    """Tokens of one fixed prompt by the state they are in; the states add up."""
    tokens = {state.value: 0 for state in KVState}
    for node in cache.tree_core.path_to_root(handle.node):
        tokens[kv_state(node).value] += len(node.key)
    return {"tokens": handle.tokens, **tokens}
