"""The functional API: tasks are agents, and their order is learned."""

from __future__ import annotations

import asyncio
from typing import Any

from langgraph.func import entrypoint, task

from kvflow_sdk.likelihood import MIN_EVIDENCE


def workflow(recorder: Any) -> Any:
    """plan, then write twice at once, then check."""

    def named(name: str) -> Any:
        def body(text: str) -> str:
            recorder.note()
            return f"{text} {name}"

        body.__name__ = name
        return task(body)

    plan, write, check = map(named, ("plan", "write", "check"))

    @entrypoint()
    def work(text: str) -> str:
        text = plan(text).result()
        texts = [write(text) for _ in range(2)]
        return str(check("".join(each.result() for each in texts)).result())

    return work


def test_every_task_is_an_agent_inside_the_entry_point(recorder: Any) -> None:
    app = recorder.wrap(workflow(recorder))
    assert app.invoke("go") == "go plan writego plan write check"
    agents = [agent for agent, _ in recorder.seen]
    assert agents == ["plan", "write", "write", "check"]
    assert recorder.seen[0] == ("plan", {"work": 0, "plan": 0})


def test_an_async_entry_point_is_seen_as_well(recorder: Any) -> None:
    @task
    async def plan(text: str) -> str:
        recorder.note()
        return text

    @entrypoint()
    async def work(text: str) -> str:
        return await plan(text)

    app = recorder.wrap(work)
    assert asyncio.run(app.ainvoke("go")) == "go"
    assert recorder.seen == [("plan", {"work": 0, "plan": 0})]


def test_a_few_runs_show_what_comes_next(recorder: Any) -> None:
    app = recorder.wrap(workflow(recorder))
    for _ in range(MIN_EVIDENCE):
        app.invoke("go")
    recorder.seen.clear()
    app.invoke("go")
    seen = dict(recorder.seen)
    assert seen["plan"]["write"] == 1
    assert seen["plan"]["check"] == 2
    assert seen["write"]["check"] == 1
