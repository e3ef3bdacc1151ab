"""Names that are unique and no secret."""

from __future__ import annotations

import itertools
import os
import secrets

__all__ = ["message_id"]

_START = secrets.token_hex(4)
_prefix = f"{_START}-{os.getpid():x}-".encode()
_numbers = itertools.count()


def message_id() -> bytes:
    """Another one at each call, in every process; ASCII.

    Not from the system's source of randomness: asking that may cost more than all
    else that a call costs. A client's id, which is a secret, comes from there.
    """
    return b"%b%x" % (_prefix, next(_numbers))


def _after_fork() -> None:
    global _prefix
    _prefix = f"{_START}-{os.getpid():x}-".encode()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
