"""A research team of ten agents that answers a question about money, in LangGraph.

::

    planner ─┬─► economist ─┬─► strategist ─► risk_officer ─► writer ◄─┐
             └─► analyst  ──┘                                   │      │ REVISE,
                                                                ▼      │ once
              editor ◄─ explainer ◄─ compliance ◄── ACCEPT ── reviewer ┘

The strategist waits for both notes (a barrier), the reviewer may send the text back
(a conditional loop). An ordinary LangGraph program: the nodes know nothing of KVFlow,
and the one line that does is in `main`.

    python examples/research_team.py http://127.0.0.1:30000/v1 "What drives gold?"
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage, SystemMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph

__all__ = ["AGENTS", "READS", "TASKS", "State", "build", "prompt", "verdict"]

READS: dict[str, tuple[str, ...]] = {
    "planner": (),
    "economist": ("planner",),
    "analyst": ("planner",),
    "strategist": ("economist", "analyst"),
    "risk_officer": ("strategist",),
    "writer": ("strategist", "risk_officer", "reviewer"),
    "reviewer": ("writer",),
    "compliance": ("writer",),
    "explainer": ("writer",),
    "editor": ("writer", "compliance", "explainer"),
}
"""Whose notes each agent is shown, besides the question."""

TASKS = {
    "planner": "List the facts that we need to find out.",
    "economist": "Explain the mechanism in the economy that matters here.",
    "analyst": "Explain how the business earns money and where that is going.",
    "strategist": "Combine the two notes into one view with a horizon.",
    "risk_officer": "Describe the main risk and how it leads to a loss.",
    "writer": "Explain to our reader what follows from this.",
    "reviewer": "Say whether to accept or to revise this text, and why.",
    "compliance": "Name the words that have to be changed, and the reason.",
    "explainer": "Explain the hardest idea with a picture from daily life.",
    "editor": "Print the final text.",
}
"""What each agent is asked for, after the notes and the question."""

AGENTS = tuple(READS)


def _merge(left: dict[str, str], right: dict[str, str]) -> dict[str, str]:
    return left | right


class State(TypedDict):
    question: str
    notes: Annotated[dict[str, str], _merge]
    """The latest text of each agent."""
    reviews: int


def prompt(agent: str) -> str:
    """The fixed prompt of an agent: its role, its rules and its examples."""
    path = Path(__file__).parent / "prompts" / f"{agent}.md"
    return path.read_text(encoding="utf-8").strip()


def verdict(state: State) -> str:
    """Where the reviewer sends the text: back once at most."""
    text = state["notes"]["reviewer"].strip().upper()
    revise = text.startswith("REVISE") and state["reviews"] < 2
    return "writer" if revise else "compliance"


def work(agent: str, llm: BaseChatModel, state: State) -> dict[str, Any]:
    """What every node does: role, question and notes go in, a note comes out."""
    notes = [
        f"{name}: {state['notes'][name]}"
        for name in READS[agent]
        if name in state["notes"]
    ]
    task = "\n".join([*notes, "", f"{state['question']} {TASKS[agent]}"]).strip()
    answer = llm.invoke([SystemMessage(prompt(agent)), HumanMessage(task)])
    update: dict[str, Any] = {"notes": {agent: str(answer.content)}}
    if agent == "reviewer":
        update["reviews"] = state["reviews"] + 1
    return update


def build(llm: BaseChatModel) -> CompiledStateGraph[State, None, State, State]:
    """The compiled graph; every agent calls `llm`."""
    graph = StateGraph(State)
    for agent in AGENTS:
        graph.add_node(agent, partial(work, agent, llm))
    graph.add_edge(START, "planner")
    graph.add_edge("planner", "economist")
    graph.add_edge("planner", "analyst")
    graph.add_edge(["economist", "analyst"], "strategist")
    graph.add_edge("strategist", "risk_officer")
    graph.add_edge("risk_officer", "writer")
    graph.add_edge("writer", "reviewer")
    graph.add_conditional_edges("reviewer", verdict, ["writer", "compliance"])
    graph.add_edge("compliance", "explainer")
    graph.add_edge("explainer", "editor")
    graph.add_edge("editor", END)
    return graph.compile()


def main() -> None:
    from langchain_openai import ChatOpenAI
    from pydantic import SecretStr

    import kvflow_sdk as kvflow

    url, question = sys.argv[1:]
    llm = ChatOpenAI(
        model="default",
        base_url=url,
        api_key=SecretStr("none"),
        temperature=0,
        max_completion_tokens=64,
    )
    app = kvflow.wrap(build(llm))
    state = app.invoke({"question": question, "notes": {}, "reviews": 0})
    for agent, text in state["notes"].items():
        sys.stdout.write(f"{agent}: {text}\n\n")


if __name__ == "__main__":
    main()
