"""Nested timers that show how much of a layer's time the layers inside it account for."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from threading import get_native_id
from typing import NamedTuple, ParamSpec, TypeVar

from . import decorating

P = ParamSpec("P")
R = TypeVar("R")

# Levels that a record tells apart. Trees of this depth still go through `asdict` and `json`.
DEEPEST = 100

_now = time.monotonic


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """What was measured of one layer at one place of the tree.

    Attributes
    ----------
    name
        As given to `layer`.
    calls
        How often it was entered.
    wall_s
        Seconds from entry to exit, added up over the calls.
    inner_s
        Seconds of `wall_s` in which at least one layer directly inside was running. Layers inside
        that run one after the other add up to this; of those that run side by side, as tasks of
        asyncio do, time that they share counts once.
    gap_s
        ``wall_s - inner_s``: what nobody inside accounts for; never negative.
    share
        ``gap_s / wall_s``; 0 for a layer that took no time.
    layers
        Those directly inside, in the order of their first entry.
    """

    name: str
    calls: int
    wall_s: float
    inner_s: float
    gap_s: float
    share: float
    layers: "tuple[LayerTimes, ...]"


@dataclass(frozen=True, slots=True)
class LayerTree:
    """Layers by path; as text, a table. `dataclasses.asdict` makes it ready for JSON.

    Attributes
    ----------
    layers
        The outermost ones, in the order of their first entry.
    """

    layers: tuple[LayerTimes, ...]

    def __str__(self) -> str:
        if not self.layers:
            return "no layers were recorded"
        rows: list[tuple[str, ...]] = [("layer", "calls", "wall s", "inside s", "gap s", "gap %")]
        rows += (_row(times, depth) for times, depth in _walk(self.layers, 0))
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = []
        for name, *cells in rows:
            numbers = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
            lines.append("  ".join((name.ljust(widths[0]), *numbers)).rstrip())
        return "\n".join([*lines, "gap: time in a layer that no layer inside it accounts for"])


class Span(NamedTuple):
    """One call of a layer, as observers are told of it when it has ended.

    Attributes
    ----------
    name
        Of the layer.
    begin_s
        When it was entered, in seconds of `time.monotonic`.
    seconds
        How long it took.
    thread_id
        The system's number of the thread.
    task_id
        A number of the asyncio task, 0 outside of any. The layers of one thread nest, those of
        one task nest, but tasks that share a thread overlap.
    """

    name: str
    begin_s: float
    seconds: float
    thread_id: int
    task_id: int


Observer = Callable[[Span], object]
Before = Callable[[str | None], object]
After = Callable[[], object]


class layer:
    """Times a block of code, or every call of a function, as a layer of what surrounds it.

    ``with layer("prove"):`` times the block; ``@layer("prove")`` each call of a function. Layers
    that are entered meanwhile, directly or in functions called, are inside; `layers` shows how
    much of the time they account for. What they do not account for is this layer's gap: there the
    destructors of what a function leaves behind run, after the timers in it have ended.

    Inside is what contextvars say: tasks of asyncio and `asyncio.to_thread` continue the layers of
    their creator, a new thread begins at the top. Of a coroutine function, the time from start to
    end counts, waiting included. Of a generator function, plain or asynchronous, each step is
    a call, and what its consumer does between the steps does not count.

    A layer may be entered again before it has ended, recursively or by other threads and tasks.
    Memory is kept for each different path, so names should be few.

    Parameters
    ----------
    name
        What reports call it. Layers of one name inside the same layers are added up.
    """

    __slots__ = ("_frames", "name")

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise TypeError(f"a layer needs a name, as in layer('load'), not {name!r}")
        self.name = name
        self._frames: list[_Frame] = []

    def __enter__(self) -> None:
        surrounding = tuple(_surrounding)
        for before, _ in surrounding:
            before(self.name)
        begin = _now()
        outer = _innermost()
        frame = _Frame(outer, outer.node.child(self.name), begin, self)
        around = frame.around
        if not around.running:
            around.since = begin
        around.running += 1
        self._frames.append(frame)
        _current.set(frame)
        for _, after in reversed(surrounding):
            after()

    def __exit__(self, *exc_info: object) -> None:
        end = _now()
        surrounding = tuple(_surrounding)
        try:
            for before, _ in surrounding:
                before(None)
        finally:
            self._leave(end)
        for _, after in reversed(surrounding):
            after()

    def _leave(self, end: float) -> None:
        frame = self._entered()
        self._frames.remove(frame)
        if _current.get() is frame:
            _current.set(frame.outer)
        seconds, inner = frame.until(end)
        # The interpreter changes threads, and runs handlers of signals, in calls and at the ends of
        # loops. There is none in these updates, nor in those above, so they need no lock: one that
        # a thread still held when the process ends would hang whoever times anything after it.
        frame.open = False
        around = frame.around
        around.running -= 1
        if not around.running:
            around.inner += end - around.since
        node: _Node | None = frame.node
        while node is not None:
            node.calls += 1
            node.wall += seconds
            node.inner += inner
            node = node.enclosing
        if _observers:
            span = Span(self.name, frame.begin, seconds, get_native_id(), _task_id())
            for observer in tuple(_observers):
                observer(span)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function or method of any kind: each call is timed."""
        return decorating.each_call(function, lambda: layer(self.name))

    def _entered(self) -> "_Frame":
        """What is to be left: where several entries are open, the innermost one of this context."""
        frames = self._frames
        if len(frames) == 1:
            return frames[0]
        frame = _current.get()
        while frame is not _top:
            if frame.layer is self and frame.open:
                return frame
            frame = frame.outer
        return frames[-1]  # a generator that another task ends


def layers() -> LayerTree:
    """What the process has spent in layers so far.

    Layers that are open around the call count up to now; those that other threads or tasks have
    open count once they end.
    """
    return _tree(_top.node)


@contextmanager
def record_layers() -> Iterator[Callable[[], LayerTree]]:
    """Record the layers of a block by themselves, as a tree that begins there.

    Yields a function that does for the block what `layers` does for the process, while it runs
    and afterwards. What is recorded here is recorded for the surroundings too, as ever.

    For example::

        with bigmem.record_layers() as recorded:
            work()
        print(recorded())
    """
    outer = _innermost()
    frame = _Frame(outer, _Node(0, outer.node), _now(), None)
    _current.set(frame)
    try:
        yield lambda: _tree(frame.node)
    finally:
        frame.open = False


def observe(observer: Observer) -> None:
    """Call `observer` with a `Span` at the end of each call of a layer, on the thread it ends on.

    It must be quick, and must not raise.
    """
    _observers.append(observer)


def unobserve(observer: Observer) -> None:
    """Undo `observe`; nothing happens if that is done already."""
    with suppress(ValueError):
        _observers.remove(observer)


def surround(before: Before, after: After) -> None:
    """Call `before` and `after` around what a layer does to begin, and around what it does to end.

    `before` gets the name when it begins and `None` when it ends. Neither may raise.
    """
    _surrounding.append((before, after))


def unsurround(before: Before, after: After) -> None:
    """Undo `surround`; nothing happens if that is done already."""
    with suppress(ValueError):
        _surrounding.remove((before, after))


_observers: list[Observer] = []
_surrounding: list[tuple[Before, After]] = []


class _Node:
    """What a record holds of one path, and where the same is recorded for its surroundings."""

    __slots__ = ("calls", "children", "depth", "enclosing", "inner", "wall")

    def __init__(self, depth: int, enclosing: "_Node | None") -> None:
        self.depth = depth
        self.enclosing = enclosing
        self.children: dict[str, _Node] = {}
        self.calls = 0
        self.wall = 0.0
        self.inner = 0.0

    def child(self, name: str) -> "_Node":
        found = self.children.get(name)
        if found is not None:
            return found
        new = _Node(self.depth + 1, self.enclosing and self.enclosing.child(name))
        # What lies deeper is timed, so that it is in nobody's gap, and not listed.
        return self.children.setdefault(name, new) if self.depth < DEEPEST else new


class _Frame:
    """One entry of a layer, or of a record."""

    __slots__ = (
        "around", "begin", "inner", "layer", "node", "open", "outer", "running", "since",
    )  # fmt: skip

    def __init__(
        self, outer: "_Frame | None", node: _Node, begin: float, entered: layer | None
    ) -> None:
        self.layer: layer | None = entered
        self.outer: _Frame = outer or self
        self.around: _Frame = self
        if outer is not None:
            # A record is no layer: what is in it is directly inside what is around it.
            self.around = outer if outer.layer else outer.around
        self.node = node
        self.begin = begin
        self.open = True
        # How many layers directly inside are running, since when, and the time with any before.
        self.running = 0
        self.since = begin
        self.inner = 0.0

    def until(self, end: float) -> tuple[float, float]:
        """Seconds from entry to `end`, and those of them with layers inside running."""
        seconds = end - self.begin
        inner = self.inner
        if self.running and end > self.since:
            inner += end - self.since
        # Another thread may have read its clock earlier than it came here.
        return seconds, inner if inner < seconds else seconds


_top = _Frame(None, _Node(0, None), _now(), None)
_current: ContextVar[_Frame] = ContextVar("bigmem_layer", default=_top)


def _innermost() -> _Frame:
    """Where a layer that is entered now belongs.

    Frames need not end in order: generators are suspended, tasks outlive what started them.
    """
    frame = _current.get()
    while not frame.open:
        frame = frame.outer
    return frame


def _task_id() -> int:
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return 0
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return 0
    return 0 if task is None else id(task)


def _tree(root: _Node) -> LayerTree:
    now = _now()
    so_far: dict[_Node, tuple[float, float]] = {}
    frame = _current.get()
    while frame is not _top:
        node = frame.node if frame.open and frame.layer else None
        while node is not None:
            so_far[node] = frame.until(now)
            node = node.enclosing
        frame = frame.outer

    def times(name: str, node: _Node) -> LayerTimes:
        # Of one moment: no call comes between.
        calls, wall, inner = node.calls, node.wall, node.inner
        if node in so_far:
            seconds, covered = so_far[node]
            calls, wall, inner = calls + 1, wall + seconds, inner + covered
        gap = wall - inner
        share = gap / wall if wall > 0 else 0.0
        return LayerTimes(name, calls, wall, inner, gap, share, inside(node))

    def inside(node: _Node) -> tuple[LayerTimes, ...]:
        return tuple(times(name, child) for name, child in list(node.children.items()))

    return LayerTree(inside(root))


def _walk(found: tuple[LayerTimes, ...], depth: int) -> Iterator[tuple[LayerTimes, int]]:
    for times in found:
        yield times, depth
        yield from _walk(times.layers, depth + 1)


def _row(times: LayerTimes, depth: int) -> tuple[str, ...]:
    name = times.name if times.name.isprintable() else ascii(times.name)
    head = ("  " * depth + name, str(times.calls), f"{times.wall_s:.4f}")
    if not times.layers:
        return (*head, "", "", "")
    return (*head, f"{times.inner_s:.4f}", f"{times.gap_s:.4f}", f"{times.share:.1%}")
