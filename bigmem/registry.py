"""Allocators by name, and the default of the process."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from .allocator import Allocator, AllocatorStats, ask_all, open_allocators
from .arena.arena import ArenaAllocator
from .budget import Budget
from .errors import BigmemError
from .mapped import MappedAllocator
from .release import Deferred, Inline, Recycle
from .system import SystemAllocator
from .wrappers.base import Wrapper
from .wrappers.limited import Limited

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

DEFAULT_NAME = "recycle"
ENTRY_POINTS = "bigmem.allocators"

_default: Allocator | None = None
_told: set[str] = set()  # plug-ins with a name of ours, which have been warned of


def _pinned(budget: Budget | None = None) -> Allocator:
    from .cuda import PinnedAllocator  # seldom needed

    return PinnedAllocator(name="pinned", budget=budget)


_BUILT_IN: dict[str, Callable[..., Allocator]] = {
    "system": partial(SystemAllocator, name="system"),
    "mapped": partial(MappedAllocator, name="mapped"),
    "dontneed": partial(ArenaAllocator, release=Inline(), name="dontneed"),
    "deferred": partial(ArenaAllocator, release=Deferred(), name="deferred"),
    "recycle": partial(ArenaAllocator, release=Recycle(), name="recycle"),
    "pinned": _pinned,
}
_KEEP_BUDGETS = frozenset({"mapped", "dontneed", "deferred", "recycle", "pinned"})


def make(name: str, *, budget: Budget | None = None) -> Allocator:
    """A new allocator of the kind called `name`.

    Parameters
    ----------
    name
        ``"system"`` (the C library), ``"mapped"`` (one mapping a block, unmapped on release),
        ``"dontneed"`` (an arena that advises pages away on release), ``"deferred"`` (the same in
        the background), ``"recycle"`` (pages are reused warm, idle ones given back in the
        background), ``"pinned"`` (page-locked memory for GPUs: `bigmem.cuda.PinnedAllocator`), or a
        name that a plug-in registers under the entry-point group ``bigmem.allocators``. The names
        above are bigmem's own: a plug-in that registers one is never made by it.
    budget
        Limit to keep, perhaps together with other allocators. ``"system"`` and plug-ins know of no
        budgets: what they have in use is `Limited` to what this one admits at this moment.

    Raises
    ------
    BigmemError
        No such allocator, in which case the message lists those that are; a name that several
        distributions register; a plug-in that cannot be imported or made, or makes no allocator.
    """
    if budget is not None:
        if name in _KEEP_BUDGETS:
            return _BUILT_IN[name](budget=budget)
        return Limited(make(name), budget.limit, name=name)
    if name in _BUILT_IN:
        return _BUILT_IN[name]()
    return _make_plugged(name)


def _make_plugged(name: str) -> Allocator:
    """What a plug-in makes by this name, which is none of ours."""
    from importlib.metadata import entry_points  # 25 ms of start-up, and seldom needed

    plugins = entry_points(group=ENTRY_POINTS)
    _warn_of_ours(plugins)
    found = [plugin for plugin in plugins if plugin.name == name]
    if not found:
        known = ", ".join(sorted({*_BUILT_IN, *(plugin.name for plugin in plugins)}))
        raise BigmemError(f"there is no allocator called {name!r}; known are {known}")
    if len(found) > 1:
        clashing = " and ".join(sorted(map(_described, found)))
        raise BigmemError(
            f"several plug-ins register the allocator {name!r}: {clashing}; uninstall all but one"
        )
    (plugin,) = found
    try:
        allocator = plugin.load()()
    except BigmemError:  # it tells what is wrong itself
        raise
    except (Exception, SystemExit) as error:
        raise BigmemError(
            f"the plug-in {_described(plugin)} fails: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(allocator, Allocator):
        raise BigmemError(f"the plug-in {_described(plugin)} made no bigmem.Allocator")
    return allocator


def _warn_of_ours(plugins: Iterable[EntryPoint]) -> None:
    """Warn once of each plug-in that nobody can have, for bigmem has an allocator of its name."""
    for plugin in plugins:
        described = _described(plugin)
        if plugin.name in _BUILT_IN and described not in _told:
            _told.add(described)
            logging.getLogger("bigmem").warning(
                "the plug-in %s registers the allocator %r, a name that is bigmem's own: it cannot "
                "be had until it has another",
                described,
                plugin.name,
            )


def _described(plugin: EntryPoint) -> str:
    """What it would import, and who installed it."""
    whose = f" of {plugin.dist.name}" if plugin.dist is not None else ""
    return f"{plugin.value}{whose}"


def get_allocator() -> Allocator:
    """The process default: what `set_allocator` set, else what ``BIGMEM_ALLOCATOR`` names."""
    global _default
    if _default is None:
        made = make(os.environ.get("BIGMEM_ALLOCATOR", DEFAULT_NAME))
        # What another thread has made or set meanwhile stays.
        if _default is None:
            _default = made
    return _default


def set_allocator(allocator: Allocator | None) -> Allocator | None:
    """Make `allocator` the process default; `None` goes back to the environment's choice.

    Returns
    -------
    Allocator or None
        The default before the call, `None` if nobody had needed one yet.
    """
    global _default
    if allocator is not None and not isinstance(allocator, Allocator):
        raise TypeError(f"expected a bigmem.Allocator, not {type(allocator).__name__}")
    previous, _default = _default, allocator
    return previous


def flush(timeout: float | None = None) -> bool:
    """Flush every open allocator of the process; `False` if `timeout` seconds did not suffice."""
    deadline = None if timeout is None else time.monotonic() + timeout

    def done(allocator: Allocator) -> bool:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        return allocator.flush(left)

    return all(ask_all(done, tell=True))  # a fence may fail


def trim() -> int:
    """Give every warm byte of every open allocator back now; return how many bytes went back.

    What an allocator of others' raises is raised here once all the others are trimmed.
    """
    return sum(ask_all(lambda allocator: allocator.trim(), tell=True))


def stats() -> AllocatorStats:
    """The sum of what every open allocator holds and has done.

    Raises
    ------
    BigmemError
        An allocator of others' fails to tell, and which: without it the sum would be wrong.
        `bigmem.exporters.snapshot` has those that do tell.
    """
    total = AllocatorStats()
    for allocator in open_allocators():
        if isinstance(allocator, Wrapper):
            continue  # its are its upstream's, which is among them
        try:
            total += allocator.stats()
        except Exception as error:
            raise BigmemError(
                f"{allocator!r} cannot tell its figures: {type(error).__name__}: {error}"
            ) from error
    return total
