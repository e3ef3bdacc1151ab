"""What the single-workflow experiment is run with."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields

from kvflow_server.emulated.tiny import TinyDims

__all__ = ["COLD_SYSTEMS", "DEFAULT_SYSTEMS", "Settings", "parse_dims"]

DEFAULT_SYSTEMS = ("ideal", "recompute", "hicache", "kvflow-evict", "kvflow")
COLD_SYSTEMS = ("kvflow", "kvflow-prewarm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One experiment: a client runs the same sequence of agents again and again.

    Lengths are in tokens; `pcie_gbps` is in 10^9 bytes per second, each way.
    Raises `ValueError` naming the option.
    """

    agents: int = 10
    fixed: int = 1024
    """Tokens of an agent's fixed prompt: random, the same in every run."""
    dynamic: int = 32
    """Tokens that follow it: random, new in every run."""
    output: int = 16
    pool_ratio: float = 0.47
    """Device pool over the tokens of all fixed prompts together."""
    pcie_gbps: float = 0.1
    runs: int = 7
    warm_runs: int = 2
    """Whole workflows that are run before measuring, and not counted."""
    cold: bool = False
    """Every measured workflow is the first of its client, on an empty cache."""
    stamp: int = 0
    """Tokens before a fixed prompt that are new in every call, as a time would be."""
    dynamic_graph: bool = False
    """Who comes next is chosen at run time (`wander`)."""
    systems: tuple[str, ...] = DEFAULT_SYSTEMS
    model_dims: TinyDims = field(default_factory=TinyDims)
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("agents", "fixed", "dynamic", "output", "runs"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name}: at least 1, not {getattr(self, name)}")
        if self.stamp < 0:
            raise ValueError(f"--stamp: at least 0, not {self.stamp}")
        if self.pcie_gbps <= 0:
            raise ValueError(f"--pcie-gbps: above 0, not {self.pcie_gbps}")
        if self.warm_runs < 0:
            raise ValueError(f"--warm-runs: at least 0, not {self.warm_runs}")
        if not self.systems:
            raise ValueError("--systems: name at least one")
        if self.pool_tokens < self.call_tokens + 64:
            raise ValueError(
                f"--pool-ratio: {self.pool_ratio} gives a pool of {self.pool_tokens} "
                f"tokens, one call alone needs {self.call_tokens} and some room"
            )

    @property
    def call_tokens(self) -> int:
        return self.stamp + self.fixed + self.dynamic + self.output

    @property
    def pool_tokens(self) -> int:
        """The device pool of every system but `ideal`."""
        return int(self.pool_ratio * self.agents * self.fixed)

    @property
    def everything_tokens(self) -> int:
        """Enough for all that is ever computed: a pool that never evicts."""
        per_run = self.agents * (self.dynamic + self.output)
        # One more run of slack: warm-up calls, and the probes of the server itself.
        return self.agents * self.fixed + per_run * (self.runs + self.warm_runs + 3)

    def to_dict(self) -> dict[str, object]:
        """Plain values for the JSON report, the derived sizes included."""
        plain = {item.name: getattr(self, item.name) for item in fields(self)}
        plain["systems"] = list(self.systems)
        plain["model_dims"] = asdict(self.model_dims)
        return plain | {
            "pool_tokens": self.pool_tokens,
            "ideal_pool_tokens": self.everything_tokens,
        }


def parse_dims(text: str) -> TinyDims:
    """``"hidden=512,layers=8"``: what is not named keeps its default.

    Raises `ValueError` naming the part that is wrong.
    """
    known = {item.name for item in fields(TinyDims)}
    dims: dict[str, int] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, _, value = part.partition("=")
        if name not in known:
            raise ValueError(
                f"--model-dims: {name!r} is unknown, use {', '.join(sorted(known))}"
            )
        if not value.isdecimal():
            raise ValueError(f"--model-dims: {part!r} is not NAME=NUMBER")
        dims[name] = int(value)
    try:
        return TinyDims(**dims)
    except ValueError as error:
        raise ValueError(f"--model-dims: {error}") from error
