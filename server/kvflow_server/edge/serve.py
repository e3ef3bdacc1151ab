"""`kvflow serve`: which flags and environment SGLang is launched with.

KVFlow adds a flag only where the user said nothing. What it cannot know is passed on
untouched. Deciding (`plan`) is pure; `launch` replaces this process by SGLang, so
that signals, exit codes and the clean-up of child processes are SGLang's own.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

from kvflow_server.emulated.platform import BANDWIDTH_ENV, PLATFORM_NAME
from kvflow_server.engine.config import Mode
from kvflow_server.policy.backup import Backup

__all__ = ["LaunchPlan", "ServeError", "ServeOptions", "has_gpu", "launch", "plan"]

Flag = tuple[str, ...]

BACKEND = "kvflow"

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
_ALIASES = {
    "--model-path": ("--model",),
    "--enable-hierarchical-cache": ("--enable-hicache",),
}


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
    said = _Said(args)
    emulated = options.emulated
    if emulated is None:
        emulated = said.value("--device") == "cpu" or not (gpu or said("--device"))
    _check(options, said, emulated)
    env = {"KVFLOW_MODE": options.mode.value}
    if options.backup is not None:
        env["KVFLOW_BACKUP"] = options.backup.value
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
    if not said("--disable-radix-cache"):
        wanted += _cache_flags(options, said, emulated)
    added = tuple(flag for flag in wanted if not said(flag[0]))
    argv = (*args, *(word for flag in added for word in flag))
    return LaunchPlan(argv=argv, added=added, env=env, emulated=emulated)


def launch(plan: LaunchPlan) -> NoReturn:
    """Become the SGLang server."""
    # It would advise `sglang serve`, which asks a model hub what kind of model it is.
    quiet = "ignore:'python -m sglang.launch_server':UserWarning"
    command = [sys.executable, "-P", "-W", quiet, "-m", "sglang.launch_server"]
    os.execve(sys.executable, [*command, *plan.argv], {**os.environ, **plan.env})


def _check(options: ServeOptions, said: _Said, emulated: bool) -> None:
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


def _cache_flags(options: ServeOptions, said: _Said, emulated: bool) -> list[Flag]:
    flags: list[Flag] = []
    if not options.stock:
        flags.append(("--radix-cache-backend", BACKEND))
    if options.hicache:
        flags.append(("--enable-hierarchical-cache",))
        flags += _EMULATED_HICACHE if emulated else ()
    return flags


class _Said:
    """What the user's arguments settle, a `--config` file included."""

    def __init__(self, args: Sequence[str]) -> None:
        self._values: dict[str, str] = {}
        for word, following in pairwise([*args, ""]):
            if word.startswith("--"):
                name, equals, value = word.partition("=")
                self._values[name] = value if equals else following
        if path := self._values.get("--config"):
            self._values = _read_config(Path(path)) | self._values

    def __call__(self, flag: str) -> bool:
        return self._find(flag) is not None

    def value(self, flag: str) -> str | None:
        """The value given for `flag`, None if it was not given."""
        found = self._find(flag)
        return None if found is None else self._values[found]

    def _find(self, flag: str) -> str | None:
        for name in (flag, *_ALIASES.get(flag, ())):
            if name in self._values:
                return name
        return None


def _read_config(path: Path) -> dict[str, str]:
    # SGLang brings PyYAML; the client environment, which type checks too, does not.
    yaml: Any = importlib.import_module("yaml")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ServeError(f"--config {path}: {error}") from error
    if not isinstance(content, dict):
        raise ServeError(f"--config {path}: must be a mapping of flags to values")
    return {
        "--" + str(name).replace("_", "-"): str(value)
        for name, value in content.items()
        if value is not False
    }
