"""Agents in SGLang's front-end language: every function is one, unchanged.

kvflow serve --model-path Qwen/Qwen2.5-7B-Instruct --port 30000
python examples/sgl_pipeline.py http://localhost:30000 "Is gold a hedge?"
"""

import sys
from pathlib import Path
from typing import Any

import sglang as sgl

import kvflow_sdk as kvflow

builder = kvflow.GraphBuilder().add_node("planner").add_entry("planner")
for expert in ("economist", "analyst"):
    builder.add_node(expert).add_edge("planner", expert)
builder.add_node("writer").add_barrier(["economist", "analyst"], "writer")
GRAPH = builder.build()


def chat(s: Any, agent: str, request: str) -> None:
    prompt = Path(__file__).parent / "prompts" / f"{agent}.md"
    s += sgl.system(prompt.read_text(encoding="utf-8")) + sgl.user(request)
    s += sgl.assistant(sgl.gen("text", max_tokens=64, temperature=0))


@sgl.function
def planner(s: Any, question: str) -> None:
    chat(s, "planner", question)


@sgl.function
def economist(s: Any, task: str) -> None:
    chat(s, "economist", task)


@sgl.function
def analyst(s: Any, task: str) -> None:
    chat(s, "analyst", task)


@sgl.function
def writer(s: Any, notes: str) -> None:
    chat(s, "writer", notes)


@kvflow.workflow(GRAPH)
def answer(question: str) -> str:
    task = f"{question}\n{planner.run(question)['text']}"
    # SGLang runs lazily: both experts are at work before one is read.
    experts = [economist.run(task), analyst.run(task)]
    notes = [expert["text"] for expert in experts]
    return str(writer.run("\n".join([question, *notes]))["text"])


if __name__ == "__main__":
    sgl.set_default_backend(kvflow.wrap(sgl.RuntimeEndpoint(sys.argv[1])))
    print(answer(sys.argv[2]))
