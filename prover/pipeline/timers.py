"""What each layer of a run took by itself, of which the layers inside it know nothing."""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Callable, Collection, Iterator
from types import TracebackType
from typing import NamedTuple, Self

import bigmem
from bigmem._core import thread_seconds
from bigmem.layers import surround, unsurround
from bigmem.native import NativeAllocator
from bigmem.wrappers.base import Wrapper

ROOTS = ("worker", "ahead")
"""The outermost layers of a thread of the engine; what is around them is not looked at."""


_now, _cpu = time.monotonic, time.thread_time

Clocks = tuple[float, float]
"""``wall_s`` and ``cpu_s`` of a `Reading`"""

Counts = tuple[float, int, float, float]
"""The others"""


class Reading(NamedTuple):
    """Clocks and counters of a thread, or the differences of two readings.

    Attributes
    ----------
    wall_s
        By the clock.
    cpu_s, kernel_s
        The thread's time on a processor, and that part of it that is the kernel's.
    faults
        Its minor page faults.
    map_s, release_s
        In the core's allocators, wrapped or not. Of an allocator that is none of them no thread is
        known: where there is one, in all that are timed, on whatever thread.
    """

    wall_s: float = 0.0
    cpu_s: float = 0.0
    kernel_s: float = 0.0
    faults: int = 0
    map_s: float = 0.0
    release_s: float = 0.0

    def plus(self, other: Reading, sign: int = 1) -> Reading:
        """The sum, or with sign -1 the difference."""
        # At every layer: a loop over the fields takes twice as long.
        return Reading(
            self.wall_s + sign * other.wall_s,
            self.cpu_s + sign * other.cpu_s,
            self.kernel_s + sign * other.kernel_s,
            self.faults + sign * other.faults,
            self.map_s + sign * other.map_s,
            self.release_s + sign * other.release_s,
        )


class Node:
    """A layer at one place.

    Attributes
    ----------
    calls
        How often it was entered.
    own
        What it took while no layer inside it was running.
    inside
        The layers directly inside, by name.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.own = Reading()
        self.inside: dict[str, Node] = {}

    @property
    def wall_s(self) -> float:
        """Seconds with the layers inside."""
        return self.own.wall_s + sum(node.wall_s for node in self.inside.values())

    def add(self, other: Node) -> None:
        """Add what another thread has recorded at the same place."""
        self.calls += other.calls
        self.own = self.own.plus(other.own)
        for name, node in other.inside.items():
            self.inside.setdefault(name, Node()).add(node)

    def walk(self, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Node]]:
        """The nodes below with their paths, each before those inside it."""
        for name, node in self.inside.items():
            yield (*path, name), node
            yield from node.walk((*path, name))


class Timers:
    """Reads clocks and counters whenever a layer begins or ends, while it is open as a context.

    The layers of a thread must nest. What reading takes, and what `bigmem.layer` itself does, is
    left out of all layers, but for a microsecond or two of the processor's time, by which a wait
    seems shorter; and, with an allocator that is not the core's, for what its statistics take.

    Parameters
    ----------
    allocators
        Those that are used.
    """

    def __init__(self, *allocators: bigmem.Allocator) -> None:
        self._spent = _spent_in({id(one): one for one in allocators}.values())
        self._threads: dict[int, _Thread] = {}
        self._start = self._end = 0.0

    def __enter__(self) -> Self:
        self._start = _now()
        surround(self._stop, self._go_on)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        unsurround(self._stop, self._go_on)
        self._end = _now()

    @property
    def wall_s(self) -> float:
        """Seconds that the context was open."""
        return self._end - self._start

    def tree(self) -> Node:
        """All threads together: a root without a name, and `ROOTS` in it."""
        root = Node()
        for thread in list(self._threads.values()):
            root.add(thread.root)
        return root

    def idle_s(self, name: str) -> float:
        """Seconds that threads of one of `ROOTS` began after the first, ended before the last."""
        threads = [one for one in list(self._threads.values()) if name in one.root.inside]
        first = min((one.began_s for one in threads), default=0.0)
        last = max((one.stopped_s for one in threads), default=0.0)
        return sum(one.began_s - first + last - one.stopped_s for one in threads)

    def reading_s(self, name: str) -> float:
        """Seconds that reading has taken on the threads of one of `ROOTS`."""
        threads = list(self._threads.values())
        return sum(thread.reading_s for thread in threads if name in thread.root.inside)

    def _stop(self, name: str | None) -> None:
        wall = _now()  # first, and last in `_go_on`: what the others take is no layer's
        thread = self._threads.get(threading.get_ident())
        if thread is None or not thread.stack:
            if name not in ROOTS:
                return
            if thread is None:
                thread = self._threads[threading.get_ident()] = _Thread(wall)
        counts = self._counts()
        thread.stop(_reading((wall, _cpu()), counts))
        if name is None:
            thread.stack.pop()
        else:
            thread.enter(name)

    def _go_on(self) -> None:
        thread = self._threads.get(threading.get_ident())
        if thread is not None and thread.stopped:
            thread.stopped = False
            cpu = _cpu()
            thread.counts = self._counts()
            wall = _now()
            thread.clocks = wall, cpu
            thread.reading_s += wall - thread.stopped_s

    def _counts(self) -> Counts:
        usage = resource.getrusage(resource.RUSAGE_THREAD)
        return usage.ru_stime, usage.ru_minflt, *self._spent()


class _Thread:
    """The layers that a thread is in, and the latest reading, from which the innermost counts.

    Attributes
    ----------
    clocks, counts
        That reading, which is made a `Reading` only where layers are stopped anyway.
    began_s
        When its first layer began.
    stopped, stopped_s
        Whether nothing counts at the moment, and since when nothing did the last time.
    """

    def __init__(self, began_s: float) -> None:
        self.began_s = began_s
        self.root = Node()
        self.stack: list[Node] = []
        self.clocks: Clocks = (0.0, 0.0)
        self.counts: Counts = (0.0, 0, 0.0, 0.0)
        self.stopped = False
        self.stopped_s = 0.0
        self.reading_s = 0.0

    def stop(self, now: Reading) -> None:
        """Charge the innermost layer, which goes on later, or what is entered then."""
        if self.stopped:
            return  # a layer within what another one does to begin or to end
        if self.stack:
            last = _reading(self.clocks, self.counts)
            self.stack[-1].own = self.stack[-1].own.plus(now.plus(last, -1))
        self.stopped, self.stopped_s = True, now.wall_s

    def enter(self, name: str) -> None:
        around = self.stack[-1] if self.stack else self.root
        node = around.inside.setdefault(name, Node())
        node.calls += 1
        self.stack.append(node)


def _reading(clocks: Clocks, counts: Counts) -> Reading:
    wall, cpu = clocks
    kernel, faults, mapped, released = counts
    return Reading(wall, cpu, kernel, faults, mapped, released)


_TOLD_BY_THREAD = bigmem.SystemAllocator | NativeAllocator


def _unwrapped(allocator: bigmem.Allocator) -> bigmem.Allocator:
    while isinstance(allocator, Wrapper):
        allocator = allocator.upstream
    return allocator


def _spent_in(allocators: Collection[bigmem.Allocator]) -> Callable[[], tuple[float, float]]:
    """Seconds so far in allocations and in releases; see `Reading`."""
    if all(isinstance(_unwrapped(one), _TOLD_BY_THREAD) for one in allocators):
        return thread_seconds

    def of_stats() -> tuple[float, float]:
        stats = [one.stats() for one in allocators]
        return sum(one.allocate_seconds for one in stats), sum(one.release_seconds for one in stats)

    return of_stats
