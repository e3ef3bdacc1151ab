"""A GraphFlow team in AutoGen: two notes in parallel, a text, a review that may loop.

kvflow serve --model-path Qwen/Qwen2.5-7B-Instruct --port 30000
python examples/autogen_graphflow.py http://localhost:30000/v1 "Is gold a hedge?"
"""

import asyncio
import sys
from pathlib import Path

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import BaseChatMessage
from autogen_agentchat.teams import DiGraphBuilder, GraphFlow
from autogen_core.models import ChatCompletionClient, ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient

import kvflow_sdk as kvflow

PROMPTS = Path(__file__).resolve().parent / "prompts"
NAMES = ("planner", "economist", "analyst", "writer", "reviewer", "editor")
INFO = ModelInfo(family="unknown", vision=False, function_calling=False,
                 json_output=False, structured_output=False)  # fmt: skip


def team(model: ChatCompletionClient) -> GraphFlow:
    agents = {
        name: AssistantAgent(
            name, model, system_message=(PROMPTS / f"{name}.md").read_text()
        )
        for name in NAMES
    }
    planner, economist, analyst, writer, reviewer, editor = agents.values()
    graph = DiGraphBuilder()
    for agent in agents.values():
        graph.add_node(agent)
    graph.add_edge(planner, economist).add_edge(planner, analyst)
    graph.add_edge(economist, writer, activation_group="notes")
    graph.add_edge(analyst, writer, activation_group="notes")
    graph.add_edge(writer, reviewer)
    graph.add_edge(reviewer, writer, "REVISE", activation_group="revision")
    graph.add_edge(reviewer, editor, lambda said: "REVISE" not in said.to_model_text())
    return GraphFlow(list(agents.values()), graph.build(), max_turns=12)


async def main(url: str, question: str) -> None:
    model = OpenAIChatCompletionClient(
        model="default", base_url=url, api_key="none", max_tokens=96, model_info=INFO
    )
    with kvflow.Client(url) as client:
        async for message in kvflow.wrap(team(model), client=client).run_stream(
            task=question
        ):
            if isinstance(message, BaseChatMessage):
                print(f"{message.source}: {message.to_text()}\n")
    await model.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
