"""A clock for layers that stands still until it is told, and their trees as dictionaries."""

import importlib

import bigmem

module = importlib.import_module("bigmem.layers")  # the name in the package is the function


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def tick(self, seconds: float) -> None:
        self.now += seconds


def flat(
    layers: tuple[bigmem.LayerTimes, ...], path: tuple[str, ...] = ()
) -> dict[tuple[str, ...], tuple[int, float, float]]:
    """Calls, wall and inner seconds by path, after a look at what follows from them."""
    found = {}
    for one in layers:
        here = (*path, one.name)
        assert here not in found
        assert one.gap_s == one.wall_s - one.inner_s >= 0
        assert one.share == (one.gap_s / one.wall_s if one.wall_s else 0)
        found[here] = (one.calls, one.wall_s, one.inner_s)
        found |= flat(one.layers, here)
    return found
