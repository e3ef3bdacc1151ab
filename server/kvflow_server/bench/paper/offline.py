"""The offline optimum of calls whose order is known, whatever it is: a course's."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from kvflow_server.sim.belady import Use, belady

from .courses import Course

__all__ = ["Part", "least_brought_in", "prompt_parts"]

Part = tuple[Hashable, int]
"""A piece of a fixed prompt that is shared as a whole, and its tokens."""


def prompt_parts(course: Course, agent: int, fixed: int) -> list[Part]:
    """The fixed prompt of `agent`, as `courses.CourseWorkload` makes it."""
    if not course.paired:
        return [(("own", agent), fixed)]
    half = fixed // 2
    return [(("shared", agent // 2), half), (("own", agent), fixed - half)]


def least_brought_in(calls: Sequence[Sequence[Part]], beside: int, pool: int) -> int:
    """Tokens of fixed prompts that every system has to load or to compute, to serve
    `calls` one after the other with `beside` tokens each besides the fixed prompt.

    Evicted is what is needed farthest in the future (`sim.belady`). The pool begins with
    whatever is best to have, as what the systems begin with is not compared: no more
    than a pool's worth below what a run without end needs. Raises `ValueError` for a
    call that does not fit.
    """
    everything = {name: tokens for parts in calls for name, tokens in parts}
    uses = [Use([(name, 0, tokens) for name, tokens in everything.items()], 0, 0)]
    for parts in calls:
        fixed = sum(tokens for _, tokens in parts)
        blocks = [(name, tokens, tokens) for name, tokens in parts]
        uses.append(Use(blocks, fixed, fixed + beside))
    return sum(use.prompt for use in uses) - belady(uses, pool)
