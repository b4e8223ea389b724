"""Functions, methods, coroutines and generators whose calls are layers."""

import asyncio
import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_times import Clock, flat

import bigmem


def test_each_call_of_a_function_counts(clock: Clock, recorded: Any) -> None:
    @bigmem.layer("work")
    def work(seconds: float, *, factor: int = 1) -> float:
        clock.tick(seconds * factor)
        return seconds

    assert [work(2), work(3, factor=2)] == [2, 3]
    assert flat(recorded().layers) == {("work",): (2, 8, 0)}


def test_methods_of_every_kind(clock: Clock, recorded: Any) -> None:
    class Thing:
        @bigmem.layer("plain")
        def plain(self) -> object:
            return self

        @classmethod
        @bigmem.layer("class")
        def of_class(cls) -> object:
            return cls

        @staticmethod
        @bigmem.layer("static")
        def static(value: int) -> object:
            return value

        @property
        @bigmem.layer("property")
        def attribute(self) -> object:
            return self

    thing = Thing()
    assert thing.plain() is thing.attribute is thing
    assert thing.of_class() is Thing
    assert (thing.static(3), Thing.static(4)) == (3, 4)
    assert [one.name for one in recorded().layers] == ["plain", "property", "class", "static"]
    assert [one.calls for one in recorded().layers] == [1, 1, 1, 2]


async def coroutine(a: int, *, b: str = "c") -> int:
    "Documented."
    return a


def generator(a: int, *, b: str = "c") -> Iterator[int]:
    "Documented."
    yield a


async def async_generator(a: int, *, b: str = "c") -> Any:
    "Documented."
    yield a


def plain(a: int, *, b: str = "c") -> int:
    "Documented."
    return a


@pytest.mark.parametrize("function", [plain, coroutine, generator, async_generator])
def test_a_decorated_function_looks_like_itself(function: Any) -> None:
    decorated = bigmem.layer("name")(function)
    assert decorated is not function
    assert decorated.__wrapped__ is function
    for name in ("__name__", "__qualname__", "__doc__", "__module__", "__annotations__"):
        assert getattr(decorated, name) == getattr(function, name)
    assert inspect.signature(decorated) == inspect.signature(function)
    for kind in ("iscoroutinefunction", "isgeneratorfunction", "isasyncgenfunction"):
        assert getattr(inspect, kind)(decorated) == getattr(inspect, kind)(function)


class Counting:
    """Objects that are called, each kind with a suspension in the middle where it has any."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock


class CountingPlainly(Counting):
    def __call__(self) -> list[int]:
        self.clock.tick(3)
        return [3]


class CountingAsync(Counting):
    async def __call__(self) -> list[int]:
        self.clock.tick(1)
        await asyncio.sleep(0)
        self.clock.tick(2)
        return [3]


class CountingInSteps(Counting):
    def __call__(self) -> Iterator[int]:
        self.clock.tick(1)
        yield 3
        self.clock.tick(2)


class CountingInAsyncSteps(Counting):
    async def __call__(self) -> Any:
        self.clock.tick(1)
        yield 3
        self.clock.tick(2)


@pytest.mark.parametrize("wrapped", [lambda made: made, partial, lambda made: made.__call__])
@pytest.mark.parametrize(
    ("kind", "calls"),
    [(CountingPlainly, 1), (CountingAsync, 1), (CountingInSteps, 2), (CountingInAsyncSteps, 2)],
)
def test_an_object_is_timed_as_what_it_does_when_it_is_called(
    kind: type[Counting], calls: int, wrapped: Any, clock: Clock, recorded: Any
) -> None:
    async def values() -> list[int]:
        result = decorated()
        if inspect.isawaitable(result):
            result = await result
        if inspect.isasyncgen(result):
            return [value async for value in result]
        return list(result)

    decorated = bigmem.layer("count")(wrapped(kind(clock)))
    assert asyncio.run(values()) == [3]
    assert flat(recorded().layers) == {("count",): (calls, 3, 0)}


def test_what_cannot_be_decorated_is_refused() -> None:
    for wrong in (int, classmethod(plain), staticmethod(plain), 3, None):
        with pytest.raises(TypeError, match="expected a function or method"):
            bigmem.layer("x")(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="needs a name"):

        @bigmem.layer  # type: ignore[arg-type]
        def forgotten() -> None: ...


def test_of_a_generator_only_its_steps_count(clock: Clock, recorded: Any) -> None:
    @bigmem.layer("produce")
    def produce() -> Iterator[int]:
        for k in range(3):
            clock.tick(1)
            yield k
        clock.tick(1)

    with bigmem.layer("consume"):
        for _ in produce():
            with bigmem.layer("use"):
                clock.tick(10)
    assert flat(recorded().layers) == {
        ("consume",): (1, 34, 34),
        ("consume", "produce"): (4, 4, 0),
        ("consume", "use"): (3, 30, 0),
    }


def echo(log: list[object]) -> Any:
    """Answers what it is sent, survives one kind of error, and says how it ended."""
    received = None
    try:
        while received != "end":
            try:
                received = yield received
            except KeyError as error:
                received = f"survived {error}"
            log.append(received)
        return "returned"
    finally:
        log.append("closed")


async def async_echo(log: list[object]) -> Any:
    received = None
    try:
        while received != "end":
            try:
                received = yield received
            except KeyError as error:
                received = f"survived {error}"
            log.append(received)
    finally:
        await asyncio.sleep(0)
        log.append("closed")


CALLS = st.lists(
    st.one_of(
        st.just(("send", None)),
        st.tuples(st.just("send"), st.sampled_from([1, 2, "end"])),
        st.tuples(
            st.just("throw"),
            st.sampled_from([KeyError, ValueError, StopIteration, StopAsyncIteration]),
        ),
        st.just(("close", None)),
    ),
    max_size=8,
)


def outcome(action: Callable[..., object], *arguments: object) -> tuple[str, str]:
    try:
        return "value", repr(action(*arguments))
    except BaseException as error:
        return type(error).__name__, str(error)


@given(CALLS)
def test_a_decorated_generator_behaves_like_itself(calls: list[tuple[str, Any]]) -> None:
    played: list[list[object]] = []
    for function in (echo, bigmem.layer("echo")(echo)):
        log: list[object] = []
        made = function(log)
        for action, argument in calls:
            arguments = () if action == "close" else (argument,)
            log.append(outcome(getattr(made, action), *arguments))
        del made
        played.append(log)
    assert played[0] == played[1]


@given(CALLS)
def test_a_decorated_async_generator_behaves_like_itself(calls: list[tuple[str, Any]]) -> None:
    async def play(function: Any) -> list[object]:
        log: list[object] = []
        made = function(log)
        for action, argument in calls:
            arguments = () if action == "close" else (argument,)
            try:
                log.append(repr(await getattr(made, "a" + action)(*arguments)))
            except BaseException as error:
                log.append((type(error).__name__, str(error)))
        await made.aclose()
        return log

    assert asyncio.run(play(async_echo)) == asyncio.run(play(bigmem.layer("echo")(async_echo)))


class Mark:
    """Something whose end can be seen."""

    alive = 0

    def __init__(self) -> None:
        Mark.alive += 1

    def __del__(self) -> None:
        Mark.alive -= 1


def test_nothing_that_passes_through_a_generator_is_kept() -> None:
    @bigmem.layer("through")
    def through(first: Mark) -> Any:
        del first
        passed = 0
        while True:
            received = yield Mark() if passed % 2 else None
            del received
            passed += 1

    Mark.alive = 0
    made = through(Mark())
    next(made)
    assert Mark.alive == 0
    for _ in range(4):
        made.send(Mark())
        assert Mark.alive == 0
    made.close()


def test_a_coroutine_may_drop_its_arguments() -> None:
    @bigmem.layer("drop")
    async def drop(mark: Mark) -> int:
        del mark
        return Mark.alive

    @bigmem.layer("drop")
    async def drop_and_yield(mark: Mark) -> Any:
        del mark
        yield Mark.alive
        await asyncio.sleep(0)
        yield Mark()

    async def main() -> None:
        assert await drop(Mark()) == 0
        async for item in drop_and_yield(Mark()):
            assert item == 0 or Mark.alive == 1
            del item
            assert Mark.alive == 0

    Mark.alive = 0
    asyncio.run(main())
