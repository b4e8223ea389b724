"""Blocks whose bytes say where they belong."""

import resource

import numpy as np
import numpy.typing as npt
from kernel import MIB

import bigmem

# As long as a prime, so that bytes which have moved by whole pages do not look right by chance.
PATTERN = np.resize(np.arange(251, dtype=np.uint8), 64 * MIB)


def view(block: bigmem.Block) -> npt.NDArray[np.uint8]:
    return np.frombuffer(memoryview(block), np.uint8)


def patterned(allocator: bigmem.Allocator, nbytes: int, alignment: int = 64) -> bigmem.Block:
    block = allocator.allocate(nbytes, alignment=alignment)
    if nbytes:
        view(block)[:] = PATTERN[:nbytes]
    return block


def holds_pattern(block: bigmem.Block, nbytes: int) -> bool:
    return nbytes == 0 or bool((view(block)[:nbytes] == PATTERN[:nbytes]).all())


def page_faults() -> int:
    """Minor page faults of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
