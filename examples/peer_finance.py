"""PEER on financial questions: plan, execute, express, review, until it is good.

    kvflow serve --model-path Qwen/Qwen2.5-7B-Instruct --port 30000
    python examples/peer_finance.py http://localhost:30000/v1 3

Questions: those of agentUniverse's financial data set where it lies beside the project
(../shared/data/FinQA.jsonl), a few of our own otherwise.
"""

import json
import sys
from pathlib import Path
from typing import Any

import kvflow_sdk as kvflow
from kvflow_integrations.peer import PEER, Role

HERE = Path(__file__).resolve().parent
FINQA = HERE.parent.parent / "shared" / "data" / "FinQA.jsonl"
REQUESTS = {
    "planner": "Question: {question}\nSub-questions:",
    "executor": "Sub-question: {subtask}\nNote:",
    "expresser": "Question: {question}\nNotes:\n{findings}\n"
    "Before: {draft}\nReview: {advice}\nAnswer:",
    "reviewer": "Question: {question}\nAnswer: {draft}\nScore:",
}


def questions(count: int) -> list[str]:
    file = FINQA if FINQA.exists() else HERE / "questions.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["text"] for line in lines[:count]]


def fixed_prompt(role: str) -> str:
    return (HERE / "prompts" / "peer" / f"{role}.md").read_text(encoding="utf-8")


def team(llm: kvflow.OpenAI) -> PEER:
    def ask(prompt: kvflow.Prompt) -> str:
        messages: Any = prompt.messages
        chat = llm.chat.completions.create(
            model="default", messages=messages, max_completion_tokens=128, temperature=0
        )
        return chat.choices[0].message.content or ""

    roles = [Role(fixed_prompt(role), REQUESTS[role]) for role in REQUESTS]
    return PEER(*roles, llm=ask)


def main(url: str, count: int) -> None:
    with kvflow.OpenAI(base_url=url, api_key="none") as llm:
        for question in questions(count):
            answer = team(llm).run(question)
            print(f"{question}\n{answer.text}\n(score {answer.score})\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
