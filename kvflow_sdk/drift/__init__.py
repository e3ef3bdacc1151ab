"""Prompt drift: what makes a prompt new that should be the same from call to call.

A prefix cache finds a prompt up to its first changed character; a timestamp at the
head makes the whole prompt new. Everything here works on the client's own text and
sends nothing anywhere. ::

    report = analyse(read_requests(open("requests.jsonl")))
    for agent in report.drifting: ...
"""

from .kinds import DriftKind, classify
from .report import AgentReport, Drift, DriftReport, Tokens, analyse
from .requests import PromptText, RecordedRequest, read_requests
from .shared import SharedText, shared_texts
from .spans import Difference, differences, first_difference

__all__ = [
    "AgentReport",
    "Difference",
    "Drift",
    "DriftKind",
    "DriftReport",
    "PromptText",
    "RecordedRequest",
    "SharedText",
    "Tokens",
    "analyse",
    "classify",
    "differences",
    "first_difference",
    "read_requests",
    "shared_texts",
]
