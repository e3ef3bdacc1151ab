"""Status-aware admission: may this request join the next prefill batch?

The table of DESIGN.md ("Status-aware scheduling") as one pure function. The GPU never
idles for a copy while something else could run, and a lone request is never slower
than with stock HiCache.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["PathStatus", "Verdict", "decide"]


@dataclass(frozen=True, slots=True)
class PathStatus:
    """Where the KV of a request's prefix stands, in tokens per state.

    What is in no tier only makes the path shorter; OFFLOADING counts as in GPU.
    """

    loading: int
    backed_up: int
    """Only in host memory, and enough to be worth a copy."""


class Verdict(Enum):
    ADMIT = "admit"
    """Everything is on the device, or SGLang's own layer-wise load will do."""
    JOIN = "join"
    """Admit and wait, layer by layer, for the copy already in flight."""
    JOIN_AND_RECOMPUTE = "join_and_recompute"
    """Join the copy in flight; compute again what is only in host memory."""
    SKIP = "skip"
    """Leave it in the queue and look at the next request."""
    LOAD_AND_SKIP = "load_and_skip"
    """Start the copy, leave it in the queue and look at the next request."""
    RECOMPUTE = "recompute"
    """Admit; what is only in host memory is computed again."""


def decide(
    path: PathStatus,
    *,
    other_ready: bool,
    room: bool,
    skips: int,
    limit: int,
    computing_is_quicker: bool = False,
    copy_is_hidden: bool = False,
) -> Verdict:
    """What to do with a request whose prefix stands as `path` says.

    `other_ready`: this pass has admitted another request, or requests are decoding.
    `room`: the device can take what is only in host memory. `skips`: scheduler passes
    that have skipped this request so far; from `limit` on it is admitted whatever its
    path, for a LOADING part is joined and never computed again. `computing_is_quicker`:
    than copying what is only in host memory; heeded where the request would wait for
    the copy, for while others run it costs nobody anything. `copy_is_hidden`: whatever
    the request waits for arrives while it computes the rest, layer by layer. Then the
    device is not kept waiting, and to pass the request over would be for nothing.
    """
    if not path.loading and not path.backed_up:
        return Verdict.ADMIT
    if copy_is_hidden and (room or not path.backed_up):
        return Verdict.JOIN if path.loading else Verdict.ADMIT
    patient = other_ready and skips < limit
    if path.backed_up and not path.loading:
        if not room or (other_ready and not patient):
            return Verdict.RECOMPUTE
        if patient:
            return Verdict.LOAD_AND_SKIP
        return Verdict.RECOMPUTE if computing_is_quicker else Verdict.ADMIT
    if not other_ready:
        recompute = path.backed_up and computing_is_quicker
        return Verdict.JOIN_AND_RECOMPUTE if recompute else Verdict.JOIN
    if not patient:
        return Verdict.JOIN_AND_RECOMPUTE if path.backed_up else Verdict.JOIN
    return Verdict.LOAD_AND_SKIP if path.backed_up and room else Verdict.SKIP
