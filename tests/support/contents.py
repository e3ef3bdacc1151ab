"""What KV slots hold in place of a model's numbers, and the bus that carries it."""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch

__all__ = ["LAYERS", "NEVER_S", "Road", "check_contents", "checksums"]

LAYERS = 2

NEVER_S = 30.0
"""A copy that has not been made by then never will be."""


def checksums(tokens: Sequence[int]) -> torch.Tensor:
    """What the KV of each token must hold: it depends on all tokens before it, too."""
    return _checksums(tuple(tokens))


@lru_cache(maxsize=1 << 14)
def _checksums(tokens: tuple[int, ...]) -> torch.Tensor:
    value, found = 0, []
    for token in tokens:
        value = zlib.crc32(token.to_bytes(4, "little"), value)
        found.append(value & 0xFFFFF)
    return torch.tensor(found, dtype=torch.float32)


def check_contents(root: Any, device: Any, host: Any) -> None:
    """Whatever the tree below `root` says is in a pool must be there."""
    pools: dict[str, list[tuple[Any, torch.Tensor]]] = {"device": [], "host": []}
    below: list[tuple[Any, tuple[int, ...]]] = [(root, ())]
    while below:
        node, tokens = below.pop()
        for child in node.children.values():
            path = (*tokens, *child.key.token_ids)
            below.append((child, path))
            values = checksums(path)[len(tokens) :]
            data = child.component_data[0]
            if data.value is not None and child.kvflow.load is None:
                pools["device"].append((data.value, values))
            if data.host_value is not None and child.write_through_pending_id is None:
                pools["host"].append((data.host_value, values))
    for name, pool in (("device", device), ("host", host)):
        if pools[name]:
            slots = torch.cat([slot for slot, _ in pools[name]]).long()
            values = torch.cat([value for _, value in pools[name]])
            for layer in range(LAYERS):
                keys = pool.k_buffer[layer][slots][:, 0, 0]
                wrong = slots[keys != values + layer].tolist()
                assert not wrong, f"layer {layer} of slots {wrong} is not on the {name}"


class Road:
    """One direction of the bus: a copy is made when it is let through."""

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._granted = 0
        self._waiting = 0
        self._open = False

    def gate(self) -> None:
        """What a copy passes on its stream's thread."""
        with self._change:
            self._waiting += 1
            self._change.notify_all()
            self._change.wait_for(lambda: self._granted or self._open)
            self._granted -= not self._open
            self._waiting -= 1
            self._change.notify_all()

    def let_through(self, done: Callable[[], bool]) -> None:
        """Let one copy through, if `done` is not yet; until it has been made."""
        with self._change:
            self._change.wait_for(lambda: self._waiting or done(), timeout=NEVER_S)
            if not self._waiting:
                return
            self._granted += 1
            self._change.notify_all()
        deadline = time.monotonic() + NEVER_S
        while not done():
            with self._change:
                if not self._granted and self._waiting:
                    return
            assert time.monotonic() < deadline, "a copy is stuck"
            time.sleep(0)

    def nudge(self) -> None:
        """Let a copy through if one waits."""
        with self._change:
            if self._waiting and not self._granted:
                self._granted += 1
                self._change.notify_all()
        time.sleep(0)

    def open(self) -> None:
        """From now on nothing waits here."""
        with self._change:
            self._open = True
            self._change.notify_all()
