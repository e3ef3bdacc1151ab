"""What no system can beat: the offline optimum of the paper's cyclic workflow."""

from __future__ import annotations

__all__ = ["belady_s", "least_loaded"]


def least_loaded(agents: int, held: float) -> float:
    """How many agents' prompts a run of `agents`, one after the other and again and
    again, must load at least, where the pool holds `held` prompts at a time.

    Evicting what is needed farthest in the future (Belady) is optimal, and on a cycle
    of N with room for p it misses N - p out of N - 1 times: of the p prompts that are
    held after an access, one is the prompt just used, and the others are the next.
    Prompts can be cut anywhere, so p need not be whole.
    """
    if held >= agents:
        return 0.0
    return agents * (agents - max(held, 1.0)) / (agents - 1)


def belady_s(ideal_s: float, load_s: float, agents: int, held: float) -> float:
    """A bound on the seconds of one workflow, not a system: nothing was run with it.

    Both the computing (`ideal_s`, of a pool that never evicts) and the bus (`load_s`
    per agent) must do their share, so no schedule takes less than the longer of the
    two. That all else overlaps perfectly is what makes it a bound: where both take
    nearly the same time, the optimum itself lies above it.
    """
    return max(ideal_s, load_s * least_loaded(agents, held))
