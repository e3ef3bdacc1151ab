"""A supervisor in LangGraph: it hands each question to the agent that should answer.

    kvflow serve --model-path Qwen/Qwen2.5-7B-Instruct --port 30000
    python examples/supervisor_desk.py http://localhost:30000/v1 "Is gold a hedge?"

Each agent is a loop of model and tools of its own, and one agent of KVFlow. Whom the
supervisor chooses is not known beforehand, but how often it chose whom before is.
"""

import sys
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from langgraph_supervisor import create_supervisor
from pydantic import SecretStr

import kvflow_sdk as kvflow

PROMPTS = Path(__file__).resolve().parent / "prompts"


def build(llm: BaseChatModel) -> Any:
    agents: list[Any] = [
        create_agent(
            llm, tools=[], name=name, system_prompt=(PROMPTS / f"{name}.md").read_text()
        )
        for name in ("economist", "analyst", "writer")
    ]
    desk = create_supervisor(
        agents,
        model=llm,
        prompt="You lead a desk. Hand the question to the one who should answer it.",
    )
    return desk.compile()


if __name__ == "__main__":
    url, question = sys.argv[1:]
    llm = ChatOpenAI(model="default", base_url=url, api_key=SecretStr("none"))
    app = kvflow.wrap(build(llm), client=kvflow.Client(url))
    state = app.invoke({"messages": [{"role": "user", "content": question}]})
    for message in state["messages"]:
        print(f"{message.name or message.type}: {message.content}\n")
