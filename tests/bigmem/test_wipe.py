"""Secret contents: gone before anyone else can see the range."""

from collections.abc import Callable

import numpy as np
import pytest

import bigmem
from bigmem import _core
from bigmem.native import NativeAllocator

Native = Callable[..., NativeAllocator]
Run = Callable[..., str]
MIB = 1 << 20
SECRET = 0xA5


KINDS = [
    (bigmem.Inline(), False),
    (bigmem.Inline(advice="free"), False),
    (bigmem.Deferred(), False),
    (bigmem.Deferred(advice="free"), False),
    (bigmem.Recycle(), False),
    (bigmem.Recycle(decay=0.01, advice="free"), False),
    (bigmem.Inline(), True),
    (bigmem.Deferred(), True),
]


@pytest.fixture(params=KINDS, ids=lambda kind: f"{kind[0]}{'-mapped' * kind[1]}")
def kind(request: pytest.FixtureRequest) -> object:
    return request.param


def fill(allocator: bigmem.Allocator, nbytes: int) -> "np.ndarray[tuple[int], np.dtype[np.uint8]]":
    return bigmem.full(nbytes, SECRET, np.uint8, allocator=allocator)


@pytest.mark.parametrize("huge", ["never", "always"])
def test_what_is_reused_reads_as_zero(
    native: Native, kind: "tuple[bigmem.Recycle, bool]", huge: str
) -> None:
    allocator = native(kind[0], huge, mapping_per_block=kind[1], wipe=True)
    for size in (100, 40_000, 3 * MIB + 5, 8 * MIB):
        for _ in range(3):
            held = [fill(allocator, size) for _ in range(3)]
            del held
            # Not flushed: whatever may be handed out now has been wiped by now.
            fresh = [bigmem.empty(size, np.uint8, allocator=allocator) for _ in range(4)]
            assert not any(array.any() for array in fresh)
            del fresh
            assert allocator.flush(20)
            again = bigmem.empty(size, np.uint8, allocator=allocator)
            assert not again.any()


@pytest.mark.parametrize("huge", ["never", "always"])
def test_contents_are_overwritten_before_memory_goes_back(
    native: Native, kind: "tuple[bigmem.Recycle, bool]", huge: str
) -> None:
    table = _core.ProbedPages()
    allocator = native(kind[0], huge, mapping_per_block=kind[1], table=table, wipe=True)
    array = fill(allocator, 4 * MIB)
    del array
    assert allocator.flush(20)
    allocator.trim()
    # What was made lazy meanwhile is looked at once more.
    assert table.calls("wipe")[1] in (4 * MIB, 8 * MIB)


def test_recycled_memory_stays_warm_and_is_known_to_be_zero(native: Native) -> None:
    allocator = native(bigmem.Recycle(), "never", wipe=True)
    array = fill(allocator, 8 * MIB)
    address = array.ctypes.data
    del array
    assert allocator.flush(20)
    assert allocator.stats().warm == 8 * MIB
    zeros = bigmem.zeros(8 * MIB, np.uint8, allocator=allocator)
    assert zeros.ctypes.data == address
    assert allocator.stats().warm_hits == 1
    assert not zeros.any()


def test_fenced_contents_stay_until_the_fence_is_done(native: Native) -> None:
    class Event:
        done = False

    event = Event()
    allocator = native(bigmem.Recycle(), "never", wipe=True)
    block = allocator.allocate(MIB)
    view = np.frombuffer(block, np.uint8)  # type: ignore[call-overload]
    view[:] = SECRET
    address = block.address
    del view
    block.fence(event)
    block.release()
    assert not allocator.flush(0.1)
    import ctypes

    assert ctypes.string_at(address, 16) == bytes([SECRET]) * 16
    event.done = True
    assert allocator.flush(20)
    assert ctypes.string_at(address, 16) == bytes(16)


@pytest.mark.parametrize("mapped", [False, True])
def test_no_dump_and_no_child_has_secret_memory(run_prepared: Run, mapped: bool) -> None:
    run_prepared(
        """
        from kernel import flags
        mapped = sys.argv[1] == "True"
        make = bigmem.MappedAllocator if mapped else bigmem.ArenaAllocator
        for size in (40_000, 8 << 20):
            allocator = make(wipe=True, release=bigmem.Deferred())
            array = fill(allocator, size, 0xA5)
            assert {"dd", "wf"} <= flags(array.ctypes.data // 4096 * 4096, size)
            child = os.fork()
            if child == 0:
                good = not array.any()
                array[:] = 1
                mine = fill(allocator, size, 2)
                del array, mine
                os._exit(0 if good and allocator.flush(10) else 1)
            assert os.waitpid(child, 0)[1] == 0
            assert (array == 0xA5).all()
        """,
        str(mapped),
    )
