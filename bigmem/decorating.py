"""Functions of every kind with each call inside a context manager."""

import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractContextManager
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")

Fresh = Callable[[], AbstractContextManager[None]]


def each_call(function: Callable[P, R], context: Fresh) -> Callable[P, R]:
    """The same function, each call of it in a new context; of generators, each step.

    Coroutine functions and generator functions stay what they are; objects whose ``__call__`` is
    one become such a function.

    Raises
    ------
    TypeError
        For a class, and for what cannot be called, as a classmethod; for a staticmethod, which
        can be, but would be bound once it is wrapped.
    """
    if isinstance(function, type | staticmethod) or not callable(function):
        raise TypeError(
            f"expected a function or method, not {function!r}; on methods, this decorator goes "
            "below @classmethod and the like"
        )
    if _called_is(inspect.iscoroutinefunction, function):
        wrapped: Any = _coroutine(function, context)
    elif _called_is(inspect.isasyncgenfunction, function):
        wrapped = _async_generator(function, context)
    elif _called_is(inspect.isgeneratorfunction, function):
        wrapped = _generator(function, context)
    else:
        wrapped = _plain(function, context)
    return cast(Callable[P, R], wraps(function)(wrapped))


def _called_is(kind: Callable[[Any], bool], function: Any) -> bool:
    """Whether the function, or what a call of the object comes to, is of a kind."""
    while isinstance(function, partial):
        function = function.func
    return kind(function) or kind(type(function).__call__)


def _plain(function: Callable[..., R], context: Fresh) -> Callable[..., R]:
    def call(*args: Any, **kwargs: Any) -> R:
        with context():
            return function(*args, **kwargs)

    return call


# The others hold on to no argument, and to nothing that passes through: it may be huge.


def _coroutine(function: Callable[..., Any], context: Fresh) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        coroutine = function(*args, **kwargs)
        del args, kwargs
        with context():
            return await coroutine

    return call


def _generator(function: Callable[..., Any], context: Fresh) -> Callable[..., Any]:
    def steps(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        generator = function(*args, **kwargs)
        del args, kwargs
        passed: list[Any] = [None]
        resume = generator.send
        while True:
            try:
                with context():
                    passed.append(resume(passed.pop()))
            except StopIteration as end:
                return end.value
            try:
                passed.append((yield passed.pop()))
                resume = generator.send
            except GeneratorExit:
                with context():
                    return generator.close()
            except BaseException as error:
                passed.append(error)
                resume = generator.throw

    return steps


def _async_generator(function: Callable[..., Any], context: Fresh) -> Callable[..., Any]:
    async def steps(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        generator = function(*args, **kwargs)
        del args, kwargs
        passed: list[Any] = [None]
        resume = generator.asend
        while True:
            try:
                with context():
                    passed.append(await resume(passed.pop()))
            except StopAsyncIteration:
                return
            try:
                passed.append((yield passed.pop()))
                resume = generator.asend
            except GeneratorExit:
                with context():
                    await generator.aclose()
                return
            except BaseException as error:
                passed.append(error)
                resume = generator.athrow

    return steps
