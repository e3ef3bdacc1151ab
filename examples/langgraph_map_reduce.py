"""Map-reduce in LangGraph: one analyst per topic, as many as the planner names.

    kvflow serve --model-path Qwen/Qwen2.5-7B-Instruct --port 30000
    python examples/langgraph_map_reduce.py http://localhost:30000/v1 "Is gold a hedge?"

How many analysts run is decided in the run (`Send`). They are one agent with one fixed
prompt, which stays on the device until the last of them is done.
"""

import operator
import sys
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import START, StateGraph
from langgraph.types import Send
from pydantic import SecretStr

import kvflow_sdk as kvflow

PROMPTS = Path(__file__).resolve().parent / "prompts"


class State(TypedDict):
    text: str
    notes: Annotated[list[str], operator.add]


def build(llm: BaseChatModel) -> Any:
    def ask(agent: str, text: str) -> str:
        prompt = (PROMPTS / f"{agent}.md").read_text()
        return str(llm.invoke([SystemMessage(prompt), HumanMessage(text)]).content)

    def share(state: State) -> list[Send]:
        topics = [line for line in state["text"].splitlines() if line.strip()]
        return [Send("analyst", {"text": topic}) for topic in topics[:8]]

    graph = StateGraph(State)
    graph.add_node("planner", lambda state: {"text": ask("planner", state["text"])})
    graph.add_node("analyst", lambda state: {"notes": [ask("analyst", state["text"])]})
    graph.add_node("writer", lambda s: {"text": ask("writer", "\n".join(s["notes"]))})
    graph.add_edge(START, "planner")
    graph.add_conditional_edges("planner", share, ["analyst"])
    graph.add_edge("analyst", "writer")
    return graph.compile()


if __name__ == "__main__":
    url, question = sys.argv[1:]
    llm = ChatOpenAI(model="default", base_url=url, api_key=SecretStr("none"))
    app = kvflow.wrap(build(llm), client=kvflow.Client(url))
    print(app.invoke({"text": question, "notes": []})["text"])
