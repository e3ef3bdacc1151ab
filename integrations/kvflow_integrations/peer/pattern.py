"""The pattern itself: the order of the members, the review loop, and its graph."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from kvflow_sdk.agent import step, workflow
from kvflow_sdk.client import Client
from kvflow_sdk.context import bind, current_scope, fixed
from kvflow_sdk.graph import START, AgentStepGraph, GraphBuilder
from kvflow_sdk.prompt import Prompt

from .roles import ROLES, Review, Role, Task, read_plan, read_review

__all__ = ["PEER", "Answer", "Member", "Model", "Progress"]

Model = Callable[[Prompt], str | Awaitable[str]]
"""Calls the model on ``prompt.messages``; the mark needs no attention."""
Member = Role | Callable[[Task], Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a run came to."""

    text: str
    score: int | None
    """Of the last review; None without a reviewer."""
    rounds: int
    plan: tuple[str, ...]
    findings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Progress:
    """One member has done its part, the executor all of its sub-tasks."""

    role: str
    said: tuple[Any, ...]
    round: int


@dataclass(slots=True)
class _Stage:
    """The calls of one member that may run at the same time."""

    role: str
    tasks: list[Task]
    said: list[Any] = field(default_factory=list)


class PEER:
    """Plan, execute, express, review; any member may be left out (None).

    `llm` calls the model for members that are a `Role`; it and members that are
    functions may be async, then use `arun` or `astream`. A draft with a score under
    `threshold` goes back to `jump_step` up to `retries` times (agentUniverse's
    ``retry_count`` counts rounds: one more). At most `max_subtasks` of a plan are
    executed, `workers` at a time. `name` prefixes the agents, for programs with several
    teams; `client` is whose runs these are. What a member raises comes through. Raises
    `ValueError` for parts that do not fit together.
    """

    def __init__(
        self,
        planner: Member | None = None,
        executor: Member | None = None,
        expresser: Member | None = None,
        reviewer: Member | None = None,
        *,
        llm: Model | None = None,
        threshold: int = 60,
        retries: int = 1,
        jump_step: str = "expresser",
        workers: int = 10,
        max_subtasks: int = 10,
        name: str | None = None,
        client: Client | None = None,
    ) -> None:
        given = zip(ROLES, (planner, executor, expresser, reviewer), strict=True)
        self.members = {role: member for role, member in given if member is not None}
        self.threshold = threshold
        self.retries = retries
        self.jump_step = jump_step
        self.workers = workers
        self.max_subtasks = max_subtasks
        self._llm = llm
        self._client = client
        self._agents = {r: f"{name}|{r}" if name else r for r in self.members}
        self._check()
        self.graph = self._graph()

    def _check(self) -> None:
        roles = [r for r, member in self.members.items() if isinstance(member, Role)]
        if roles and self._llm is None:
            raise ValueError(f"llm: {', '.join(roles)} need one to call the model")
        if not self.members:
            raise ValueError("a team needs at least one member")
        if "reviewer" in self.members and self.jump_step not in self.members:
            raise ValueError(
                f"jump_step: one of {', '.join(self.members)}, not {self.jump_step!r}"
            )
        if self.retries < 0 or self.workers < 1 or self.max_subtasks < 1:
            raise ValueError("retries: 0 or more; workers and max_subtasks: 1 or more")

    def run(self, question: str) -> Answer:
        """One answer to `question`; executors run in threads."""
        *_, answer = self.stream(question)
        assert isinstance(answer, Answer)
        return answer

    async def arun(self, question: str) -> Answer:
        """As `run`; members that are not async run in threads."""
        async for item in self.astream(question):
            answer = item
        assert isinstance(answer, Answer)
        return answer

    def stream(self, question: str) -> Iterator[Progress | Answer]:
        """What each member said, when it is done; the answer comes last."""
        return workflow(self.graph, client=self._client)(self._stream)(question)

    def astream(self, question: str) -> AsyncIterator[Progress | Answer]:
        """As `stream`, for ``async for``."""
        return workflow(self.graph, client=self._client)(self._astream)(question)

    def _graph(self) -> AgentStepGraph:
        builder = GraphBuilder()
        previous = START
        for agent in self._agents.values():
            builder.add_node(agent).add_edge(previous, agent)
            previous = agent
        if self.retries and "reviewer" in self.members:
            target = self._agents[self.jump_step]
            builder.add_edge(self._agents["reviewer"], target, conditional=True)
        return builder.build()

    def _flow(self, question: str) -> Iterator[_Stage | Answer]:
        """The stages one after another; whoever drives it fills in what was said."""
        task, review = Task(question), None
        rounds = 1 + (self.retries if "reviewer" in self.members else 0)
        for number in range(1, rounds + 1):
            task = replace(task, round=number)
            for role in self._roles(again=number > 1):
                stage = _Stage(role, self._tasks(role, task))
                yield stage
                if role == "reviewer":
                    review = read_review(stage.said[0])
                    task = replace(task, advice=review.advice)
                else:
                    task = self._learnt(task, stage)
            if review is None or review.score >= self.threshold:
                break
        yield self._answer(task, review)

    def _roles(self, *, again: bool) -> list[str]:
        first = ROLES.index(self.jump_step) if again else 0
        return [role for role in ROLES[first:] if role in self.members]

    def _tasks(self, role: str, task: Task) -> list[Task]:
        if role != "executor":
            return [task]
        return [replace(task, subtask=part) for part in task.plan or (task.question,)]

    def _learnt(self, task: Task, stage: _Stage) -> Task:
        if stage.role == "planner":
            return replace(task, plan=read_plan(stage.said[0], self.max_subtasks))
        said = tuple(str(text) for text in stage.said)
        if stage.role == "expresser":
            return replace(task, draft=said[0])
        draft = task.draft if "expresser" in self.members else "\n\n".join(said)
        return replace(task, findings=said, draft=draft)

    def _answer(self, task: Task, review: Review | None) -> Answer:
        score = None if review is None else review.score
        return Answer(task.draft, score, task.round, task.plan, task.findings)

    def _stream(self, question: str) -> Iterator[Progress | Answer]:
        for stage in self._flow(question):
            if isinstance(stage, Answer):
                yield stage
                return
            self._announce(stage)
            if len(stage.tasks) == 1:
                stage.said = [self._ask(stage.role, stage.tasks[0])]
            else:
                stage.said = self._ask_all(stage)
            yield Progress(stage.role, tuple(stage.said), stage.tasks[0].round)

    def _ask_all(self, stage: _Stage) -> list[Any]:
        with ThreadPoolExecutor(min(self.workers, len(stage.tasks))) as pool:
            # Worker threads have no context of their own.
            ask = bind(self._ask)
            futures = [pool.submit(ask, stage.role, task) for task in stage.tasks]
            try:
                return [future.result() for future in futures]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _ask(self, role: str, task: Task) -> Any:
        member = self.members[role]
        with step(self._agents[role], client=self._client):
            if isinstance(member, Role):
                prompt = member.prompt(task)
                with fixed(prompt.fixed):
                    said = self._model(prompt)
            else:
                said = member(task)
        if inspect.isawaitable(said):
            if inspect.iscoroutine(said):
                said.close()
            raise TypeError(f"{role}: is async; use arun or astream")
        return said

    def _model(self, prompt: Prompt) -> Any:
        assert self._llm is not None
        return self._llm(prompt)

    async def _astream(self, question: str) -> AsyncIterator[Progress | Answer]:
        for stage in self._flow(question):
            if isinstance(stage, Answer):
                yield stage
                return
            self._announce(stage)
            if len(stage.tasks) == 1:
                stage.said = [await self._aask(stage.role, stage.tasks[0])]
            else:
                stage.said = await self._aask_all(stage)
            yield Progress(stage.role, tuple(stage.said), stage.tasks[0].round)

    async def _aask_all(self, stage: _Stage) -> list[Any]:
        free = asyncio.Semaphore(self.workers)

        async def ask(task: Task) -> Any:
            async with free:
                return await self._aask(stage.role, task)

        asked = [asyncio.create_task(ask(task)) for task in stage.tasks]
        try:
            return await asyncio.gather(*asked)
        except BaseException:
            for one in asked:
                one.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
            raise

    async def _aask(self, role: str, task: Task) -> Any:
        member = self.members[role]
        with step(self._agents[role], client=self._client):
            if not isinstance(member, Role):
                return await _awaited(member, task)
            prompt = member.prompt(task)
            with fixed(prompt.fixed):
                return await _awaited(self._model, prompt, self._llm)

    def _announce(self, stage: _Stage) -> None:
        """How many calls are coming is known before the first of them starts."""
        run = current_scope().run
        # Another run is the caller's: KVFlow is off for this client.
        if run is not None and run.graph is self.graph:
            with suppress(Exception):
                run.superstep(*[self._agents[stage.role]] * len(stage.tasks))


async def _awaited(function: Callable[[Any], Any], given: Any, kind: Any = None) -> Any:
    """What `function` comes to; in a thread unless it, or `kind`, is async."""
    target = kind or function
    call = getattr(target, "__call__", None)  # noqa: B004 - an object may be async, too
    if inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(call):
        return await function(given)
    said = await asyncio.to_thread(function, given)
    return await said if inspect.isawaitable(said) else said
