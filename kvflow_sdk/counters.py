"""What happened, counted; what failed, logged once."""

from __future__ import annotations

import logging
import threading

__all__ = ["Counters"]

log = logging.getLogger("kvflow")


class Counters:
    """What happened, by name; safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}

    def add(self, name: str, count: int = 1) -> None:
        with self._lock:
            self._counts[name] = self._counts.get(name, 0) + count

    def __getitem__(self, name: str) -> int:
        return self._counts.get(name, 0)

    def as_dict(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)

    def error(self, what: str, error: BaseException) -> None:
        """Count a failure of KVFlow's own code, and log the first of its kind."""
        name = f"error.{what}"
        if not self[name]:
            log.warning("kvflow: %s failed, calls go on without it: %r", what, error)
        self.add(name)
