"""`kvflow serve`: which flags and environment SGLang is launched with.

KVFlow adds a flag only where the user said nothing. What it cannot know is passed on
untouched. Deciding (`plan`) is pure; `launch` replaces this process by SGLang, so
that signals, exit codes and the clean-up of child processes are SGLang's own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from kvflow_server.emulated.platform import (
    BANDWIDTH_ENV,
    DEVICE_ENV,
    PLATFORM_NAME,
)
from kvflow_server.engine.config import Mode
from kvflow_server.engine.seams import BACKEND
from kvflow_server.policy.backup import Backup

from .arguments import ConfigFileError, GivenFlags

__all__ = ["LaunchPlan", "ServeError", "ServeOptions", "has_gpu", "launch", "plan"]

Flag = tuple[str, ...]

# Two cores in float32 (SGLang's float16 is 12 times slower there); an idle scheduler
# would otherwise spin on one of the two.
_EMULATED: tuple[Flag, ...] = (
    ("--device", "cpu"),
    ("--attention-backend", "torch_native"),
    ("--sampling-backend", "pytorch"),
    ("--dtype", "float32"),
    ("--mem-fraction-static", "0.5"),
    ("--max-total-tokens", "16384"),
    ("--sleep-on-idle",),
)
# The only transfer that the emulated bus implements.
_EMULATED_HICACHE: tuple[Flag, ...] = (
    ("--hicache-io-backend", "direct"),
    ("--hicache-mem-layout", "layer_first"),
)

_CORES_ENV = "SGLANG_CPU_OMP_THREADS_BIND"
_THREADS_ENV = "OMP_NUM_THREADS"


class ServeError(ValueError):
    """The server cannot be started as asked; the message says what to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """KVFlow's own flags."""

    mode: Mode = Mode.FULL
    stock: bool = False
    """Stock SGLang on the same machine: KVFlow's cache is not used."""
    hicache: bool = True
    """Keep evicted KV in host memory (SGLang's hierarchical cache)."""
    backup: Backup | None = None
    """What of a call is written there; None: as the environment says."""
    prewarm: bool = False
    """Compute fixed prompts that clients register, before their agents run."""
    emulated: bool | None = None
    """Use the emulated accelerator; None: when there is no GPU."""
    pcie_gbps: float | None = None
    """Bandwidth of the emulated bus each way; None: the default, 0: no limit."""


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """What SGLang is started with."""

    argv: tuple[str, ...]
    """All arguments, the user's first."""
    added: tuple[Flag, ...]
    """Those of them that KVFlow added."""
    env: dict[str, str]
    """Variables laid over the environment."""
    emulated: bool


def has_gpu() -> bool:
    """Whether torch sees any accelerator. Imports torch (seconds)."""
    import torch

    return torch.accelerator.is_available()


def plan(
    options: ServeOptions,
    args: Sequence[str],
    *,
    gpu: bool,
    default_model: Callable[[], Path],
) -> LaunchPlan:
    """Complete the user's SGLang `args`.

    `default_model` is asked for a directory when no model is named on the emulated
    accelerator. Raises `ServeError`.
    """
    try:
        said = GivenFlags(args)
    except ConfigFileError as error:
        raise ServeError(str(error)) from error
    emulated = options.emulated
    if emulated is None:
        emulated = said.value("--device") == "cpu" or not (gpu or said("--device"))
    _check(options, said, emulated)
    env = _settings(options)
    wanted: list[Flag] = []
    if not said("--model-path"):
        wanted.append(("--model-path", str(default_model())))
        env["HF_HUB_OFFLINE"] = "1"
    if emulated:
        wanted += _EMULATED
        env["SGLANG_PLATFORM"] = PLATFORM_NAME
        # Forced on a machine with a GPU, SGLang must not see it.
        env["CUDA_VISIBLE_DEVICES"] = ""
        if options.pcie_gbps is not None:
            env[BANDWIDTH_ENV] = str(options.pcie_gbps)
        env |= _share_of_cores(said)
    if not said("--disable-radix-cache"):
        wanted += _cache_flags(options, said, emulated)
    added = tuple(flag for flag in wanted if not said(flag[0]))
    argv = (*args, *(word for flag in added for word in flag))
    return LaunchPlan(argv=argv, added=added, env=env, emulated=emulated)


def _settings(options: ServeOptions) -> dict[str, str]:
    env = {"KVFLOW_MODE": options.mode.value}
    if options.backup is not None:
        env["KVFLOW_BACKUP"] = options.backup.value
    if options.prewarm:
        env["KVFLOW_PREWARM"] = "1"
    return env


def _share_of_cores(said: GivenFlags) -> dict[str, str]:
    """Several ranks on one CPU: SGLang wants to be told which cores are whose, and
    teams of threads that spin on each other's cores would be many times slower.

    A paced device is no faster with a team, which spins between its short passes: that
    took more of the processor than the passes, from HTTP, tokenizer and clients.
    """
    ranks = said.number("--tp-size", 1) * said.number("--dp-size", 1)
    cores = os.cpu_count() or 1
    each = 1 if DEVICE_ENV in os.environ else max(1, cores // ranks)
    defaults = {_THREADS_ENV: str(each)} if ranks > 1 or each < cores else {}
    if ranks > 1:
        shares = [str(rank * each % cores) for rank in range(ranks)]
        defaults[_CORES_ENV] = "|".join(shares)
    return {name: os.environ.get(name, value) for name, value in defaults.items()}


def launch(plan: LaunchPlan) -> NoReturn:
    """Become the SGLang server."""
    # It would advise `sglang serve`, which asks a model hub what kind of model it is.
    quiet = "ignore:'python -m sglang.launch_server':UserWarning"
    command = [sys.executable, "-P", "-W", quiet, "-m", "sglang.launch_server"]
    os.execve(sys.executable, [*command, *plan.argv], {**os.environ, **plan.env})


def _check(options: ServeOptions, said: GivenFlags, emulated: bool) -> None:
    if not said("--model-path") and not emulated:
        raise ServeError(
            "name a model with --model-path; only the emulated accelerator has a "
            "default one, too small to be of use on a GPU"
        )
    if said("--disable-radix-cache") and not options.stock:
        raise ServeError(
            "KVFlow works on the radix cache: drop --disable-radix-cache, or add "
            "--kvflow-stock to serve without KVFlow"
        )
    if not options.hicache and said("--enable-hierarchical-cache"):
        raise ServeError("--no-hicache contradicts --enable-hierarchical-cache")
    if not options.hicache and not options.stock and options.mode.prefetches:
        raise ServeError(
            "--no-hicache leaves nothing to prefetch from: add --kvflow-mode evict, "
            "or --kvflow-stock"
        )
    if options.pcie_gbps is not None and not emulated:
        raise ServeError("--emulated-pcie-gbps: this server uses the real bus")
    if options.pcie_gbps is not None and not 0 <= options.pcie_gbps < float("inf"):
        raise ServeError(
            f"--emulated-pcie-gbps is {options.pcie_gbps}, must be >= 0 (0: no limit)"
        )


def _cache_flags(options: ServeOptions, said: GivenFlags, emulated: bool) -> list[Flag]:
    flags: list[Flag] = []
    if not options.stock:
        flags.append(("--radix-cache-backend", BACKEND))
    if options.hicache:
        flags.append(("--enable-hierarchical-cache",))
        flags += _EMULATED_HICACHE if emulated else ()
    return flags
