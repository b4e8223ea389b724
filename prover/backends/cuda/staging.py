"""How arrays of the host get to a GPU: through pinned memory, where there is some."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from threading import Lock
from typing import Any

from numpy.typing import NDArray

import bigmem
from bigmem.cuda import PinnedAllocator, Uploads, record
from bigmem.cuda.pinned import is_pinned
from prover.backends.base import Bytes
from prover.backends.cuda.announce import Notify

Piece = tuple[NDArray[Any], Any]
"""An array of the host, and one of as many bytes on the device."""

PINNED_BYTES = 384 << 20
"""Four times what `Uploads` takes at most: of the two streams that a proof may copy in, what it
copies through, and what was copied through before that, while it is wiped.

With less, a proof may have to give pinned memory back and pin it anew, which takes far longer.
"""


class Staging:
    """Copies arrays to one GPU by way of a little pinned memory.

    All copies of a stream up to `release` go through the same memory, however many they are. Only
    then it is wiped, in the background: one thread wipes more slowly than several copy.

    Without pinned memory the driver stages the copies, at a sixth of the speed. That is settled
    here, or when pinned memory is refused later, and holds from then on. What is pinned itself is
    copied as it is.

    Parameters
    ----------
    number
        Which GPU.
    notify
        Told in a line when there is no pinned memory.

    Attributes
    ----------
    lack
        Why there is no pinned memory; None where there is.
    """

    def __init__(self, number: int, notify: Notify | None = None) -> None:
        self._number = number
        self._notify = notify
        self._allocator: PinnedAllocator | None = None
        self._uploads: dict[int, Uploads] = {}  # by the handle of the stream
        self._lock = Lock()  # nobody may release what another thread is copying through
        self.lack: str | None = None
        try:
            # The other mechanisms reuse nothing, and may make the whole process wait.
            self._allocator = PinnedAllocator(
                number,
                mechanism="vmm",
                budget=bigmem.Budget(PINNED_BYTES),
                wipe=True,  # witnesses come this way
                name=f"copies to GPU {number}",
            )
        except bigmem.BigmemError as error:
            self._do_without(error)

    def copy(self, pieces: Sequence[Piece], stream: Any, drop: Callable[[Bytes], None]) -> None:
        """Submit copies to a stream, which is the current one; the sources may change afterwards.

        ``drop`` is told of each source that has been read.
        """
        if pieces and all(is_pinned(source, self._number) for source, _ in pieces):
            try:
                for source, target in pieces:
                    target.set(source)
            finally:
                stream.synchronize()  # the GPU itself reads the sources
            for source, _ in pieces:
                drop(source)
        elif not self._copy_through_pinned(pieces, stream, drop):
            for source, target in pieces:
                target.set(source)
                drop(source)

    def was_read(self, sources: Iterable[NDArray[Any]], stream: Any) -> None:
        """Record on a stream what nobody else's copies are under way of; see `Device.was_read`."""
        for source in sources:
            if is_pinned(source, self._number):
                with suppress(bigmem.BigmemError):  # then its memory waits for all GPU work
                    record(source, stream)

    def release(self) -> None:
        """Let go of the memory that was copied through; it is wiped when the GPU has read it."""
        with self._lock:
            for uploads in self._uploads.values():
                uploads.close()
            self._uploads.clear()

    def _copy_through_pinned(
        self, pieces: Sequence[Piece], stream: Any, drop: Callable[[Bytes], None]
    ) -> bool:
        with self._lock:
            if self._allocator is None:
                return False
            uploads = self._uploads.get(stream.ptr)
            try:
                if uploads is None:
                    uploads = Uploads(stream, allocator=self._allocator)
                    self._uploads[stream.ptr] = uploads
                uploads.send(_read(pieces, drop), (target for _, target in pieces))
            except (bigmem.BigmemError, MemoryError) as error:
                self._do_without(error)
                return False
        return True

    def _do_without(self, error: Exception) -> None:
        self._allocator, self.lack = None, str(error) or type(error).__name__
        if self._notify is not None:
            self._notify(
                f"copies to GPU {self._number} take six times as long, from pageable memory: "
                f"{self.lack}"
            )


def _read(pieces: Sequence[Piece], drop: Callable[[Bytes], None]) -> Iterator[NDArray[Any]]:
    """The sources, each dropped when the next is asked for."""
    for source, _ in pieces:
        yield source
        drop(source)
