"""The scenarios: small workflows, and what has to be reported at each moment of them.

A scenario is said in neutral terms, for every framework to build in its own way. Its
steps were written by hand, from what the words in DESIGN say, not computed: an
adapter, the SDK's distances and the server's table all have to agree with them.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from kvflow_sdk.graph import START, Group

__all__ = ["END", "SCENARIOS", "Feature", "Moment", "Scenario", "steps"]

END = "__end__"
"""What an agent answers that chooses to end the run."""


class Feature(enum.Enum):
    """What a framework has to have for a scenario."""

    PARALLEL = "two agents of one run execute at the same time"
    BARRIER = "an agent waits for several others"
    CHOICE = "the answer of an agent decides who is next"
    LOOP = "an agent runs again"
    SELF_LOOP = "an agent follows itself"
    RERUN = "each of several predecessors runs the agent, at different times"
    FAN_OUT = "an agent runs several times at once, how often is decided in the run"


def steps(text: str) -> dict[str, int]:
    """``"a0 b1"`` is {"a": 0, "b": 1}."""
    return {entry[:-1]: int(entry[-1]) for entry in text.split()}


@dataclass(frozen=True, slots=True)
class Moment:
    """Agents that call their model at the same time, and the steps that hold then."""

    agents: tuple[str, ...]
    """One entry per execution."""
    steps: Mapping[str, int]

    @classmethod
    def of(cls, agents: str, text: str) -> Moment:
        return cls(tuple(sorted(agents.split())), steps(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A workflow in which every node is an agent that calls its model once."""

    name: str
    needs: frozenset[Feature] = frozenset()
    edges: tuple[tuple[str, str], ...]
    """(source, target): certain, and each alone triggers its target."""
    barriers: tuple[tuple[tuple[str, ...], str], ...] = ()
    """(sources, target): all of them together trigger it."""
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By agent: those that it may choose from; `END` is always possible as well. What
    it chooses are the words of its answer; a word said three times, three executions
    of that agent at once."""
    script: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By agent that chooses: its answers, call by call."""
    before: Mapping[str, int]
    """The steps that are reported before anything runs."""
    moments: tuple[Moment, ...]
    """In the order in which they happen."""

    @property
    def agents(self) -> tuple[str, ...]:
        """In the order in which they are mentioned."""
        return tuple(dict.fromkeys(self._mentioned()))

    @property
    def entries(self) -> tuple[str, ...]:
        return tuple(target for source, target in self.edges if source == START)

    @property
    def groups(self) -> frozenset[Group]:
        """The triggers that a compiler has to find."""
        return frozenset(
            [
                *(Group(target, frozenset([source])) for source, target in self.edges),
                *(Group(target, frozenset(every)) for every, target in self.barriers),
                *(
                    Group(target, frozenset([source]), conditional=True)
                    for source, targets in self.choices.items()
                    for target in targets
                ),
            ]
        )

    def next_of(self, agent: str, answer: str) -> tuple[str, ...]:
        """Whom `agent` chooses by `answer`: one entry per execution, none at the end."""
        allowed = self.choices.get(agent, ())
        return tuple(word for word in answer.split() if word in allowed)

    def _mentioned(self) -> Iterator[str]:
        for source, target in self.edges:
            yield from (name for name in (source, target) if name != START)
        for sources, target in self.barriers:
            yield from (*sources, target)
        for source, targets in self.choices.items():
            yield from (source, *targets)


_ENTRY = (START, "a")


def _edges(text: str) -> tuple[tuple[str, str], ...]:
    """``"a-b b-c"``; a is always the entry."""
    return (_ENTRY, *((word[0], word[2]) for word in text.split()))


_PARALLEL = frozenset({Feature.PARALLEL})
_BARRIER = frozenset({Feature.PARALLEL, Feature.BARRIER})
_CHOICE = frozenset({Feature.CHOICE})
_LOOP = frozenset({Feature.CHOICE, Feature.LOOP})

SEQUENCE = Scenario(
    name="sequence",
    edges=_edges("a-b b-c"),
    before=steps("a1 b2 c3"),
    moments=(
        Moment.of("a", "a0 b1 c2"),
        Moment.of("b", "b0 c1"),
        Moment.of("c", "c0"),
    ),
)

SCENARIOS: tuple[Scenario, ...] = (
    SEQUENCE,
    Scenario(
        name="fan-out and barrier",
        needs=_BARRIER,
        edges=_edges("a-b a-c"),
        barriers=((("b", "c"), "d"),),
        before=steps("a1 b2 c2 d3"),
        moments=(
            Moment.of("a", "a0 b1 c1 d2"),
            Moment.of("b c", "b0 c0 d1"),
            Moment.of("d", "d0"),
        ),
    ),
    Scenario(
        name="fan-out without a barrier",
        needs=_PARALLEL,
        edges=_edges("a-b a-c"),
        before=steps("a1 b2 c2"),
        moments=(Moment.of("a", "a0 b1 c1"), Moment.of("b c", "b0 c0")),
    ),
    Scenario(
        name="either-or join",
        needs=_CHOICE,
        edges=_edges("b-d c-d"),
        choices={"a": ("b", "c")},
        script={"a": ("c",)},
        before=steps("a1 b2 c2 d3"),
        moments=(
            Moment.of("a", "a0 b1 c1 d2"),
            Moment.of("c", "c0 d1"),
            Moment.of("d", "d0"),
        ),
    ),
    Scenario(
        name="conditional branch",
        needs=_CHOICE,
        edges=_edges("b-d d-e"),
        choices={"a": ("b", "c")},
        script={"a": ("c",)},
        before=steps("a1 b2 c2 d3 e4"),
        moments=(Moment.of("a", "a0 b1 c1 d2 e3"), Moment.of("c", "c0")),
    ),
    Scenario(
        name="loop with exit",
        needs=_LOOP,
        edges=_edges("a-b"),
        choices={"b": ("a", "c")},
        script={"b": ("a", "c")},
        before=steps("a1 b2 c3"),
        moments=(
            Moment.of("a", "a0 b1 c2"),
            Moment.of("b", "b0 a1 c1"),
            Moment.of("a", "a0 b1 c2"),
            Moment.of("b", "b0 a1 c1"),
            Moment.of("c", "c0"),
        ),
    ),
    Scenario(
        name="nested loop",
        needs=_LOOP,
        edges=_edges("a-b b-c"),
        choices={"c": ("b", "d"), "d": ("a", "e")},
        script={"c": ("b", "d", "d"), "d": ("a", "e")},
        before=steps("a1 b2 c3 d4 e5"),
        moments=(
            Moment.of("a", "a0 b1 c2 d3 e4"),
            Moment.of("b", "b0 c1 d2 a3 e3"),
            Moment.of("c", "c0 b1 d1 a2 e2"),
            Moment.of("b", "b0 c1 d2 a3 e3"),
            Moment.of("c", "c0 b1 d1 a2 e2"),
            Moment.of("d", "d0 a1 e1 b2 c3"),
            Moment.of("a", "a0 b1 c2 d3 e4"),
            Moment.of("b", "b0 c1 d2 a3 e3"),
            Moment.of("c", "c0 b1 d1 a2 e2"),
            Moment.of("d", "d0 a1 e1 b2 c3"),
            Moment.of("e", "e0"),
        ),
    ),
    Scenario(
        name="self-loop",
        needs=_LOOP | {Feature.SELF_LOOP},
        edges=_edges(""),
        choices={"a": ("a", "b")},
        script={"a": ("a", "a", "b")},
        before=steps("a1 b2"),
        moments=(
            Moment.of("a", "a0 b1"),
            Moment.of("a", "a0 b1"),
            Moment.of("a", "a0 b1"),
            Moment.of("b", "b0"),
        ),
    ),
    Scenario(
        name="skipped branch before a barrier",
        needs=_CHOICE | {Feature.BARRIER},
        edges=_edges(""),
        barriers=((("b", "c"), "d"),),
        choices={"a": ("b", "c")},
        script={"a": ("b",)},
        before=steps("a1 b2 c2 d3"),
        # c does not run, so d never will: it is unreachable as soon as that is known.
        moments=(Moment.of("a", "a0 b1 c1 d2"), Moment.of("b", "b0")),
    ),
    Scenario(
        name="unequal depth before a barrier",
        needs=_BARRIER,
        edges=_edges("a-b a-c b-x"),
        barriers=((("x", "c"), "d"),),
        before=steps("a1 b2 c2 x3 d4"),
        moments=(
            Moment.of("a", "a0 b1 c1 x2 d3"),
            Moment.of("b c", "b0 c0 x1 d2"),
            Moment.of("x", "x0 d1"),
            Moment.of("d", "d0"),
        ),
    ),
    Scenario(
        name="unequal depth without a barrier",
        needs=_PARALLEL | {Feature.RERUN},
        edges=_edges("a-b a-c b-x x-d c-d"),
        before=steps("a1 b2 c2 x3 d3"),
        # d runs after c, and again after x.
        moments=(
            Moment.of("a", "a0 b1 c1 x2 d2"),
            Moment.of("b c", "b0 c0 x1 d1"),
            Moment.of("x d", "x0 d0"),
            Moment.of("d", "d0"),
        ),
    ),
    Scenario(
        name="barrier in a loop",
        needs=_BARRIER | _LOOP,
        edges=_edges("a-b a-c"),
        barriers=((("b", "c"), "d"),),
        choices={"d": ("a", "e")},
        script={"d": ("a", "e")},
        before=steps("a1 b2 c2 d3 e4"),
        moments=(
            Moment.of("a", "a0 b1 c1 d2 e3"),
            Moment.of("b c", "b0 c0 d1 a2 e2"),
            Moment.of("d", "d0 a1 e1 b2 c2"),
            Moment.of("a", "a0 b1 c1 d2 e3"),
            Moment.of("b c", "b0 c0 d1 a2 e2"),
            Moment.of("d", "d0 a1 e1 b2 c2"),
            Moment.of("e", "e0"),
        ),
    ),
    Scenario(
        name="dynamic fan-out",
        needs=_PARALLEL | _CHOICE | {Feature.FAN_OUT},
        edges=_edges("w-z"),
        choices={"a": ("w",)},
        script={"a": ("w w w",)},
        before=steps("a1 w2 z3"),
        # One superstep with three executions of w; then z, once.
        moments=(
            Moment.of("a", "a0 w1 z2"),
            Moment.of("w w w", "w0 z1"),
            Moment.of("z", "z0"),
        ),
    ),
)
