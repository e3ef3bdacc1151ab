"""From a request's ``kv_hints`` to the tag that the cache and the scheduler read."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvflow_sdk.errors import WireError
from kvflow_sdk.wire import ACTION_TYPE, StepUpdate, parse_envelope
from kvflow_server.policy.priority import Owner

if TYPE_CHECKING:
    from .cache import KVFlowCache

__all__ = ["RequestTag", "read_request_hints", "tag_of"]


@dataclass(slots=True)
class RequestTag:
    """Who makes a call, and where its fixed prompt ends."""

    owner: Owner
    fixed_tokens: int
    """0: nothing is known to be fixed."""
    digest: int | None = None
    """Of the fixed prompt's tokens and namespace; set at the first insert."""
    found: int = 0
    """Tokens of the path that were in the tree before the last insert."""
    extends: int = 0
    """Where this prompt ended for the piece of it that was computed ahead before."""
    suffix_hits: float | None = None
    """Uses after which the suffix goes to host memory; set with the digest."""


def tag_of(req: Any) -> RequestTag | None:
    """The request's tag; None for a request that KVFlow knows nothing about."""
    tag: RequestTag | None = getattr(req, "kvflow_tag", None)
    return tag


def read_request_hints(
    cache: KVFlowCache, req: Any, received: Any
) -> Sequence[StepUpdate]:
    """Apply the step updates that came with a request, which are returned, and tag it.

    `received` is the request as it arrived: SGLang does not copy the hints of one that
    continues a session. Never raises: metadata that cannot be used is dropped, counted
    and logged once, and the call is served as SGLang would.
    """
    hints = getattr(received, "kv_hints", None)
    if hints is None or all(a.action_type != ACTION_TYPE for a in hints.actions):
        return ()
    try:
        updates = parse_envelope(hints)
    except WireError as error:
        cache.dropped.record_error(error)
        return ()
    for update in updates:
        cache.apply_update(update)
        # A client that is over the cap is served as one that says nothing.
        if update.agent is not None and cache.table.knows(update.client):
            req.kvflow_tag = RequestTag(
                owner=Owner(update.client, update.run, update.agent),
                fixed_tokens=_fixed_tokens(cache, req, received, update),
            )
            # SGLang runs the prompt of an n > 1 call once, for no output, before the n.
            cache.counters.tagged_requests += req.sampling_params.max_new_tokens != 0
    return updates


def _fixed_tokens(
    cache: KVFlowCache, req: Any, received: Any, update: StepUpdate
) -> int:
    prompt = len(req.origin_input_ids)
    if prompt > len(received.input_ids):
        # The next turn of a session: its fixed prompt was marked in the first one.
        return 0
    mark = update.fixed
    if mark is None or mark.assumed:
        return _learned_tokens(cache, req, update)
    tokens = mark.tokens
    if tokens is None:
        return 0
    if tokens > prompt:
        cache.dropped.record(
            "fixed",
            f"fixed: the mark of agent {update.agent!r} stands at token {tokens}, "
            f"past the end of its prompt of {prompt}",
        )
        return 0
    return tokens


def _learned_tokens(cache: KVFlowCache, req: Any, update: StepUpdate) -> int:
    """What the agent's calls have taught; before that the assumption, if there is one
    and the calls do not speak against it."""
    assert update.agent is not None
    ids = req.origin_input_ids
    tokens = ids if isinstance(ids, array) else array("q", ids)
    with cache.guard:
        learned = cache.learner.observe(update.client, update.agent, tokens)
    if learned or update.fixed is None or update.fixed.tokens is None:
        return learned
    if cache.learner.is_lost(update.client, update.agent):
        return 0
    return min(update.fixed.tokens, len(tokens))
