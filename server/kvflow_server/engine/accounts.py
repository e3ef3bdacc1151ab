"""What each client has had of the cache: hits by tier, waiting.

Plain additions on the scheduler's own thread, a few per request; nothing reads them
but the state report. The totals over all clients are `Counters`; what prefetches came
to is with the planner (`PrefetchAccounts`).
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from kvflow_sdk.wire import StepUpdate, shown_client
from kvflow_server.policy.steps import Outcome

from .counters import Hits
from .hints import tag_of

if TYPE_CHECKING:
    from .cache import KVFlowCache

__all__ = ["Account", "Accounts", "note_admission", "note_skip", "note_update"]


@dataclass(slots=True)
class Account:
    """Of one client, since it was last unknown. Token counts are KV tokens."""

    requests: int = 0
    fixed: Hits = field(default_factory=Hits)
    dynamic: Hits = field(default_factory=Hits)
    skipped_requests: int = 0
    """Requests that were passed over at least once while their prefix loaded."""
    skipped_s: float = 0.0
    """Seconds from a request's first skip to its admission."""
    updates: int = 0
    """Step updates, in band and out of band; late and repeated ones too."""

    def as_dict(self) -> dict[str, Any]:
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {
            name: value.as_dict() if isinstance(value, Hits) else value
            for name, value in values.items()
        }


class Accounts:
    """Client -> account, for the clients whose lease runs; most recent last."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Account] = OrderedDict()

    def touch(self, client: str) -> Account:
        """The account of a client that was heard of just now."""
        account = self._known.setdefault(client, Account())
        self._known.move_to_end(client)
        return account

    def find(self, client: str) -> Account | None:
        return self._known.get(client)

    def drop(self, client: str) -> None:
        """The client's lease has ended."""
        self._known.pop(client, None)

    def recent(self) -> Iterator[str]:
        """The clients, most recently heard of first."""
        return reversed(self._known)

    def __len__(self) -> int:
        return len(self._known)


def note_update(cache: KVFlowCache, update: StepUpdate, outcome: Outcome) -> None:
    """A step update has been taken in, or not."""
    if outcome is Outcome.OVER_CAP:
        cache.dropped.record(
            "cap",
            f"client {shown_client(update.client)} exceeds a bound of "
            f"{cache.table.limits}",
        )
    elif outcome is Outcome.STALE:
        cache.counters.step_updates_stale += 1
    else:
        cache.counters.step_updates += 1
    if cache.table.knows(update.client):
        cache.accounts.touch(update.client).updates += 1


def note_skip(cache: KVFlowCache, req: Any, *, load: bool) -> None:
    """A request is passed over; `load`: a copy of its host part was asked for."""
    cache.counters.skipped_passes += 1
    if not hasattr(req, "kvflow_skipped_at"):
        req.kvflow_skipped_at = time.monotonic()
        cache.counters.skipped_requests += 1
    if load:
        req.kvflow_awaited_tokens = req.host_hit_length


def note_admission(cache: KVFlowCache, req: Any, recomputed: int = 0) -> None:
    """A request joins a batch, for the first time: where was its prompt?

        [0, device)         on the device, prefetched or never gone
        [device, cached)    loaded from host memory for this request
        [cached, prompt)    computed

    What it waited for while it was skipped was loaded for it as well, unless it gave up
    and computes `recomputed` tokens again that are in host memory.
    """
    if req.retracted_stain:
        return
    prompt = len(req.origin_input_ids)
    cached = min(req.prefix_len, prompt)
    awaited = 0 if recomputed else getattr(req, "kvflow_awaited_tokens", 0)
    host = min(cached, req.materialized_host_hit_len() or awaited)
    ends = (cached - host, cached, prompt)
    waited = _waited(cache, req)
    tag = tag_of(req)
    account = cache.accounts.find(tag.owner.client) if tag is not None else None
    if tag is None or account is None:
        cache.counters.untagged.add(0, prompt, ends)
        return
    # SGLang runs the prompt of an n > 1 call once, for no output, before the n.
    account.requests += req.sampling_params.max_new_tokens != 0
    account.skipped_s += waited
    account.skipped_requests += waited > 0
    boundary = min(tag.fixed_tokens, prompt)
    for hits in (account.fixed, cache.counters.fixed):
        hits.add(0, boundary, ends)
    for hits in (account.dynamic, cache.counters.dynamic):
        hits.add(boundary, prompt, ends)


def _waited(cache: KVFlowCache, req: Any) -> float:
    """Seconds since the request was first skipped; 0 if it never was."""
    since = getattr(req, "kvflow_skipped_at", None)
    if since is None:
        return 0.0
    waited = time.monotonic() - since
    cache.counters.skipped_s += waited
    return waited
