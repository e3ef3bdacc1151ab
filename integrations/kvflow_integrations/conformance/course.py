"""The control flow of a scenario, for frameworks that leave it to the program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from .scenarios import Scenario

__all__ = ["Course"]


class Course:
    """Who runs next, for programs whose control flow the harness has to play."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._arrived: set[tuple[tuple[str, ...], str]] = set()
        self.turn: list[str] = list(scenario.entries)
        """The agents to execute now, one entry per execution; empty at the end."""

    def done(self, answers: Sequence[tuple[str, str]]) -> None:
        """All of this turn have answered: (agent, answer), one per execution."""
        scenario, following = self._scenario, Counter[str]()
        names = dict.fromkeys(name for name, _ in answers)
        for source, target in scenario.edges:
            if source in names:
                following[target] = 1
        for name, answer in answers:
            following.update(Counter(scenario.next_of(name, answer)))
        for sources, target in scenario.barriers:
            self._arrived |= {(sources, name) for name in names if name in sources}
            if all((sources, name) in self._arrived for name in sources):
                self._arrived -= {(sources, name) for name in sources}
                following[target] = 1
        self.turn = list(following.elements())
