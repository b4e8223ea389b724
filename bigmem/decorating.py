"""Functions of every kind with each call inside a context manager."""

import contextlib
import inspect
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import AbstractContextManager
from functools import partial, wraps
from types import TracebackType, coroutine
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")

Fresh = Callable[[], AbstractContextManager[None]]


class Scope(AbstractContextManager[None]):
    """A context for one ``with`` block, or for each call of the functions that it decorates."""

    def __init__(self, fresh: Fresh) -> None:
        self._fresh = fresh
        self._block = fresh()

    def __enter__(self) -> None:
        self._block.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return self._block.__exit__(kind, error, traceback)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function or method of any kind."""
        return each_call(function, self._fresh)


def contextmanager(function: Callable[P, Iterator[None]]) -> Callable[P, Scope]:
    """`contextlib.contextmanager`, but what it makes decorates functions of every kind.

    Those of contextlib are over once a coroutine or a generator has been made, before it runs.
    """
    make = contextlib.contextmanager(function)

    @wraps(function)
    def scope(*args: P.args, **kwargs: P.kwargs) -> Scope:
        return Scope(partial(make, *args, **kwargs))

    return scope


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
        if _called_is(_is_awaitable, function):
            wrapped = coroutine(wrapped)
    else:
        wrapped = _plain(function, context)
    return cast(Callable[P, R], wraps(function)(wrapped))


def _called_is(kind: Callable[[Any], bool], function: Any) -> bool:
    """Whether the function, or what a call of the object comes to, is of a kind."""
    while isinstance(function, partial):
        function = function.func
    return kind(function) or kind(type(function).__call__)


def _is_awaitable(generator_function: Any) -> bool:
    """Whether `types.coroutine` made the generators of a function ones to await."""
    flags: int = getattr(getattr(generator_function, "__code__", None), "co_flags", 0)
    return bool(flags & inspect.CO_ITERABLE_COROUTINE)


def _plain(function: Callable[..., R], context: Fresh) -> Callable[..., R]:
    def call(*args: Any, **kwargs: Any) -> R:
        with context():
            return function(*args, **kwargs)

    return call


# The others hold on to no argument, and to nothing that passes through: it may be huge.


def _coroutine(function: Callable[..., Any], context: Fresh) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        awaited = function(*args, **kwargs)
        del args, kwargs
        with context():
            return await awaited

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
