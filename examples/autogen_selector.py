"""A SelectorGroupChat in AutoGen: the model decides who speaks next.

    kvflow serve --model-path Qwen/Qwen2.5-7B-Instruct --port 30000
    python examples/autogen_selector.py http://localhost:30000/v1 "Is gold a hedge?"

The selector is an agent like the others: named after the team, with a fixed prompt of
its own, which begins with what does not change.
"""

import asyncio
import sys
from pathlib import Path

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import SelectorGroupChat
from autogen_core.models import ChatCompletionClient, ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient

import kvflow_sdk as kvflow

PROMPTS = Path(__file__).resolve().parent / "prompts"
SELECTOR = """You lead a team that answers a question on the economy. Read what was
said so far, and name the one who shall speak next. A note comes before a text, and the
editor has the last word. Answer with one name and nothing else.
{roles}
{history}
Who of {participants} is next?"""
INFO = ModelInfo(family="unknown", vision=False, function_calling=False,
                 json_output=False, structured_output=False)  # fmt: skip


def team(model: ChatCompletionClient) -> SelectorGroupChat:
    agents = [
        AssistantAgent(name, model, system_message=(PROMPTS / f"{name}.md").read_text())
        for name in ("economist", "analyst", "writer", "editor")
    ]
    return SelectorGroupChat(
        list(agents), model, name="desk", selector_prompt=SELECTOR, max_turns=4
    )


async def main(url: str, question: str) -> None:
    model = OpenAIChatCompletionClient(
        model="default", base_url=url, api_key="none", max_tokens=96, model_info=INFO
    )
    with kvflow.Client(url) as client:
        result = await kvflow.wrap(team(model), client=client).run(task=question)
        for message in result.messages:
            print(f"{message.source}: {message.to_text()}\n")
    await model.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
