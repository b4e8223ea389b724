"""Captures of CUDA graphs, during which no event over a whole context may be recorded.

Such an event, which guards blocks that were released without a recorded fence, would invalidate
the capture. While one is known of, released blocks wait.
"""

import functools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from .. import _core
from ..decorating import contextmanager
from .streams import PER_THREAD


@contextmanager
def capturing() -> Iterator[None]:
    """Tell of a capture that goes on in the meantime, begun by whatever code.

    CuPy's streams and PyTorch's graphs tell by themselves. Captures on non-blocking streams, begun
    by other means, need this: without it a guard may invalidate them. As a decorator it tells of
    each call of a function, of a coroutine from start to end, and of each step of a generator.
    """
    _core.begin_capture()
    try:
        yield
    finally:
        _core.end_capture()


def watch() -> None:
    """Let the libraries tell of their captures, also those that are imported later."""
    if _unwatched and _arrivals not in sys.meta_path:
        sys.meta_path.insert(0, _arrivals)
    for library in tuple(_unwatched):
        module = sys.modules.get(library.module)
        # Absent, too, while the module is still being imported.
        kind = getattr(module, library.kind, None)
        if kind is not None:
            library.wrap(kind)
            _unwatched.discard(library)


class _Library:
    """Which methods of which class begin and end captures.

    Parameters
    ----------
    module, kind
        Where the class is.
    begin, end
        Its methods.
    key
        What tells captures apart that go on at the same time.
    is_capturing
        Whether the capture goes on after all, when `end` has raised.
    """

    def __init__(
        self,
        module: str,
        kind: str,
        begin: str,
        end: str,
        key: Callable[[Any], object],
        is_capturing: Callable[[Any], bool],
    ) -> None:
        self.module, self.kind = module, kind
        self._begin, self._end = begin, end
        self._key = key
        self._is_capturing = is_capturing
        self._under_way: set[object] = set()

    def wrap(self, kind: Any) -> None:
        if not hasattr(getattr(kind, self._begin), "__wrapped__"):
            setattr(kind, self._begin, self._beginning(getattr(kind, self._begin)))
            setattr(kind, self._end, self._ending(getattr(kind, self._end)))

    def _beginning(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def begin(owner: Any, *args: Any, **kwargs: Any) -> Any:
            key = self._key(owner)
            if key in self._under_way:  # an error, of which the original tells
                return original(owner, *args, **kwargs)
            _core.begin_capture()
            self._under_way.add(key)
            try:
                return original(owner, *args, **kwargs)
            except BaseException:
                self._over(key)
                raise

        return begin

    def _ending(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def end(owner: Any, *args: Any, **kwargs: Any) -> Any:
            key = self._key(owner)
            try:
                answer = original(owner, *args, **kwargs)
            except BaseException:
                if not self._is_capturing(owner):
                    self._over(key)
                raise
            self._over(key)
            return answer

        return end

    def _over(self, key: object) -> None:
        if key in self._under_way:
            self._under_way.remove(key)
            _core.end_capture()


def _stream_key(stream: Any) -> object:
    """The handle of a stream; that of the per-thread one is of another stream in each thread."""
    handle = stream.ptr
    return (handle, threading.get_ident()) if handle == PER_THREAD else handle


_LIBRARIES = (
    _Library(
        "cupy.cuda.stream",
        "_BaseStream",
        "begin_capture",
        "end_capture",
        key=_stream_key,
        is_capturing=lambda stream: bool(stream.is_capturing()),
    ),
    # torch.cuda.graph and whatever else captures there go through this one.
    _Library(
        "torch.cuda.graphs",
        "CUDAGraph",
        "capture_begin",
        "capture_end",
        key=id,
        is_capturing=lambda graph: False,
    ),
)
_unwatched = set(_LIBRARIES)


class _Arrivals:
    """Among those who find modules: has a library watched as soon as it is there."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if all(library.module != name for library in _unwatched):
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        found = (finder.find_spec(name, path, target) for finder in others)
        spec = next(filter(None, found), None)
        loader: Any = spec and spec.loader
        if loader is not None:
            execute = loader.exec_module

            def execute_and_watch(module: ModuleType) -> None:
                execute(module)
                watch()

            with suppress(AttributeError):  # of a kind that takes none: watched a little later
                loader.exec_module = execute_and_watch
        return spec


_arrivals = _Arrivals()
