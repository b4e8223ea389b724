"""How arrays of the host get to a GPU: through pinned memory, where there is some."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from numpy.typing import NDArray

import bigmem
from bigmem.cuda import PinnedAllocator, upload
from prover.backends.base import Bytes
from prover.backends.cuda.announce import Notify

Piece = tuple[NDArray[Any], Any]
"""An array of the host, and one of as many bytes on the device."""

PINNED_BYTES = 288 << 20
"""What `upload` takes at most, three times: one is filled while the GPU reads one and one is wiped.

With less, uploads in a row give pinned memory back and pin it anew, which takes far longer.
"""


class Staging:
    """Copies arrays to one GPU by way of a little pinned memory, which is kept.

    Without pinned memory the driver stages the copies, at a sixth of the speed. That is settled
    here, or when pinned memory is refused later, and holds from then on.

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
        if self._allocator is not None:
            targets = (target for _, target in pieces)
            try:
                upload(_read(pieces, drop), targets, stream, allocator=self._allocator)
                return
            except (bigmem.BigmemError, MemoryError) as error:
                self._do_without(error)
        for source, target in pieces:
            target.set(source)
            drop(source)

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
