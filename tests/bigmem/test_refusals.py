"""Refusals: only where they must be, and without a trace when they are over."""

import errno
import gc
import math
import threading
from collections.abc import Callable

import numpy as np
import pytest
from waiting import wait_for

import bigmem
from bigmem import _core
from bigmem.native import NativeAllocator

Native = Callable[..., NativeAllocator]
MIB = 1 << 20


def test_a_caught_refusal_keeps_no_array_of_its_callers(native: Native) -> None:
    table = _core.ProbedPages()
    # A mapping for each block, so that every one asks the system.
    allocator = native(bigmem.Inline(), "never", mapping_per_block=True, table=table)
    other = native(bigmem.Recycle(), "never")

    def work() -> None:
        mine = bigmem.empty(8 * MIB, np.uint8, allocator=allocator)
        assert allocator.stats().live == mine.nbytes
        other.allocate(4 * MIB)  # idle at once: trimming finds it, and the system is asked again
        table.refuse("reserve", errno.ENOMEM)
        bigmem.empty(4 * MIB, np.uint8, allocator=allocator)

    gc.disable()
    try:
        with pytest.raises(bigmem.OutOfMemory, match="the system refused 4194304 bytes") as caught:
            work()
        del caught
        assert table.calls("reserve")[0] == 3
        assert allocator.stats().live == 0
    finally:
        gc.enable()


@pytest.mark.parametrize("huge", ["never", "always"])
def test_alignments_beyond_the_size_of_a_region(huge: str) -> None:
    allocator = bigmem.ArenaAllocator(
        pages=bigmem.AnonymousPages(huge=huge),  # type: ignore[arg-type]
        release=bigmem.Inline(),
        reserve="64MiB",
    )
    size = 4096 if huge == "never" else 2 * MIB
    held = [allocator.allocate(size) for _ in range(60)]
    # More holes than best fit looks at one by one.
    del held[::2]
    for _ in range(3):
        block = allocator.allocate(size, alignment=1 << 30)
        assert block.address % (1 << 30) == 0
        held.append(block)


@pytest.mark.parametrize(
    "policy", [bigmem.Inline(), bigmem.Deferred(), bigmem.Recycle(), bigmem.Recycle(advice="free")]
)
def test_what_fits_is_never_refused_because_others_release_meanwhile(
    policy: bigmem.Recycle,
) -> None:
    size, slots = 4 * MIB, 6
    budget = bigmem.Budget(size * slots)
    arenas = [bigmem.ArenaAllocator(release=policy, budget=budget) for _ in range(2)]
    room = threading.Semaphore(slots)
    failures: list[bigmem.OutOfMemory] = []

    def work(seed: int) -> None:
        for step in range(2500):
            with room:
                try:
                    arenas[(seed + step) % 2].allocate(size).release()
                except bigmem.OutOfMemory as error:
                    failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


def test_what_can_never_fit_disturbs_nobody() -> None:
    budget = bigmem.Budget("32MiB", timeout=30)
    allocator = bigmem.ArenaAllocator(budget=budget, release=bigmem.Recycle(decay=1000))
    called: list[int] = []
    budget.on_pressure(called.append)
    allocator.allocate("8MiB").release()
    with pytest.raises(bigmem.OutOfMemory, match="no room for 33 MiB in a budget of 32 MiB"):
        allocator.allocate("33MiB")
    assert allocator.stats().warm == 8 * MIB
    assert called == []


@pytest.mark.parametrize("timeout", [None, "10", -1, float("nan"), True])
def test_a_timeout_is_a_number_of_seconds(timeout: object) -> None:
    with pytest.raises(bigmem.BigmemError, match="timeout is a number of seconds"):
        bigmem.Budget("1GiB", timeout=timeout)  # type: ignore[arg-type]


class DeviceLost:
    def __init__(self) -> None:
        self.lost = False

    def query(self) -> bool:
        if self.lost:
            raise RuntimeError("device lost")
        return False


def test_a_fence_that_raises_is_its_own_allocators_matter(
    native: Native, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", lambda report: reported.append(report.exc_value))
    budget = bigmem.Budget("16MiB", timeout=0.05)
    mine, other = (native(bigmem.Recycle(), "never", budget=budget) for _ in range(2))
    bystander = native(bigmem.Deferred(), "never")
    event = DeviceLost()
    block = mine.allocate(4 * MIB)
    block.fence(event)
    block.release()
    event.lost = True
    for _ in range(3):
        bystander.allocate(MIB).release()
        assert bystander.flush(10)
        bystander.trim()
        other.allocate(8 * MIB).release()
        mine.allocate(12 * MIB).release()  # takes what the other has warm
        mine.trim()
    assert [str(error) for error in reported] == ["device lost"]
    with pytest.raises(RuntimeError, match="device lost"):
        mine.flush(1)
    with pytest.raises(RuntimeError, match="device lost"):
        bigmem.flush(1)
    assert mine.stats().pending == 4 * MIB
    event.lost = False
    event.__class__.query = lambda self: True  # type: ignore[method-assign]
    assert mine.flush(10)


class Failing(bigmem.SystemAllocator):
    """Of somebody else's, and broken."""

    def trim(self) -> int:
        raise RuntimeError("no trim")

    def stats(self) -> bigmem.AllocatorStats:
        raise RuntimeError("no stats")


def test_an_allocator_that_fails_to_trim_keeps_nobody_from_trimming(native: Native) -> None:
    table = _core.ProbedPages()

    class Last(bigmem.SystemAllocator):
        def trim(self) -> int:
            table.refuse("reserve", 0)  # now there is room again
            return 1

    with Failing():
        mine = native(bigmem.Inline(), "never", mapping_per_block=True, table=table)
        idle = native(bigmem.Recycle(decay=math.inf), "never")
        idle.allocate(4 * MIB).release()
        with pytest.raises(RuntimeError, match="no trim"):
            bigmem.trim()
        assert idle.stats().warm == 0
        table.refuse("reserve", errno.ENOMEM)
        with pytest.raises(bigmem.OutOfMemory, match="the system refused"):
            mine.allocate(8 * MIB)
        with Last():
            assert mine.allocate(8 * MIB).nbytes == 8 * MIB


def test_a_trim_that_fails_keeps_no_array_of_its_callers(native: Native) -> None:
    allocator = native(bigmem.Inline(), "never")

    def work() -> None:
        mine = bigmem.empty(8 * MIB, np.uint8, allocator=allocator)
        assert allocator.stats().live == mine.nbytes
        bigmem.trim()

    gc.disable()
    try:
        with Failing(), pytest.raises(RuntimeError, match="no trim"):
            work()
        assert allocator.stats().live == 0
    finally:
        gc.enable()


def test_a_sum_that_lacks_an_allocator_is_not_told(native: Native) -> None:
    native(bigmem.Recycle(), "never")
    with Failing(name="theirs"):
        told = r"<Failing 'theirs'> cannot tell its figures: RuntimeError: no stats"
        with pytest.raises(bigmem.BigmemError, match=told) as refusal:
            bigmem.stats()
        assert isinstance(refusal.value.__cause__, RuntimeError)
    assert bigmem.stats().live >= 0


def test_what_looking_for_a_fence_raises_is_not_hidden(native: Native) -> None:
    class Broken:
        @property
        def done(self) -> bool:
            raise ValueError("no context")

    with pytest.raises(ValueError, match="no context"):
        native(bigmem.Recycle(), "never").allocate(1).fence(Broken())


def test_memory_of_a_block_that_was_made_during_close_goes_back(native: Native) -> None:
    table = _core.ProbedPages()
    allocator = native(bigmem.Deferred(), "never", table=table)
    table.delay("reserve", 0.3)
    made: list[bigmem.Block] = []
    thread = threading.Thread(target=lambda: made.append(allocator.allocate(8 * MIB)))
    thread.start()
    while not table.calls("reserve")[0]:
        pass
    allocator.close()
    thread.join()
    assert allocator.stats().live == 8 * MIB
    made.clear()
    wait_for(lambda: allocator.stats().resident == 0)
