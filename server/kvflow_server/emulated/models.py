"""A cache of model directories that are made offline.

A model is made once, into a directory beside its final place, and renamed when it
is whole; so a killed or a second process never sees half a model. The name holds a
fingerprint of everything that the content depends on.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

__all__ = ["CACHE_ENV", "ModelError", "cache_dir", "fingerprint", "materialize"]

CACHE_ENV = "KVFLOW_CACHE_DIR"


class ModelError(RuntimeError):
    """A model cannot be made here; the message says what to install."""


def cache_dir() -> Path:
    """Where made models live: $KVFLOW_CACHE_DIR, else the user's cache directory."""
    if named := os.environ.get(CACHE_ENV):
        return Path(named) / "models"
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "kvflow" / "models"


def fingerprint(recipe: Mapping[str, object]) -> str:
    """12 hex digits that change when any value of `recipe` (JSON types) changes."""
    text = json.dumps(recipe, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def materialize(name: str, make: Callable[[Path], None]) -> Path:
    """Return the cached directory `name`; if absent, have `make` fill it first.

    `make` gets an empty directory. When two processes want the same model, the
    second waits for the first. What `make` raises is passed on and leaves nothing.
    """
    from filelock import FileLock

    root = cache_dir()
    final = root / name
    if final.is_dir():
        return final
    root.mkdir(parents=True, exist_ok=True)
    with FileLock(root / f"{name}.lock"):
        if final.is_dir():
            return final
        unfinished = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=root))
        try:
            make(unfinished)
            unfinished.chmod(0o755)
            unfinished.rename(final)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
    return final
