"""Agents in plain Python, with no graph: KVFlow learns who follows whom.

    kvflow serve --model-path Qwen/Qwen2.5-7B-Instruct --port 30000
    export KVFLOW_LEARNED=transitions.json
    python examples/plain_functions.py http://localhost:30000/v1 "Why gold?"

After three questions all steps are known; the file keeps them for the next start.
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import kvflow_sdk as kvflow


class Team:
    def __init__(self, llm: kvflow.OpenAI) -> None:
        self.llm = llm

    def chat(self, prompt: str, request: str) -> str:
        path = Path(__file__).parent / "prompts" / f"{prompt}.md"
        fixed = path.read_text(encoding="utf-8")
        messages: Any = [{"role": "system", "content": fixed}]
        messages.append({"role": "user", "content": request})
        chat = self.llm.chat.completions.create(
            model="default", messages=messages, max_completion_tokens=64
        )
        return chat.choices[0].message.content or ""

    @kvflow.agent("planner")
    def plan(self, question: str) -> list[str]:
        return self.chat("planner", question).splitlines()[:3] or [question]

    @kvflow.agent("analyst")
    def analyse(self, task: str) -> str:
        return self.chat("analyst", task)

    @kvflow.agent("writer")
    def write(self, notes: str) -> str:
        return self.chat("writer", notes)

    @kvflow.workflow()
    def answer(self, question: str) -> str:
        with ThreadPoolExecutor(3) as pool:
            # Threads have no context of their own: `bind` takes it along.
            notes = pool.map(kvflow.bind(self.analyse), self.plan(question))
            return self.write("\n".join([question, *notes]))


def main(url: str, questions: list[str]) -> None:
    with kvflow.OpenAI(base_url=url, api_key="none") as llm:
        for question in questions:
            print(Team(llm).answer(question))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
