"""PEER without a framework: plan, execute, express, review, until the text is good.

::

    peer = PEER(PLANNER, EXECUTOR, EXPRESSER, REVIEWER, llm=call)
    answer = peer.run("How do rate cuts move bank stocks?")

    START ──► planner ──► executor ×N ──► expresser ──► reviewer ──► the end
                              ▲               ▲            │
                              └───────────────┴──jump_step─┘  below the threshold

The pattern is that of agentUniverse (arXiv 2407.06985), and so are the rules of its
review loop; its own template is tracked by `kvflow_integrations.agentuniverse`. Every
member is an agent of KVFlow, so a server with KVFlow knows who runs next; with any
other server, and without one, this is an ordinary program.
"""

from __future__ import annotations

from .pattern import PEER, Answer, Progress
from .roles import Review, Role, Task

__all__ = ["PEER", "Answer", "Progress", "Review", "Role", "Task"]
