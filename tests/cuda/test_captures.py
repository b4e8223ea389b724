"""Libraries whose captures are known of: here, stand-ins of the same shape."""

import asyncio
import contextlib
import importlib
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from waiting import wait_for

from bigmem import _core
from bigmem.cuda import captures


class BaseStream:
    """As cupy.cuda.stream._BaseStream."""

    def __init__(self, ptr: int) -> None:
        self.ptr, self.capturing = ptr, False

    def begin_capture(self, mode: Any = None) -> None:
        """Begin."""
        if self.capturing or mode == "wrong":
            raise RuntimeError("cannot begin")
        self.capturing = True

    def end_capture(self) -> str:
        if not self.capturing:
            raise RuntimeError("nothing to end")
        if _core.captures() == 3:
            raise RuntimeError("wrong thread")
        self.capturing = False
        return "graph"

    def is_capturing(self) -> bool:
        return self.capturing


class Graph:
    """As torch.cuda.graphs.CUDAGraph."""

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        if capture_error_mode == "wrong":
            raise RuntimeError("cannot begin")

    def capture_end(self) -> None:
        pass


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    cupy, torch = ModuleType("cupy.cuda.stream"), ModuleType("torch.cuda.graphs")
    stream = type("Stream", (), dict(vars(BaseStream)))
    graph = type("CUDAGraph", (), dict(vars(Graph)))
    cupy._BaseStream, torch.CUDAGraph = stream, graph  # type: ignore[attr-defined]
    monkeypatch.setattr(captures, "_unwatched", set(captures._LIBRARIES))
    captures.watch()  # nothing is there yet
    monkeypatch.setitem(sys.modules, "cupy.cuda.stream", cupy)
    monkeypatch.setitem(sys.modules, "torch.cuda.graphs", torch)
    captures.watch()
    assert not captures._unwatched
    captures.watch()
    assert _core.captures() == 0
    return stream, graph


def test_streams_tell(libraries: tuple[Any, Any]) -> None:
    stream = libraries[0](5)
    assert stream.begin_capture.__doc__ == "Begin."
    stream.begin_capture("global")
    assert _core.captures() == 1
    assert stream.end_capture() == "graph"
    assert _core.captures() == 0


def test_libraries_that_are_imported_later_tell_from_their_first_moment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No call of bigmem's lies between the import and the capture."""
    (tmp_path / "torch" / "cuda").mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").write_text("from . import cuda")
    (tmp_path / "torch" / "cuda" / "__init__.py").write_text("from .graphs import CUDAGraph")
    (tmp_path / "torch" / "cuda" / "graphs.py").write_text(
        "class CUDAGraph:\n    def capture_begin(self): pass\n    def capture_end(self): pass\n"
    )
    for name in [name for name in sys.modules if name.partition(".")[0] == "torch"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(captures, "_unwatched", set(captures._LIBRARIES))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.syspath_prepend(tmp_path)
    captures.watch()
    torch = importlib.import_module("torch")
    try:
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin()
        assert _core.captures() == 1
        graph.capture_end()
        assert _core.captures() == 0
    finally:
        for name in ("torch", "torch.cuda", "torch.cuda.graphs"):
            sys.modules.pop(name, None)


def test_per_thread_streams_are_one_a_thread(libraries: tuple[Any, Any]) -> None:
    """Which have the same handle; of each the same thread begins and ends a capture."""
    ends = threading.Event()

    def capture() -> None:
        stream = libraries[0](2)
        stream.begin_capture()
        ends.wait(20)
        stream.end_capture()

    thread = threading.Thread(target=capture)
    thread.start()
    wait_for(lambda: _core.captures() == 1)
    stream = libraries[0](2)
    stream.begin_capture()
    assert _core.captures() == 2
    stream.end_capture()
    assert _core.captures() == 1
    ends.set()
    thread.join()
    assert _core.captures() == 0


def test_graphs_tell(libraries: tuple[Any, Any]) -> None:
    one, other = libraries[1](), libraries[1]()
    one.capture_begin(pool=1)
    other.capture_begin()
    assert _core.captures() == 2
    one.capture_end()
    other.capture_end()
    assert _core.captures() == 0
    with pytest.raises(RuntimeError):
        one.capture_begin(capture_error_mode="wrong")
    assert _core.captures() == 0


def test_failing_begins_and_ends_keep_count(libraries: tuple[Any, Any]) -> None:
    stream = libraries[0](6)
    with pytest.raises(RuntimeError):
        stream.begin_capture(mode="wrong")
    with pytest.raises(RuntimeError):
        stream.end_capture()
    assert _core.captures() == 0
    stream.begin_capture()
    with pytest.raises(RuntimeError):
        stream.begin_capture()
    assert _core.captures() == 1
    with captures.capturing(), captures.capturing():
        with pytest.raises(RuntimeError, match="wrong thread"):
            stream.end_capture()
        assert _core.captures() == 3  # it goes on
    stream.end_capture()
    assert _core.captures() == 0


def test_an_error_ends_the_telling() -> None:
    with contextlib.suppress(KeyError), captures.capturing():
        assert _core.captures() == 1
        raise KeyError
    assert _core.captures() == 0


def test_a_coroutine_tells_while_it_runs() -> None:
    @captures.capturing()
    async def capture() -> int:
        await asyncio.sleep(0)
        return _core.captures()

    assert asyncio.run(capture()) == 1
    assert _core.captures() == 0
