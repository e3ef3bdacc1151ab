"""What the step table must answer, kept in the plainest way and without an index."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvflow_sdk.wire import StepUpdate

__all__ = ["Said"]


@dataclass
class _Run:
    seq: int
    seen: float
    steps: dict[str, int] = field(default_factory=dict)
    likelihood: dict[str, float] = field(default_factory=dict)


@dataclass
class Said:
    """Everything that clients have said and that still counts."""

    lease: float
    runs: dict[tuple[str, str], _Run] = field(default_factory=dict)
    ended: dict[tuple[str, str], float] = field(default_factory=dict)
    seen: dict[str, float] = field(default_factory=dict)

    def hear(self, update: StepUpdate, now: float) -> None:
        name = (update.client, update.run)
        if name in self.ended:
            return
        self.seen[update.client] = now
        run = self.runs.get(name)
        if update.final:
            self.runs.pop(name, None)
            self.ended[name] = now
        elif run is None or update.seq > run.seq:
            made = self.runs[name] = _Run(update.seq, now)
            if update.steps is not None:
                made.steps = dict(update.steps)
                likely = update.likelihood or {}
                made.likelihood = {a: v for a, v in likely.items() if a in made.steps}
            elif run is not None:
                made.steps, made.likelihood = run.steps, run.likelihood
        else:
            run.seen = now

    def expire(self, now: float) -> None:
        """Whoever was silent for a lease is forgotten, and each run of its own."""
        start = now - self.lease
        gone = {client for client, seen in self.seen.items() if seen < start}
        self.seen = {c: seen for c, seen in self.seen.items() if c not in gone}
        self.runs = {
            name: run
            for name, run in self.runs.items()
            if run.seen >= start and name[0] not in gone
        }
        self.ended = {
            name: when
            for name, when in self.ended.items()
            if when >= start and name[0] not in gone
        }

    def steps(self, client: str, agent: str) -> int | None:
        return min(
            (
                run.steps[agent]
                for name, run in self.runs.items()
                if name[0] == client and agent in run.steps
            ),
            default=None,
        )

    def likelihood(self, client: str, agent: str) -> float | None:
        return max(
            (
                run.likelihood[agent]
                for name, run in self.runs.items()
                if name[0] == client and agent in run.likelihood
            ),
            default=None,
        )

    def counts(self) -> dict[str, int]:
        return {
            "clients": len(self.seen),
            "runs": len(self.runs),
            "agents": len(
                {(n[0], a) for n, run in self.runs.items() for a in run.steps}
            ),
            "tombstones": len(self.ended),
        }
