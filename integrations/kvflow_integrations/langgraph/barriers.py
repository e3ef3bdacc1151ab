"""What has arrived at barriers and deferred nodes, read from LangGraph's channels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvflow_sdk.graph import AgentStepGraph

from .topology import Level

__all__ = ["arrivals"]


def arrivals(
    graph: AgentStepGraph, level: Level, channels: Mapping[str, Any]
) -> Iterator[tuple[int, frozenset[str]]]:
    """What LangGraph's channels say of the barriers of `level`, by number of a group.

    They are part of a checkpoint, so this holds in another process, too.
    """
    for barrier in level.barriers:
        seen = getattr(channels.get(barrier.channel), "seen", None)
        if seen is None:
            continue
        for number in graph.triggers(barrier.target):
            sources = graph.groups[number].sources
            members = barrier.members.values()
            if not all(any(g <= sources for g in groups) for groups in members):
                continue
            arrived = [
                group
                for name in seen
                for group in barrier.members.get(name, [])
                if group <= sources
            ]
            yield number, frozenset[str]().union(*arrived)
    for node in level.deferred:
        channel = channels.get(f"branch:to:{node}")
        checkpoint = getattr(channel, "checkpoint", None)
        # A value that is set already: it waits only for everything else.
        if checkpoint is not None and isinstance(checkpoint(), tuple):
            for number in graph.triggers(level.agent(node))[:1]:
                yield number, graph.groups[number].sources
