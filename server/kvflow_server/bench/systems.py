"""The systems that are compared, as the flags of their servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvflow_server.edge.launcher import ServerProcess

__all__ = ["SYSTEMS", "Sizes", "System", "server_args", "start"]


class Sizes(Protocol):
    """What of an experiment its servers have to know."""

    @property
    def pool_tokens(self) -> int:
        """Of the device pool, where the system evicts."""

    @property
    def everything_tokens(self) -> int:
        """Of the pool that never evicts, and of host memory."""

    @property
    def pcie_gbps(self) -> float | None:
        """Of the emulated bus; None: no part of the machine is emulated."""


@dataclass(frozen=True, slots=True)
class System:
    """One way to serve the same requests."""

    name: str
    about: str
    flags: tuple[str, ...]
    """What it adds to the flags that all systems share."""
    host: bool = True
    """It has a host pool, large enough for all that is ever computed."""
    evicts: bool = True
    """Its device pool is the small one."""
    hints: bool = False
    """Its client sends metadata."""
    marks: bool = True
    """Its client says where the fixed prompts end."""
    learns: bool = True
    """Its client learns who follows whom."""
    registers: bool = False
    """Its client registers the fixed prompts before a cold run."""
    priorities: bool = False
    """Its client sets SGLang's `priority` by hand: 1 for as many of the first agents as
    the pool holds, 0 for the others."""
    env: tuple[tuple[str, str], ...] = ()
    """Variables of its server."""


SYSTEMS = {
    system.name: system
    for system in (
        System(
            "ideal",
            "stock SGLang, a device pool that never evicts: the ceiling",
            ("--kvflow-stock", "--no-hicache"),
            host=False,
            evicts=False,
        ),
        System(
            "recompute",
            "stock SGLang, device only: what was evicted is computed again",
            ("--kvflow-stock", "--no-hicache"),
            host=False,
        ),
        System(
            "hicache",
            "stock SGLang with HiCache: LRU, loads on demand",
            ("--kvflow-stock",),
        ),
        *(
            System(
                f"hicache-{policy}",
                f"stock SGLang with HiCache and --radix-eviction-policy {policy}",
                ("--kvflow-stock", "--radix-eviction-policy", policy),
                priorities=policy == "priority",
            )
            for policy in ("lfu", "slru", "priority")
        ),
        System(
            "kvflow-protect",
            "fixed prompts protected, no steps, no prefetch",
            ("--kvflow-mode", "protect"),
            hints=True,
        ),
        System(
            "kvflow-steps",
            "the paper's policy and nothing more",
            ("--kvflow-mode", "steps"),
            hints=True,
        ),
        System(
            "kvflow-no-skip",
            "KVFlow's eviction and prefetch, no status-aware scheduling",
            ("--kvflow-mode", "full"),
            hints=True,
            env=(("KVFLOW_MAX_SKIPS", "0"),),
        ),
        System(
            "kvflow-silent",
            "KVFlow chosen, no metadata sent: must equal hicache",
            ("--kvflow-mode", "full"),
        ),
        System(
            "kvflow-evict",
            "KVFlow's eviction, no prefetch",
            ("--kvflow-mode", "evict"),
            hints=True,
        ),
        System(
            "kvflow",
            "KVFlow",
            ("--kvflow-mode", "full"),
            hints=True,
        ),
        System(
            "kvflow-unlearnt",
            "KVFlow, whose client learns no transitions (--dynamic-graph)",
            ("--kvflow-mode", "full"),
            hints=True,
            learns=False,
        ),
        System(
            "kvflow-unmarked",
            "KVFlow, no prompt marked: where they end is learnt",
            ("--kvflow-mode", "full"),
            hints=True,
            marks=False,
        ),
        System(
            "kvflow-prewarm",
            "KVFlow, prompts registered before a first run (--cold)",
            ("--kvflow-mode", "full", "--kvflow-prewarm"),
            hints=True,
            registers=True,
        ),
    )
}


def server_args(system: System, sizes: Sizes, model: str) -> list[str]:
    """The arguments of `kvflow serve` for `system`."""
    pool = sizes.pool_tokens if system.evicts else sizes.everything_tokens
    args = [
        *system.flags,
        *("--model-path", model),
        *("--max-total-tokens", str(pool)),
        *("--random-seed", "0"),
        "--sleep-on-idle",
    ]
    if sizes.pcie_gbps is not None:
        args.append("--emulated")
    if system.host:
        # Written through, so that the host holds everything and only the order of
        # eviction on the device is compared.
        ratio = sizes.everything_tokens / pool + 0.5
        args += ["--hicache-ratio", f"{ratio:.3f}"]
        args += ["--hicache-write-policy", "write_through"]
        if sizes.pcie_gbps is not None:
            args += ["--emulated-pcie-gbps", str(sizes.pcie_gbps)]
    return args


def start(
    system: System,
    sizes: Sizes,
    model: str,
    env: Mapping[str, str] | None = None,
    flags: Sequence[str] = (),
) -> ServerProcess:
    """A server for `system`, not started yet; `env` and `flags` besides the system's
    own."""
    own = dict(system.env) | dict(env or {})
    return ServerProcess([*server_args(system, sizes, model), *flags], env=own)
