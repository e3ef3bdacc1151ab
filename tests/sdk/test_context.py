"""Who is calling, carried through threads, tasks and generators."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import pytest

import kvflow_sdk as kvflow
from kvflow_sdk.context import enter

RUN = kvflow.Run(None, client="c")


def who() -> str | None:
    call = kvflow.current()
    return call and call.agent


async def who_async() -> str | None:
    await asyncio.sleep(0)
    return who()


def test_nobody_is_calling_outside() -> None:
    assert kvflow.current() is None


def test_enter_holds_inside_the_block_and_not_after_it() -> None:
    with enter(RUN, "planner") as call:
        assert kvflow.current() is call
        assert call == kvflow.Call(RUN, "planner")
    assert kvflow.current() is None


def test_inner_agent_gives_way_to_the_outer_one() -> None:
    with enter(RUN, "outer"):
        with enter(RUN, "inner"):
            assert who() == "inner"
        assert who() == "outer"


def test_exception_leaves_no_trace() -> None:
    with pytest.raises(KeyError), enter(RUN, "planner"):
        raise KeyError
    assert kvflow.current() is None


def test_enter_carries_the_mark() -> None:
    mark = kvflow.FixedMark(message=0, chars=3)
    with enter(RUN, "planner", mark):
        call = kvflow.current()
    assert call is not None
    assert call.fixed == mark


def test_enter_works_with_async_with() -> None:
    async def main() -> str | None:
        async with enter(RUN, "planner"):
            return await who_async()

    assert asyncio.run(main()) == "planner"


def test_enter_decorates_functions_of_either_kind() -> None:
    assert enter(RUN, "a")(who)() == "a"
    assert asyncio.run(enter(RUN, "b")(who_async)()) == "b"
    assert who() is None


def test_tasks_do_not_see_each_other() -> None:
    async def one(name: str) -> str | None:
        with enter(RUN, name):
            for _ in range(3):
                await asyncio.sleep(0)
            return await asyncio.create_task(who_async())

    async def main() -> list[str | None]:
        return await asyncio.gather(*(one(f"a{i}") for i in range(5)))

    assert asyncio.run(main()) == [f"a{i}" for i in range(5)]


def test_thread_starts_without_and_bind_takes_it_along() -> None:
    with ThreadPoolExecutor(2) as pool, enter(RUN, "planner"):
        assert pool.submit(who).result() is None
        assert pool.submit(kvflow.bind(who)).result() == "planner"


def test_bound_function_runs_in_several_threads_at_once() -> None:
    def work(number: int) -> tuple[int, str | None]:
        return number, who()

    with enter(RUN, "planner"):
        bound = kvflow.bind(work)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(bound, range(8))) == [(n, "planner") for n in range(8)]


def test_bound_coroutine_function_runs_in_another_loop() -> None:
    with enter(RUN, "planner"):
        bound = kvflow.bind(who_async)
    assert asyncio.run(bound()) == "planner"


def test_generator_has_the_agent_inside_and_its_consumer_has_not() -> None:
    @enter(RUN, "planner")
    def words() -> Iterator[str | None]:
        yield who()
        yield who()

    assert [(inside, who()) for inside in words()] == [("planner", None)] * 2


def test_async_generator_does_not_leak_into_its_consumer() -> None:
    @enter(RUN, "planner")
    async def words() -> AsyncIterator[str | None]:
        yield who()
        yield await who_async()

    async def main() -> list[tuple[str | None, str | None]]:
        return [(inside, who()) async for inside in words()]

    assert asyncio.run(main()) == [("planner", None)] * 2


def test_async_generator_may_be_closed_by_another_task() -> None:
    closed_as = []

    @enter(RUN, "planner")
    async def words() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            closed_as.append(who())

    async def main() -> None:
        generator = words()
        assert await anext(generator) == 1
        await asyncio.create_task(generator.aclose())  # type: ignore[attr-defined]

    asyncio.run(main())
    assert closed_as == ["planner"]


def test_generator_passes_on_what_is_sent_and_thrown_and_returned() -> None:
    @enter(RUN, "planner")
    def echo() -> Iterator[object]:
        got = yield "ready"
        try:
            yield got
        except KeyError as error:
            yield error.args[0]
        return "done"

    generator = echo()
    assert next(generator) == "ready"
    assert generator.send("sent") == "sent"
    assert generator.throw(KeyError("thrown")) == "thrown"
    with pytest.raises(StopIteration) as stop:
        next(generator)
    assert stop.value.value == "done"


def test_async_generator_passes_on_what_is_sent_and_thrown() -> None:
    @enter(RUN, "planner")
    async def echo() -> AsyncIterator[object]:
        got = yield "ready"
        try:
            yield got
        except KeyError as error:
            yield error.args[0]

    async def main() -> list[object]:
        generator = echo()
        return [
            await anext(generator),
            await generator.asend("sent"),
            await generator.athrow(KeyError("thrown")),
            await anext(generator, "over"),
        ]

    assert asyncio.run(main()) == ["ready", "sent", "thrown", "over"]


def test_decorated_function_keeps_its_kind_and_name() -> None:
    def generator() -> Iterator[int]:
        yield 1

    async def agenerator() -> AsyncIterator[int]:
        yield 1

    around = enter(RUN, "planner")
    assert inspect.iscoroutinefunction(around(who_async))
    assert inspect.isgeneratorfunction(around(generator))
    assert inspect.isasyncgenfunction(around(agenerator))
    assert around(who).__name__ == "who"


def test_leaving_in_another_context_is_harmless() -> None:
    block = enter(RUN, "planner")
    copy_context().run(block.__enter__)
    block.__exit__(None, None, None)
    assert kvflow.current() is None
