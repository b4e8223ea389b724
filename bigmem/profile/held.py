"""What bigmem's allocators hold in a program, over its life."""

from __future__ import annotations

from bigmem.exporters.reader import content_of, is_snapshot

_STATES = ("live", "pending", "warm", "resident")
_MOST = 20_000


class Held:
    """Bytes by state, whenever they have changed: of too many changes every second one goes.

    Attributes
    ----------
    samples
        Times of the monotonic clock in seconds, and bytes by state.
    """

    def __init__(self, page: int, most: int = _MOST) -> None:
        self.samples: list[tuple[float, dict[str, int]]] = []
        self._page = page
        self._most = most
        self._before = dict.fromkeys(_STATES, 0)

    def sample(self) -> None:
        """Look into the page, which is open for reading."""
        content = content_of(self._page)
        if content is None or not is_snapshot(content):
            return
        states = {name: int(content["total"].get(name, 0)) for name in _STATES}
        if states == self._before:
            return
        self._before = states
        self.samples.append((content["monotonic"], states))
        if len(self.samples) >= self._most:
            del self.samples[::2]
