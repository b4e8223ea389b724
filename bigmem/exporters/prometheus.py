"""The stats of the allocators as Prometheus metrics; needs prometheus_client.

>>> from prometheus_client import REGISTRY
>>> from bigmem.exporters.prometheus import Collector
>>> REGISTRY.register(Collector())
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import replace

from bigmem.allocator import Allocator, AllocatorStats
from bigmem.exporters.snapshot import at_the_bottom

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector as _Collector
except ImportError as error:
    raise ImportError("Prometheus metrics need prometheus-client (pip install it)") from error

_LABELS = ("allocator",)
_GAUGES = {
    "live_bytes": "In use.",
    "pending_bytes": "Released and waiting for the reclaimer, or for a fence.",
    "reclaiming_bytes": "In the reclaimer's hands.",
    "warm_bytes": "Resident and reusable without a fault.",
    "lazy_bytes": "Given up with MADV_FREE, still counted in RSS.",
    "clean_bytes": "Address range that is kept, without memory.",
    "peak_live_bytes": "The most that was in use.",
    "peak_resident_bytes": "The most that was held.",
}
_COUNTERS = {
    "allocations": "Allocations.",
    "releases": "Releases.",
    "warm_hits": "Allocations served from warm memory.",
    "reclaimed_bytes": "Given back to the operating system.",
    "allocate_seconds": "Time that callers spent in allocations.",
    "release_seconds": "Time that callers spent in releases.",
    "reclaim_seconds": "Time that worker threads spent reclaiming.",
    "waits": "Allocations, flushes and trims that had to reclaim or to wait.",
    "wait_seconds": "How long they took.",
    "reclaim_failures": "Reclaims that the operating system refused.",
}


class Collector(_Collector):
    """Gives a registry ``bigmem_live_bytes{allocator="recycle"}`` and its like when it asks.

    Every field of `AllocatorStats` is a metric: what is held is a gauge, what has been done a
    counter. Allocators of one name are added up, wrappers left out. What an allocator had done when
    it was last asked stays in its name's counters when it is closed, so that they never fall.
    """

    def __init__(self) -> None:
        self._asked: dict[int, tuple[weakref.ref[Allocator], str, AllocatorStats]] = {}
        self._past: dict[str, AllocatorStats] = {}
        self._failed: weakref.WeakSet[Allocator] = weakref.WeakSet()
        self._lock = threading.Lock()

    def describe(self) -> Iterable[Metric]:
        """The metrics without figures: registering asks no allocator."""
        return _families({})

    def collect(self) -> Iterable[Metric]:
        """The metrics of this moment."""
        with self._lock:
            return _families(self._by_name())

    def _by_name(self) -> dict[str, AllocatorStats]:
        here = {id(one): one for one in at_the_bottom()}
        for key, (ref, name, last) in list(self._asked.items()):
            if ref() is None or here.get(key) is not ref():
                del self._asked[key]
                self._past[name] = self._past.get(name, AllocatorStats()) + _done(last)
        for key, one in here.items():
            try:
                stats = one.stats()
            except Exception as error:  # of others' allocators: the rest must be told all the same
                self._warn(one, error)
                continue
            # The format is UTF-8, which has no lone surrogates.
            name = one.name.encode(errors="backslashreplace").decode()
            self._asked[key] = (weakref.ref(one), name, stats)
        found = dict(self._past)
        for _, name, last in self._asked.values():
            found[name] = found.get(name, AllocatorStats()) + last
        return found

    def _warn(self, allocator: Allocator, error: Exception) -> None:
        if allocator in self._failed:
            return
        self._failed.add(allocator)
        logging.getLogger("bigmem").warning(
            "the stats of allocator %r fail with %s: %s; metrics have its last ones, if any",
            allocator.name,
            type(error).__name__,
            error,
        )


def _families(found: Mapping[str, AllocatorStats]) -> list[Metric]:
    gauges = [
        GaugeMetricFamily(f"bigmem_{name}", _GAUGES[name], labels=_LABELS) for name in _GAUGES
    ]
    counters = [
        CounterMetricFamily(f"bigmem_{name}", _COUNTERS[name], labels=_LABELS) for name in _COUNTERS
    ]
    families: list[GaugeMetricFamily | CounterMetricFamily] = [*gauges, *counters]
    for name, family in zip((*_GAUGES, *_COUNTERS), families, strict=True):
        for allocator, stats in found.items():
            family.add_metric([allocator], getattr(stats, _field(name)))
    return [*families]


def _field(name: str) -> str:
    """The field of `AllocatorStats` that a metric is of: its bytes are not named so."""
    return name.removesuffix("_bytes")


def _done(stats: AllocatorStats) -> AllocatorStats:
    """Only what has been done, of an allocator that holds nothing any more."""
    return replace(stats, **{_field(name): 0 for name in _GAUGES})
