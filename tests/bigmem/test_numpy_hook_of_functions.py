"""`use` as a decorator: functions, coroutines and generators whose own arrays are served."""

import asyncio
import contextlib
import threading
import types
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy_memory import Counting

import bigmem

pytestmark = pytest.mark.usefixtures("uninstalled")

MIB = 1 << 20


def make(size: int) -> None:
    """An array of that many MiB, by which it is told from others."""
    np.empty(size * MIB, np.uint8)


def sizes(allocator: Counting) -> list[int]:
    return [size // MIB for size in allocator.sizes]


def test_each_call_of_a_function_is_served() -> None:
    allocator = Counting()

    @bigmem.use(allocator, min_bytes="2MiB")
    def work(size: int, *, factor: int = 1) -> int:
        make(1)
        make(size * factor)
        return size

    assert (work(2), make(9), work(3, factor=2)) == (2, None, 3)
    with pytest.raises(TypeError):
        work()  # type: ignore[call-arg]
    make(9)
    assert sizes(allocator) == [2, 6]


def test_a_coroutine_is_served_from_start_to_end_and_other_tasks_are_not() -> None:
    allocator = Counting()

    @bigmem.use(allocator)
    async def work() -> str:
        make(1)
        await asyncio.sleep(0)
        make(2)
        return "done"

    async def beside() -> None:
        make(9)
        await asyncio.sleep(0)
        make(9)

    async def main() -> None:
        assert (await asyncio.gather(work(), beside(), work()))[::2] == ["done", "done"]
        assert await work() == "done"
        make(9)

    asyncio.run(main())
    assert sorted(sizes(allocator)) == [1, 1, 1, 2, 2, 2]


def test_a_generator_that_is_awaited_stays_one() -> None:
    allocator = Counting()

    @bigmem.use(allocator)
    @types.coroutine
    def work() -> Iterator[None]:
        make(1)
        yield
        make(2)

    async def main() -> None:
        await work()
        make(9)

    asyncio.run(main())
    assert sizes(allocator) == [1, 2]


def test_the_steps_of_a_generator_are_served_and_its_consumer_is_not() -> None:
    allocator, consumers = Counting(), Counting()

    @bigmem.use(allocator)
    def steps() -> Iterator[int]:
        try:
            make(1)
            received = yield 10
            make(received)
            with contextlib.suppress(KeyError):
                yield 20
            make(3)
            yield 30
        finally:
            make(4)

    with bigmem.use(consumers):
        generator: Any = steps()
        make(9)
        assert next(generator) == 10
        make(9)
        assert generator.send(2) == 20
        assert generator.throw(KeyError) == 30
        make(9)
        generator.close()
        make(9)
    make(9)
    assert sizes(allocator) == [1, 2, 3, 4]
    assert sizes(consumers) == [9] * 4


def test_a_generator_is_served_in_whichever_thread_takes_the_step() -> None:
    allocator = Counting()

    @bigmem.use(allocator)
    def steps() -> Iterator[None]:
        make(1)
        yield
        make(2)

    def finish() -> None:
        assert list(generator) == []
        make(9)

    generator = steps()
    next(generator)
    thread = threading.Thread(target=finish)
    thread.start()
    thread.join()
    make(9)
    assert sizes(allocator) == [1, 2]


def test_the_steps_of_an_async_generator_are_served_and_its_consumer_is_not() -> None:
    allocator = Counting()

    @bigmem.use(allocator)
    async def steps() -> AsyncIterator[int]:
        try:
            make(1)
            await asyncio.sleep(0)
            make(2)
            yield 10
            make(3)
            yield 20
        finally:
            await asyncio.sleep(0)
            make(4)

    async def main() -> None:
        generator: Any = steps()
        make(9)
        assert await anext(generator) == 10
        make(9)
        assert await anext(generator) == 20
        await generator.aclose()
        make(9)
        async for _ in steps():
            make(9)

    asyncio.run(main())
    assert sizes(allocator) == [1, 2, 3, 4] * 2


def test_decorators_nest_as_blocks_do() -> None:
    outer, inner = Counting(), Counting()

    @bigmem.use(outer)
    @bigmem.use(inner, min_bytes="4MiB")
    def steps() -> Iterator[None]:
        make(5)
        make(2)
        yield

    for _ in steps():
        make(9)
    assert (sizes(inner), sizes(outer)) == ([5], [2])


def test_a_function_may_call_itself() -> None:
    allocator = Counting()

    @bigmem.use(allocator)
    def work(depth: int) -> None:
        if depth > 1:
            work(depth - 1)
        make(depth)

    work(3)
    make(9)
    assert sizes(allocator) == [1, 2, 3]


@pytest.mark.parametrize("wrong", [int, staticmethod(make), 3])
def test_what_cannot_be_decorated_is_refused(wrong: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match="expected a function or method"):
        bigmem.use(Counting())(wrong)
