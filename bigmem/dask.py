"""bigmem in the workers of a Dask cluster: `BigmemPlugin`.

Importing this needs ``distributed`` (the extra ``dask``); nothing else of bigmem does.
"""

import asyncio
import logging
import threading
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, SupportsIndex, TypeVar

try:
    import dask
    from distributed.diagnostics.plugin import WorkerPlugin
    from tornado.ioloop import PeriodicCallback
except ImportError as error:
    raise ImportError(
        f"bigmem.dask needs Dask's distributed ({error}): pip install 'bigmem[dask]'"
    ) from error

from .allocator import Allocator, AllocatorStats
from .budget import Budget
from .errors import BigmemError
from .native import NativeAllocator
from .numpy_hook import install, uninstall
from .registry import make, set_allocator
from .sizes import format_size, parse_size
from .wrappers.limited import Limited

if TYPE_CHECKING:
    from distributed.worker import Worker

MIN_BYTES = 64 << 10
# Of a threshold at which the worker acts at once: idle memory is gone before.
_NEAR = 0.9
# How often the process's memory is looked at where Dask itself does not look.
_LOOK_SECONDS = 0.1
# The most that others had in so many looks is kept free for them, a second's worth: an array that
# is there and not yet written makes them seem smaller by as much, until it is.
_LOOKS = 10

_Answer = TypeVar("_Answer")


class Factory(Protocol):
    """What makes the allocator in a worker process, for example a partial `ArenaAllocator`."""

    def __call__(self, *, budget: Budget) -> Allocator:
        """The allocator, which should keep to the budget."""


class BigmemPlugin(WorkerPlugin):
    """Serves the arrays of every worker of a cluster from an allocator of bigmem.

    In each worker process it makes an allocator within a `Budget`, installs it for NumPy's arrays
    (`bigmem.install`) and as the process default (`bigmem.get_allocator`), gives idle memory back
    when the process comes near the size at which Dask spills or pauses, and adds what the allocator
    holds to the worker's metrics. Removing it, or closing the worker, undoes all of that; arrays
    stay valid.

    Parameters
    ----------
    allocator
        A name that `bigmem.make` knows, or a function that is called in the worker with
        ``budget=`` and returns an `Allocator`; it is pickled.
    budget
        Bytes, or a string such as ``"8GiB"``, that the allocator may have in each process. `None`
        takes what the worker may have, see `budget_for`, and follows it: as what else is in the
        process grows and shrinks.
    min_bytes
        Smallest array that is served, as in `bigmem.install`.

    Raises
    ------
    BigmemError
        A senseless budget or `min_bytes`.
    TypeError
        `allocator` is neither.

    Notes
    -----
    Workers that are threads of one process share what the first of them installed: NumPy has one
    allocator in a process. Registering it again replaces it.

    The metrics are bytes: ``bigmem_live``, ``bigmem_pending``, ``bigmem_warm``, ``bigmem_budget``
    and ``bigmem_given_back`` (so far, because the worker came near its limits). The dashboard shows
    them on its page of workers; ``client.run(bigmem.stats)`` tells more.

    Examples
    --------
    >>> from bigmem.dask import BigmemPlugin
    >>> client.register_plugin(BigmemPlugin("recycle"))  # doctest: +SKIP
    """

    name = "bigmem"

    def __init__(
        self,
        allocator: str | Factory = "recycle",
        *,
        budget: SupportsIndex | str | None = None,
        min_bytes: SupportsIndex | str = MIN_BYTES,
    ) -> None:
        if not isinstance(allocator, str) and not callable(allocator):
            raise TypeError(
                f"allocator is a name or a function, not {type(allocator).__name__}: an allocator "
                "cannot be sent to another process"
            )
        self._identity = uuid.uuid4()  # the same in every worker that the plugin is sent to
        self.allocator = allocator
        self.budget = None if budget is None else parse_size(budget)
        self.min_bytes = parse_size(min_bytes)
        if self.budget == 0 or self.min_bytes == 0:
            raise BigmemError("budget and min_bytes are at least 1 byte")

    def setup(self, worker: "Worker") -> None:
        """Install the allocator in the worker's process, and look after it."""
        watch = _Watch(worker, _enter(self, worker))
        _watches[id(worker)] = watch
        watch.start()

    def teardown(self, worker: "Worker") -> None:
        """Undo `setup`; with the last worker of a process the allocator goes."""
        watch = _watches.pop(id(worker), None)
        if watch is not None:
            watch.stop()
            _leave(watch.served)


@dataclass(frozen=True)
class Thresholds:
    """What Dask lets a worker process have, in bytes; `None` where it sets no limit.

    Attributes
    ----------
    near
        Size of the process from which on idle memory goes back: where Dask's ``target`` is, to
        which it spills, and before its ``spill`` and ``pause``, at which it acts on the size of the
        process.
    most
        Size at which the nanny ends the worker (``terminate``), or its memory limit.
    """

    near: int | None
    most: int | None

    @classmethod
    def of(cls, worker: "Worker") -> "Thresholds":
        """Those of a worker."""
        memory = worker.memory_manager
        if not memory.memory_limit:
            return cls(None, None)
        terminate = dask.config.get("distributed.worker.memory.terminate") or 1.0
        nears = [
            memory.memory_target_fraction,
            *(
                fraction * _NEAR
                for fraction in (memory.memory_spill_fraction, memory.memory_pause_fraction)
            ),
        ]
        near = min([share for share in nears if share] or [terminate * _NEAR])
        return cls(int(near * memory.memory_limit), int(terminate * memory.memory_limit))


def budget_for(worker: "Worker") -> Budget:
    """The budget that a worker's allocator begins with unless the plugin names one.

    So much that the process stays below the size at which Dask ends it: that size, less what the
    process has in memory now. An array that does not fit raises MemoryError in its task, once idle
    memory has been given back; the worker and what it stores live on. A worker without a memory
    limit gets the same share of what its process may use.

    The plugin reads it again whenever it looks at the worker's memory: that size, less what the
    process has in memory beyond what the allocator holds.
    """
    most = Thresholds.of(worker).most
    if most is None:
        share = dask.config.get("distributed.worker.memory.terminate") or 1.0
        return Budget(f"{100 * share:g}%")
    return Budget(max(1, most - worker.monitor.get_process_memory()))


@dataclass
class _Served:
    """What one plugin serves the arrays of this process from, and for how many workers."""

    plugin: BigmemPlugin
    allocator: Allocator
    budget: Budget
    workers: int = 0
    _warned: bool = False

    @property
    def follows(self) -> bool:
        """Whether the budget is what others leave of a worker's limit."""
        return self.plugin.budget is None and self.budget._fixed is not None

    def held(self) -> int:
        """Bytes of the process that are the allocator's."""
        limited, stats = self.allocator, self.stats()
        # Allocators of others' need not count.
        counted = limited.live if isinstance(limited, Limited) else self.budget.used
        return counted if stats is None else max(counted, stats.resident)

    def stats(self) -> AllocatorStats | None:
        """The allocator's; `None` if it fails to tell."""
        return self._answer(self.allocator.stats)

    def give_back(self, nbytes: int) -> int:
        """Give at least so many idle bytes back, if there are; return how many went."""
        if not isinstance(self.allocator, NativeAllocator):
            return self._answer(self.allocator.trim) or 0
        # No more than that: what stays warm serves the next arrays without a fault.
        return self.allocator._core.reclaim(nbytes)

    def _answer(self, ask: Callable[[], _Answer]) -> _Answer | None:
        """What an allocator of others' answers; if it raises, that is told the first time."""
        try:
            return ask()
        except Exception as error:
            if not self._warned:  # it is asked ten times a second
                self._warned = True
                logging.getLogger("bigmem").warning(
                    "%r fails to tell what it holds, or to give it back (%s: %s); that is not told "
                    "again",
                    self.allocator,
                    type(error).__name__,
                    error,
                )
            return None

    def set_limit(self, nbytes: int) -> None:
        self.budget._set_limit(nbytes)
        # How `make` keeps allocators within a budget that know of none.
        if isinstance(self.plugin.allocator, str) and isinstance(self.allocator, Limited):
            self.allocator._set_limit(nbytes)


class _Watch:
    """Looks after the memory of one worker, on its event loop."""

    def __init__(self, worker: "Worker", served: _Served) -> None:
        self._worker = worker
        self.served = served
        thresholds = Thresholds.of(worker)
        self._near, self._most = thresholds.near, thresholds.most
        self._others: deque[int] = deque(maxlen=_LOOKS)
        self._full = False
        self._given_back = 0

    def start(self) -> None:
        self._worker.metrics.update(self._metrics())
        if self._near is not None:
            interval = self._worker.memory_manager.memory_monitor_interval or _LOOK_SECONDS
            callback = PeriodicCallback(self._look, interval * 1000)
            self._worker.periodic_callbacks[BigmemPlugin.name] = callback
            callback.start()

    def stop(self) -> None:
        for name in self._metrics():
            self._worker.metrics.pop(name, None)
        callback = self._worker.periodic_callbacks.pop(BigmemPlugin.name, None)
        if callback is not None:
            callback.stop()

    async def _look(self) -> None:
        assert self._near is not None
        before = self.served.held()
        process = self._worker.monitor.get_process_memory()
        # The larger one: what comes or goes back meanwhile is nobody else's.
        self._follow(process - max(before, self.served.held()))
        excess = process - self._near
        stats = self.served.stats()
        # Who does not tell may have idle memory.
        if excess > 0 and (stats is None or stats.resident > stats.live):
            # In a thread: the pages of some GiB take the kernel longer than heartbeats may wait.
            self._given_back += await asyncio.to_thread(self.served.give_back, excess)

    def _follow(self, others: int) -> None:
        """Fit the budget into what others, who have so many bytes now, leave of the process."""
        if self._most is None or not self.served.follows:
            return
        self._others.append(max(0, others))
        others = max(self._others)
        room = self._most - others
        self.served.set_limit(max(1, room))
        was_full, self._full = self._full, room < self.served.plugin.min_bytes
        if self._full and not was_full:
            logging.getLogger("bigmem").warning(
                "no room for arrays: %s of this worker are not the allocator's, and Dask ends it "
                "at %s; until some of that goes, arrays of %s and more raise MemoryError",
                format_size(others),
                format_size(self._most),
                format_size(self.served.plugin.min_bytes),
            )

    def _metrics(self) -> "dict[str, Callable[[Worker], int]]":
        stats, budget = self.served.allocator.stats, self.served.budget
        return {
            "bigmem_live": lambda _: stats().live,
            "bigmem_pending": lambda _: stats().pending + stats().reclaiming,
            "bigmem_warm": lambda _: stats().warm + stats().lazy,
            "bigmem_budget": lambda _: budget.limit,
            "bigmem_given_back": lambda _: self._given_back,
        }


_lock = threading.Lock()
_current: _Served | None = None  # what is installed
_before: Allocator | None = None  # the process default without any plugin
_watches: dict[int, _Watch] = {}


def _enter(plugin: BigmemPlugin, worker: "Worker") -> _Served:
    """Install what the plugin asks for, unless it did so for another worker of this process."""
    global _current, _before
    with _lock:
        if _current is None or _current.plugin._identity != plugin._identity:
            budget = budget_for(worker) if plugin.budget is None else Budget(plugin.budget)
            chosen = plugin.allocator
            allocator = (
                make(chosen, budget=budget) if isinstance(chosen, str) else chosen(budget=budget)
            )
            install(allocator, plugin.min_bytes)
            earlier = set_allocator(allocator)
            if _current is None:
                _before = earlier
            _current = _Served(plugin, allocator, budget)
        _current.workers += 1
        return _current


def _leave(served: _Served) -> None:
    global _current
    with _lock:
        served.workers -= 1
        if served.workers:
            return
        if served is _current:
            uninstall()
            set_allocator(_before)
            _current = None
        # Its arrays may live on, and go back where they came from.
        served.allocator.close()


__all__ = ["BigmemPlugin", "Thresholds", "budget_for"]
