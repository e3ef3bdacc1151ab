"""What a machine with a model takes for a prefill, a decode step and a copy.

The times are linear in what a batch holds, which is what the field's own models come
down to: prefill is bound by arithmetic, decode by reading the weights and the KV cache.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Costs", "load_costs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """One machine with one model. Times in seconds, rates in bytes per second."""

    name: str
    layers: int
    kv_bytes: int
    """Of one token, all layers."""
    bus_bytes_per_s: float
    """Between host memory and the device, each way."""
    bus_latency_s: float = 0.0
    """Of one copy."""
    prefill_s: float = 0.0
    """Of a batch, whatever is in it, beside what follows."""
    prefill_least_s: float = 0.0
    """What a batch computes takes at least this: one pass over the weights."""
    prefill_token_s: float
    prefill_attention_s: float = 0.0
    """Of a new token, for each token before it."""
    decode_s: float
    """Of a step, whatever the batch."""
    decode_request_s: float = 0.0
    """Of a request in it."""
    decode_token_s: float = 0.0
    """Of a token of its context."""
    call_s: float = 0.0
    """From an answer until the program's next call has reached the server."""
    emulated: bool = False
    source: str = ""
    """Where the numbers are from."""

    def __post_init__(self) -> None:
        for name in ("layers", "kv_bytes", "bus_bytes_per_s", "prefill_token_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}: above 0, not {getattr(self, name)}")
        for item in dataclasses.fields(self):
            if item.name.endswith("_s") and getattr(self, item.name) < 0:
                raise ValueError(f"{item.name}: at least 0")

    def copy_seconds(self, tokens: int) -> float:
        """Of one copy between host memory and the device."""
        return self.bus_latency_s + tokens * self.kv_bytes / self.bus_bytes_per_s

    def prefill_seconds(self, batch: list[tuple[int, int]]) -> float:
        """Of a batch, by request (tokens before, new tokens)."""
        new = sum(tokens for _, tokens in batch)
        pairs = sum(t * (before + t / 2) for before, t in batch)
        compute = self.prefill_token_s * new + self.prefill_attention_s * pairs
        return self.prefill_s + max(self.prefill_least_s, compute)

    def decode_seconds(self, requests: int, context: float) -> float:
        """Of one step of so many requests with `context` tokens before them in all."""
        return (
            self.decode_s
            + self.decode_request_s * requests
            + self.decode_token_s * context
        )

    def hit_seconds(self, fixed: int, new: int, output: int) -> float:
        """Of a call that is alone, whose `fixed` prompt is on the device: the pass over
        `new` tokens yields the first of the `output`, a step each of the others."""
        first = self.prefill_seconds([(fixed, new)])
        context = fixed + new + output / 2
        return first + (output - 1) * self.decode_seconds(1, context)

    def changed(self, **values: object) -> Costs:
        """The same machine but for `values`. Raises `ValueError` naming a wrong one."""
        known = {item.name for item in dataclasses.fields(self)}
        for name in values:
            if name not in known:
                raise ValueError(f"{name!r} is no cost, use {', '.join(sorted(known))}")
        return dataclasses.replace(self, **values)  # type: ignore[arg-type]

    def to_dict(self) -> dict[str, object]:
        return dataclasses.asdict(self)


def load_costs(path: Path) -> Costs:
    """A machine from a JSON file with the fields of `Costs`.

    Raises `ValueError` that says what is wrong with it.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        known = {item.name for item in dataclasses.fields(Costs)}
        if not isinstance(values, dict) or set(values) - known:
            raise ValueError(f"an object with some of {', '.join(sorted(known))}")
        named: dict[str, Any] = {"name": path.stem, **values}
        return Costs(**named)
    except (OSError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error
