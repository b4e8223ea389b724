"""Page-locked host memory, to and from which GPUs copy at full speed."""

import operator
import os
from typing import Any, Literal, SupportsIndex

from numpy.typing import NDArray

from .. import _core
from .._core import Block
from ..arena.pages import AnonymousPages
from ..budget import Budget
from ..errors import BigmemError, OutOfMemory
from ..native import NativeAllocator
from ..reclaim import ReclaimPool
from ..release import Deferred, Recycle, ReleasePolicy
from ..sizes import parse_size
from . import captures
from .driver import Cuda, explain, loaded, refuse_after_fork

Mechanism = Literal["vmm", "register", "alloc"]
# Seconds that memory of the other mechanisms waits for a moment in which no GPU is at work.
_PATIENCE = 10.0
_MECHANISMS: tuple[Mechanism, ...] = ("vmm", "register", "alloc")


class PinnedAllocator(NativeAllocator):
    """Cuts blocks of pinned memory from an address range that CUDA reserves once.

    The memory comes in chunks of 2 to 8 MiB when it is needed and goes back in the background, by
    calls that never make a kernel launch wait. Blocks are rounded to 4 KiB. A released block is
    reused or given back only when the GPUs are done with it: when everything that was `record`-ed
    of it is done or, if nothing was, all that had been submitted to any stream before the release.

    The device and the host have access to the memory; other devices copy from and to it like the
    device does only if they can reach its memory. A child of `fork` does not have it: reading it
    there ends the child by SIGSEGV.

    Parameters
    ----------
    device
        Number of the GPU. `None` takes the current one of this thread, or the first. Its primary
        context, which CuPy and PyTorch use as well, is created.
    release
        What becomes of released memory: `Inline`, `Deferred` or `Recycle`.
    reserve
        Address range to reserve at a time, in bytes or as a string; it costs no memory. `None`
        takes twice the machine's memory.
    budget
        Limit to keep, perhaps together with other allocators.
    reclaim
        Workers that give memory back; the process's own if `None`.
    wipe
        Whether contents are secret: overwritten before a released range can be reused or read by
        anyone.
    mechanism
        ``"vmm"``, CUDA's virtual memory. Where that is refused: ``"register"`` registers each block
        by itself, and ``"alloc"`` takes each from ``cudaHostAlloc``; then nothing is kept for
        reuse, so that `Recycle` does what `Deferred` does, and memory goes back when the GPUs
        happen to be idle, or after ten seconds by a call that may make the whole process wait (see
        `stalls`). `None` takes the first of the three that works.
    name
        What reports call it.

    Raises
    ------
    BigmemError
        There is no GPU, no driver or no package cuda-bindings, or the mechanism does not work here.
    """

    def __init__(
        self,
        device: SupportsIndex | None = None,
        *,
        release: ReleasePolicy | None = None,
        reserve: SupportsIndex | str | None = None,
        budget: Budget | None = None,
        reclaim: ReclaimPool | None = None,
        wipe: bool = False,
        mechanism: Mechanism | None = None,
        name: str | None = None,
    ) -> None:
        refuse_after_fork()
        captures.watch()
        if mechanism is not None and mechanism not in _MECHANISMS:
            raise BigmemError(f"mechanism is one of {', '.join(_MECHANISMS)}, not {mechanism!r}")
        cuda = loaded()
        self.device = _device(device, cuda)
        self.mechanism, self._table = _table(self.device, mechanism, cuda)
        _require_guards(cuda)
        self._fences = cuda.fences
        vmm = self.mechanism == "vmm"
        chosen = Recycle() if release is None else release
        if not vmm and isinstance(chosen, Recycle):
            chosen = Deferred()
        super().__init__(
            pages=AnonymousPages(huge="never" if vmm else "auto"),
            release=chosen,
            reserve=0 if reserve is None else parse_size(reserve),
            mapping_per_block=not vmm,
            budget=budget,
            reclaim=reclaim,
            wipe=wipe,
            name=name,
            table=self._table,
            fences=cuda.fences if vmm else _core.IdleFences(cuda.fences, _PATIENCE),
        )

    def allocate(
        self,
        nbytes: SupportsIndex | str,
        *,
        alignment: int = 64,
        zeroed: bool = False,
        prefault: bool | None = None,
    ) -> Block:
        """As `Allocator.allocate`; `prefault` changes nothing, since pinned memory is resident."""
        refuse_after_fork()
        captures.watch()
        self._table.take_failure()  # of giving back, or of an allocation that was served otherwise
        try:
            return super().allocate(nbytes, alignment=alignment, zeroed=zeroed)
        except OutOfMemory as error:
            failure = self._table.take_failure()
            if failure is None:
                raise
            refusal = f"{error}; {explain(failure)}"
        raise OutOfMemory(refusal)

    def prefault(self, nbytes: SupportsIndex | str) -> None:
        """Pin memory ahead, so that the next allocations of up to `nbytes` in all find it.

        Each block of 2 MiB and more begins at a multiple of 2 MiB: for several blocks, ask for the
        sum of their sizes, each rounded up to that.

        Parameters
        ----------
        nbytes
            Size in bytes, or a string such as ``"8GiB"``.

        Raises
        ------
        BigmemError
            Nothing stays warm here: the release policy is not `Recycle`.
        OutOfMemory
            There is not so much memory.
        """
        if not isinstance(self.release, Recycle):
            raise BigmemError(f"{self!r} keeps nothing warm: prefault() needs Recycle and vmm")
        block = self.allocate(nbytes)
        # Nobody has used it, so nobody need be waited for.
        self._fences.attach(block.address, self._fences.past())
        block.release()

    def flush(self, timeout: float | None = None) -> bool:
        captures.watch()
        return super().flush(timeout)

    def trim(self) -> int:
        captures.watch()
        return super().trim()

    @property
    def stalls(self) -> int:
        """How often pinning or giving back may have made the process wait for a GPU; 0 with vmm."""
        return self._table.stalls()[0]

    @property
    def stall_seconds(self) -> float:
        """How long that took."""
        return self._table.stalls()[1]


def is_pinned(array: NDArray[Any], device: int) -> bool:
    """Whether an array has all its memory, without gaps, in a living block pinned for the device.

    Unlike `record` and what is below it, asking this leaves no trace on the block.
    """
    begin = array.ctypes.data
    block = _core.block_at(begin)
    return (
        block is not None
        and isinstance(block.allocator, PinnedAllocator)
        and block.allocator.device == device
        and array.flags.c_contiguous
        and begin + array.nbytes <= block.address + block.nbytes
    )


def _require_guards(cuda: Cuda) -> None:
    try:
        cuda.fences.probe()
    except BigmemError as error:
        raise BigmemError(
            f"CUDA does not tell when all that a GPU does is done ({error}): blocks of which "
            "nothing was recorded could never be reused"
        ) from None


def _device(device: SupportsIndex | None, cuda: Cuda) -> int:
    if device is None:
        return cuda.driver.device_of() or 0
    try:
        number = operator.index(device)
    except TypeError:
        raise BigmemError(f"device is the number of a GPU, not {device!r}") from None
    if not 0 <= number < cuda.devices:
        raise BigmemError(f"there is no GPU {number}: the driver shows {cuda.devices}")
    return number


def _table(
    device: int, mechanism: Mechanism | None, cuda: Cuda
) -> tuple[Mechanism, _core.CudaPages]:
    """The pages of a mechanism, or of the first that works, after trying it."""
    refusals = []
    for tried in _MECHANISMS if mechanism is None else (mechanism,):
        table = _core.CudaPages(cuda.driver, device, tried, cuda.fences)
        error = table.probe()
        if not error:
            return tried, table
        failure = table.take_failure()
        refusals.append(f"{tried}: {explain(failure) if failure else os.strerror(error)}")
    raise BigmemError(f"GPU {device} cannot use pinned memory ({'; '.join(refusals)})")
