"""Names that are unique and no secret."""

from __future__ import annotations

import itertools
import os
import secrets

__all__ = ["message_id"]

_PREFIX = secrets.token_hex(4)
_numbers = itertools.count()


def message_id() -> str:
    """Another one at each call, in every process.

    Not from the system's source of randomness: asking that may cost more than all
    else that a call costs. A client's id, which is a secret, comes from there.
    """
    return f"{_PREFIX}-{os.getpid():x}-{next(_numbers):x}"
