"""Settings of the engine, read once per process from ``KVFLOW_*``.

`kvflow serve` sets these variables from its flags; they reach SGLang's child processes
by inheritance, so SGLang's own command line stays as it is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from typing import TypeVar

from kvflow_server.policy.backup import Backup, BackupLimits
from kvflow_server.policy.intake import IntakeLimits
from kvflow_server.policy.prefetch import PrefetchLimits
from kvflow_server.policy.prewarm import PrewarmLimits
from kvflow_server.policy.priority import Order
from kvflow_server.policy.steps import StepLimits

__all__ = [
    "EngineConfig",
    "EngineConfigError",
    "Mode",
    "Recording",
    "settings_problems",
]


class EngineConfigError(ValueError):
    """A ``KVFLOW_*`` variable has a value that cannot be used."""


class Mode(Enum):
    """How much of KVFlow is on, so that every claim can be taken apart."""

    OFF = "off"
    """Metadata is taken in and reported; eviction order is SGLang's LRU."""
    PROTECT = "protect"
    """Fixed prompts and what several have used are protected; no steps, no prefetch."""
    STEPS = "steps"
    """The paper's policy and nothing more: steps, prefetch, status-aware scheduling."""
    EVICT = "evict"
    """The whole eviction order, no prefetch."""
    FULL = "full"

    @property
    def order(self) -> Order:
        """The eviction order."""
        return _ORDERS.get(self, Order.WORKFLOW)

    @property
    def prefetches(self) -> bool:
        """Whether prompts are fetched ahead, and requests skipped while they load."""
        return self in (Mode.STEPS, Mode.FULL)


_ORDERS = {
    Mode.OFF: Order.RECENCY,
    Mode.PROTECT: Order.CLASSES,
    Mode.STEPS: Order.STEPS,
}


@dataclass(frozen=True, slots=True)
class Recording:
    """Where what the server sees is written (`recording`)."""

    path: str
    max_bytes: int


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Everything that can be set about the engine."""

    mode: Mode = Mode.FULL
    prefetch: PrefetchLimits = field(default_factory=PrefetchLimits)
    prewarm: PrewarmLimits = field(default_factory=PrewarmLimits)
    steps: StepLimits = field(default_factory=StepLimits)
    intake: IntakeLimits = field(default_factory=IntakeLimits)
    max_skips: int = 256
    """Scheduler passes a request may be passed over while its prefix loads."""
    prompts_per_agent: int = 8
    protected_share: float = 0.5
    """Of the device pool: what one client's prompts hold above it competes by recency
    with unknown entries, so that nobody starves the others. 1 sets no cap."""
    backup: Backup = Backup.REUSED
    """Of tagged requests; others are written through as SGLang is told."""
    backup_limits: BackupLimits = field(default_factory=BackupLimits)
    record: Recording | None = None
    debug: bool = False
    """Run the invariant checks after every scheduler pass that changed something."""

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> EngineConfig:
        """Raises `EngineConfigError` naming the variable and what it accepts."""
        env = os.environ if env is None else env
        horizon = _integer(env, "KVFLOW_PREFETCH_HORIZON", 1, low=0, high=64)
        prefetch = PrefetchLimits(
            horizon=horizon,
            idle_horizon=_integer(
                env, "KVFLOW_PREFETCH_IDLE_HORIZON", horizon + 1, low=0, high=64
            ),
            max_inflight=_integer(env, "KVFLOW_PREFETCH_INFLIGHT", 2, low=1, high=8),
            piece_tokens=_integer(
                env, "KVFLOW_PREFETCH_PIECE_TOKENS", 512, low=16, high=1 << 20
            ),
        )
        return cls(
            mode=_choice(env, "KVFLOW_MODE", Mode.FULL),
            prefetch=prefetch,
            prewarm=_prewarm(env),
            steps=_steps(env),
            intake=IntakeLimits(
                bytes_per_s=_integer(
                    env, "KVFLOW_CLIENT_BYTES_PER_S", 1 << 20, low=1024, high=1 << 30
                )
            ),
            max_skips=_integer(env, "KVFLOW_MAX_SKIPS", 256, low=0, high=1 << 20),
            protected_share=_integer(
                env, "KVFLOW_PROTECTED_PERCENT", 50, low=1, high=100
            )
            / 100,
            backup=_choice(env, "KVFLOW_BACKUP", Backup.REUSED),
            backup_limits=BackupLimits(
                suffix_hits=_integer(
                    env, "KVFLOW_SUFFIX_BACKUP_HITS", 2, low=1, high=1 << 20
                )
            ),
            record=_recording(env),
            debug=_integer(env, "KVFLOW_DEBUG", 0, low=0, high=1) == 1,
        )

    def protected_tokens(self, pool: int) -> float:
        """Of a device pool of so many, what one client may protect at most; the paper's
        policy knows no such cap."""
        if self.protected_share >= 1 or self.mode in (Mode.OFF, Mode.STEPS):
            return float("inf")
        return self.protected_share * pool

    def describe(self) -> dict[str, object]:
        """The settings as plain JSON values, for the state report."""
        flat: dict[str, object] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Enum):
                flat[item.name] = value.value
            elif is_dataclass(value):
                flat[item.name] = {
                    inner.name: getattr(value, inner.name) for inner in fields(value)
                }
            else:
                flat[item.name] = value
        return flat


def _prewarm(env: Mapping[str, str]) -> PrewarmLimits:
    tokens = _integer(env, "KVFLOW_PREWARM_TOKENS", 1 << 16, low=1, high=1 << 22)
    enabled = _integer(env, "KVFLOW_PREWARM", 0, low=0, high=1) == 1
    return PrewarmLimits(enabled=enabled, client_tokens=tokens)


def _steps(env: Mapping[str, str]) -> StepLimits:
    return StepLimits(
        clients=_integer(env, "KVFLOW_MAX_CLIENTS", 1024, low=1, high=1 << 20),
        runs_per_client=_integer(env, "KVFLOW_MAX_RUNS", 1024, low=1, high=1 << 20),
        agents_per_client=_integer(env, "KVFLOW_MAX_AGENTS", 8192, low=1, high=1 << 20),
        lease_s=_integer(env, "KVFLOW_LEASE_S", 600, low=1, high=1 << 24),
    )


def _recording(env: Mapping[str, str]) -> Recording | None:
    megabytes = _integer(env, "KVFLOW_RECORD_MB", 1024, low=1, high=1 << 20)
    path = env.get("KVFLOW_RECORD", "")
    if not path:
        return None
    if not os.access(os.path.dirname(path) or ".", os.W_OK) or os.path.isdir(path):
        raise EngineConfigError(f"KVFLOW_RECORD={path!r}: no file can be written there")
    return Recording(path, megabytes << 20)


def settings_problems(*, hierarchical_cache: bool) -> list[str]:
    """What is wrong with the ``KVFLOW_*`` variables of a server with these flags."""
    found = []
    try:
        config = EngineConfig.from_env()
    except EngineConfigError as error:
        found.append(str(error))
        config = EngineConfig()
    if config.mode.prefetches and not hierarchical_cache:
        found.append(
            "prefetch needs host memory: add --enable-hierarchical-cache, or choose "
            "eviction only with KVFLOW_MODE=evict (kvflow serve --kvflow-mode evict)"
        )
    return found


_Choice = TypeVar("_Choice", bound=Enum)


def _choice(env: Mapping[str, str], name: str, default: _Choice) -> _Choice:
    text = env.get(name, default.value)
    kinds = type(default)
    try:
        return kinds(text)
    except ValueError:
        known = ", ".join(str(kind.value) for kind in kinds)
        raise EngineConfigError(f"{name}={text!r}: use one of {known}") from None


def _integer(
    env: Mapping[str, str], name: str, default: int, *, low: int, high: int
) -> int:
    text = env.get(name)
    if text is None or not text.strip():
        return default
    try:
        value = int(text)
    except ValueError:
        value = low - 1
    if not low <= value <= high:
        raise EngineConfigError(
            f"{name}={text!r}: use a whole number from {low} to {high}"
        )
    return value
