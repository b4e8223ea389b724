"""What allocators around an allocator have in common."""

import time

from ..allocator import Allocator, AllocatorStats


class Wrapper(Allocator):
    """Serves blocks that stand on blocks of another allocator; subclass it and define `allocate`.

    A block of a wrapper keeps the block below it until it is let go, after its own fences.
    `flush` and `trim` act on the upstream too, and `stats` are the upstream's. `close` is not
    passed on: a wrapper does not own what it wraps, others may use it. An upstream that nobody
    else refers to gives its memory back once the wrapper and its blocks are gone.

    Parameters
    ----------
    upstream
        The allocator to wrap, which may be a wrapper itself.
    name
        What error messages and reports call it; by default the class and the upstream's name, as
        in ``"Traced(recycle)"``.
    """

    def __init__(self, upstream: Allocator, *, name: str | None = None) -> None:
        if not isinstance(upstream, Allocator):
            raise TypeError(f"expected a bigmem.Allocator, not {type(upstream).__name__}")
        self.upstream = upstream
        super().__init__(name=f"{type(self).__name__}({upstream.name})" if name is None else name)

    def flush(self, timeout: float | None = None) -> bool:
        start = time.monotonic()
        # First what waits for fences here: it reaches the upstream afterwards.
        if not super().flush(timeout):
            return False
        left = None if timeout is None else max(0.0, start + timeout - time.monotonic())
        return self.upstream.flush(left)

    def trim(self) -> int:
        return self.upstream.trim()

    def stats(self) -> AllocatorStats:
        return self.upstream.stats()
