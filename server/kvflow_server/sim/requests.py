"""What programs ask of the simulated server, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from kvflow_sdk.wire import StepUpdate

from .cache import Tag
from .tree import Node, Spans

__all__ = ["Answer", "Call", "Request"]


@dataclass(slots=True)
class Answer:
    """What the server says of a call when it has ended; tokens of the prompt."""

    arrived: float
    ended: float
    prompt: int
    device: int
    """Found on the device."""
    host: int
    """Loaded from host memory on demand."""

    @property
    def recomputed(self) -> int:
        return self.prompt - self.device - self.host


@dataclass(slots=True)
class Call:
    """One LLM call."""

    spans: Spans
    """Its prompt."""
    prompt: int
    """Tokens of it."""
    output: int
    """Tokens to generate."""
    answered: Callable[[Answer], None]
    text: Hashable | None = None
    """Names the answer, if later prompts contain it."""
    whole: Spans | None = None
    """Prompt and answer, if the answer ends the prompt's last span or is of several."""
    update: StepUpdate | None = None
    """Its metadata; None: the program does not speak KVFlow."""
    fixed: int = 0
    """Tokens of the prompt that are marked as fixed."""


class Request:
    """A call on the server; the fields that production code reads are SGLang's."""

    __slots__ = (
        "arrived",
        "call",
        "done",
        "host",
        "kvflow_skips",
        "last_node",
        "output_ids",
        "prefix",
        "rid",
        "tag",
    )

    def __init__(self, rid: str, call: Call, tag: Tag | None, arrived: float) -> None:
        self.rid = rid
        self.call = call
        self.tag = tag
        self.arrived = arrived
        self.kvflow_skips = 0
        self.last_node: Node | None = None
        """Locked while the request runs."""
        self.prefix = 0
        """Tokens of the prompt that were not computed."""
        self.host = 0
        """Those of them that were loaded for it."""
        self.done = 0
        """Tokens generated."""
        self.output_ids: tuple[int, ...] = ()
        """Of no length until there is an answer."""

    @property
    def left(self) -> int:
        """Tokens still to generate."""
        return self.call.output - self.done

    def finished(self) -> bool:
        return self.done >= self.call.output
