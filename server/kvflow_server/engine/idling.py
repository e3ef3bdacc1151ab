"""An idle scheduler whose copies are still on their way rests in between.

SGLang lets a scheduler with nothing to do wait for the next request (``--sleep-on-idle``),
but not while a copy is under way: then it turns in its loop as fast as it can to see the
end of it. Whoever asked it not to burn a core has that core taken at the worst time, when
answers are being sent and the next calls prepared.
"""

from __future__ import annotations

from typing import Any

from .cache import KVFlowCache

__all__ = ["after_idle"]

REST_MS = 1
"""Between two looks at the copies; a request ends it. Short beside a copy of one piece, and
there may be more than one on the bus (`PrefetchLimits.max_inflight`), so that the bus does
not wait for the scheduler."""


def after_idle(_result: object, scheduler: Any, *_args: Any, **_kwargs: Any) -> None:
    """AFTER `Scheduler.on_idle`, which returns at once while something is under way."""
    cache = scheduler.tree_cache
    if not isinstance(cache, KVFlowCache):
        return
    try:  # not the guard, which would count the rest as work of ours
        # None without the flag, and on all ranks but the one that receives requests.
        poller = getattr(scheduler.idle_sleeper, "poller", None)
        copying = cache.ongoing_write_through or cache.ongoing_load_back
        if poller is not None and copying and not scheduler.waiting_queue:
            poller.poll(REST_MS)
    except Exception as error:
        cache.guard.absorb(error)
