"""The pinned allocator over a driver without a GPU."""

import builtins
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waiting import wait_for

import bigmem
import bigmem.cuda
from bigmem import _core
from bigmem.cuda import PinnedAllocator, capturing, driver, pinned, record

MIB = 1 << 20
INVALID_DEVICE, OUT_OF_MEMORY, ILLEGAL_ADDRESS, ALREADY_REGISTERED = 101, 2, 700, 712
NOT_SUPPORTED = 801
# What the driver is asked for on the way to a block.
STEPS = ["cuDevicePrimaryCtxRetain", "cuMemAddressReserve", "cuMemCreate", "cuMemMap"]


def test_growth_is_exact_to_two_mebibytes(fake: _core.FakeCuda) -> None:
    block = PinnedAllocator().allocate("129.5MiB")
    assert fake.memory() == 130 * MIB
    rest = block.allocator.allocate("0.5MiB")
    assert fake.memory() == 130 * MIB
    assert rest.address == block.address + block.nbytes


def test_a_block_of_several_chunks_is_one_range(fake: _core.FakeCuda) -> None:
    array = bigmem.empty(50 * MIB, np.uint8, allocator=PinnedAllocator())
    array[:] = 3
    stream, target = fake.stream(), np.zeros_like(array)
    cuda = driver.loaded()
    cuda.driver.copy_to_device(target.ctypes.data, array.ctypes.data, array.nbytes, stream)
    assert not target.any()
    fake.finish(stream)
    assert (target == 3).all()


def test_warm_memory_is_reused_without_asking_for_more(fake: _core.FakeCuda) -> None:
    allocator = PinnedAllocator()
    allocator.allocate(20 * MIB).release()
    assert allocator.flush(10)
    asked = [fake.calls(name) for name in ("cuMemCreate", "cuMemMap", "cuMemSetAccess")]
    block = allocator.allocate(20 * MIB)
    assert [fake.calls(name) for name in ("cuMemCreate", "cuMemMap", "cuMemSetAccess")] == asked
    assert allocator.stats().warm_hits == 1
    del block


def test_prefaulted_memory_is_warm_while_the_gpu_works(fake: _core.FakeCuda) -> None:
    fake.submit()
    allocator = PinnedAllocator()
    allocator.prefault("20MiB")
    created = fake.calls("cuMemCreate")
    blocks = [allocator.allocate(10 * MIB) for _ in range(2)]
    assert fake.calls("cuMemCreate") == created
    assert all(np.frombuffer(memoryview(block), np.uint8).sum() == 0 for block in blocks)
    with pytest.raises(bigmem.BigmemError, match="needs Recycle"):
        PinnedAllocator(release=bigmem.Deferred()).prefault(1)


def test_trim_gives_back_all_but_the_units_of_live_blocks(fake: _core.FakeCuda) -> None:
    allocator = PinnedAllocator()
    kept = allocator.allocate(MIB)
    memoryview(kept)[:4] = b"kept"
    for size in (48 * MIB, 11 * MIB, 300_000):
        allocator.allocate(size).release()
    allocator.trim()
    # The chunk that it is in goes as a whole.
    assert fake.memory() <= 8 * MIB
    assert bytes(memoryview(kept)[:4]) == b"kept"
    kept.release()
    allocator.trim()
    assert fake.memory() == 0


def test_decay_gives_memory_back(fake: _core.FakeCuda) -> None:
    allocator = PinnedAllocator(release=bigmem.Recycle(decay=0.05))
    allocator.allocate(40 * MIB).release()
    wait_for(lambda: fake.memory() == 0)


def test_an_allocator_that_is_gone_leaves_nothing(fake: _core.FakeCuda) -> None:
    allocator = PinnedAllocator()
    block = allocator.allocate(5 * MIB)
    del allocator
    memoryview(block)[:3] = b"yes"
    del block
    wait_for(lambda: fake.memory() == 0)


def test_a_budget_is_shared_and_waits_for_the_gpu(fake: _core.FakeCuda) -> None:
    budget = bigmem.Budget("64MiB", timeout=0.2)
    allocator = PinnedAllocator(budget=budget)
    ordinary = bigmem.ArenaAllocator(budget=budget).allocate("16MiB")
    stream = fake.stream()
    block = allocator.allocate("40MiB")
    fake.submit(stream)
    record(block, stream)
    block.release()
    with pytest.raises(bigmem.OutOfMemory):
        allocator.allocate("41MiB")
    fake.finish()
    assert allocator.allocate("41MiB").nbytes == 41 * MIB
    del ordinary


@pytest.mark.parametrize("function", STEPS)
def test_a_refusal_is_named_and_passes(fake: _core.FakeCuda, function: str) -> None:
    if function == "cuDevicePrimaryCtxRetain":
        fake.fail(function, INVALID_DEVICE)
        with pytest.raises(bigmem.BigmemError, match="Retain: CUDA_ERROR_INVALID_DEVICE"):
            PinnedAllocator()
        return
    allocator = PinnedAllocator()
    fake.fail(function, OUT_OF_MEMORY)
    with pytest.raises(bigmem.OutOfMemory, match=f"{function}: CUDA_ERROR_OUT_OF_MEMORY"):
        allocator.allocate(9 * MIB)
    assert fake.memory() == 0
    fake.fail(function, 0)
    assert allocator.allocate(9 * MIB).nbytes == 9 * MIB


@pytest.mark.parametrize("after", range(24))
def test_no_failure_loses_memory(fake: _core.FakeCuda, after: int) -> None:
    """Whichever call fails, once: nothing is lost, and what is written stays."""
    allocator = PinnedAllocator(release=bigmem.Deferred())
    kept = bigmem.empty(3 * MIB, np.uint8, allocator=allocator)
    kept[:] = 9
    names = ["cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemAddressReserve"]
    names += ["cuEventCreate", "cuCtxRecordEvent", "cuEventQuery"]
    fake.fail(names[after % len(names)], 999, after=after // len(names), times=1)
    for size in (20 * MIB, MIB):
        try:
            allocator.allocate(size, zeroed=True).release()
        except bigmem.OutOfMemory:
            assert fake.calls("cuMemCreate")
        assert allocator.flush(20)
    assert (kept == 9).all()
    del kept
    assert allocator.flush(20)
    # What the driver once refused to take is only reused, or goes with the arena.
    del allocator
    wait_for(lambda: fake.memory() == 0)


@pytest.mark.parametrize("refusals", [1, 3])
def test_what_could_not_be_undone_is_undone_later(fake: _core.FakeCuda, refusals: int) -> None:
    """The allocator is of use again as soon as the driver unmaps again."""
    allocator = PinnedAllocator()
    fake.fail("cuMemSetAccess", 999, times=1)
    fake.fail("cuMemUnmap", 999, times=refusals)
    for _ in range(refusals):
        with pytest.raises(bigmem.OutOfMemory, match="cuMemUnmap: CUDA_ERROR_UNKNOWN"):
            allocator.allocate(8 * MIB)
        assert fake.memory() == 8 * MIB
    block = allocator.allocate(20 * MIB, zeroed=True)
    assert not np.frombuffer(memoryview(block), np.uint8).any()
    assert fake.memory() == 20 * MIB
    block.release()
    assert allocator.flush(10)
    allocator.trim()
    assert fake.memory() == 0


@pytest.mark.parametrize("mechanism", ["register", "alloc"])
def test_where_virtual_memory_is_refused(
    fake: _core.FakeCuda, monkeypatch: pytest.MonkeyPatch, mechanism: str
) -> None:
    _core.FakeCuda(host_vmm=False)
    monkeypatch.setattr(pinned, "_PATIENCE", 0.2)
    with pytest.raises(bigmem.BigmemError, match="vmm: Operation not supported"):
        PinnedAllocator(mechanism="vmm")
    if mechanism == "alloc":
        fake.fail("cuMemHostRegister", 801)
    allocator = PinnedAllocator()
    assert allocator.mechanism == mechanism
    block = allocator.allocate("5MiB", zeroed=True)
    assert not np.frombuffer(memoryview(block), np.uint8).any()
    stream = fake.stream()
    fake.submit(stream)
    block.release()
    assert not allocator.flush(0.05)
    assert allocator.stats().pending == 5 * MIB
    fake.finish()
    assert allocator.flush(10)
    wait_for(lambda: fake.memory() == 0)  # out of the map a moment before
    assert (allocator.stalls, fake.stalls()) == (0, 0)
    # With something at work all the time pinning stalls, giving back does after a while.
    fake.submit(stream)
    allocator.allocate("3MiB").release()
    assert allocator.stalls == fake.stalls() == 1
    assert not allocator.flush(1)  # five times as long as the memory waits for an idle GPU
    fake.submit(fake.stream())
    fake.finish(stream)
    assert allocator.flush(10)
    wait_for(lambda: allocator.stalls == 2)
    assert fake.stalls() == 2
    assert allocator.stall_seconds > 0
    wait_for(lambda: fake.memory() == 0)


def test_why_registering_may_be_refused(fake: _core.FakeCuda) -> None:
    allocator = PinnedAllocator(mechanism="register")
    fake.fail("cuMemHostRegister", ALREADY_REGISTERED)
    with pytest.raises(bigmem.OutOfMemory, match=r"ALREADY_REGISTERED; .*unregister before"):
        allocator.allocate(MIB)
    fake.fail("cuMemHostRegister", OUT_OF_MEMORY)
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    low = 65536 if hard == resource.RLIM_INFINITY else min(65536, hard)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (low, hard))
    try:
        with pytest.raises(bigmem.OutOfMemory, match=rf"may lock {low} bytes .*ulimit -l"):
            allocator.allocate(MIB)
    finally:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (soft, hard))


def test_a_lost_gpu_is_an_error_and_no_hang(fake: _core.FakeCuda) -> None:
    allocator = PinnedAllocator()
    stream = fake.stream()
    blocks = [allocator.allocate(4 * MIB) for _ in range(3)]
    fake.submit(stream)
    record(blocks[0], stream)
    blocks.pop().release()
    blocks.pop(0).release()
    fake.lose(ILLEGAL_ADDRESS)
    blocks.pop().release()
    assert allocator.flush(10)
    with pytest.raises(bigmem.OutOfMemory, match="cuMemCreate"):
        allocator.allocate(100 * MIB)
    with pytest.raises(bigmem.BigmemError):
        record(allocator.allocate(MIB), stream)
    fake.lose(0)


def test_a_reset_device_is_no_hang(fake: _core.FakeCuda) -> None:
    allocator = PinnedAllocator()
    stream = fake.stream()
    block = allocator.allocate(4 * MIB)
    fake.submit(stream)
    record(block, stream)
    block.release()
    fake.reset_device(0)
    assert allocator.flush(10)
    # The new context has the address of the old one, and pooled events are of that.
    fake.activate(0)
    fake.submit(stream)
    allocator.allocate(4 * MIB).release()
    assert not allocator.flush(0.05)
    fake.finish()
    assert allocator.flush(10)


def test_which_device(fake: _core.FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(bigmem.BigmemError, match="no GPU 1: the driver shows 1"):
        PinnedAllocator(1)
    two = _core.FakeCuda(devices=2)
    monkeypatch.setattr(driver, "_loaded", None)
    assert PinnedAllocator(np.int64(1)).device == 1
    assert PinnedAllocator().device == 0
    assert two.calls("cuDeviceGetCount")


def test_what_is_missing_is_said(fake: _core.FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.fail("cuInit", 999)
    with pytest.raises(bigmem.BigmemError, match=r"does not start.*CUDA_ERROR_UNKNOWN"):
        bigmem.make("pinned")
    _core.FakeCuda(devices=0)
    with pytest.raises(bigmem.BigmemError, match="shows no GPU"):
        bigmem.make("pinned")
    with pytest.raises(bigmem.BigmemError, match="mechanism is one of vmm, register, alloc"):
        PinnedAllocator(mechanism="magic")  # type: ignore[arg-type]
    monkeypatch.undo()
    original: Callable[..., Any] = builtins.__import__

    def without_bindings(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("cuda"):
            raise ImportError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(driver, "_loaded", None)
    monkeypatch.setattr(builtins, "__import__", without_bindings)
    monkeypatch.delitem(sys.modules, "cuda.bindings.driver", raising=False)
    with pytest.raises(bigmem.BigmemError, match="needs the package cuda-bindings"):
        PinnedAllocator()


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"device": "first"}, "device is the number of a GPU, not 'first'"),
        ({"device": -1}, "no GPU -1"),
        ({"release": "deferred"}, "release is "),
        ({"reserve": "much"}, "'much' is no size"),
        ({"budget": "1GiB"}, "budget is a Budget, not '1GiB'"),
        ({"reclaim": 2}, "reclaim is a ReclaimPool, not 2"),
    ],
)
def test_what_is_wrong_is_said(fake: _core.FakeCuda, wrong: dict[str, Any], line: str) -> None:
    with pytest.raises(bigmem.BigmemError, match=line):
        PinnedAllocator(**wrong)


def test_a_closed_allocator_says_so(fake: _core.FakeCuda) -> None:
    allocator = PinnedAllocator()
    allocator.close()
    for refused in (allocator.allocate, allocator.prefault):
        with pytest.raises(bigmem.BigmemError, match="closed> takes no allocations"):
            refused(MIB)
    with pytest.raises(bigmem.BigmemError, match="closed> takes no allocations"):
        bigmem.cuda.install_cupy(allocator)
    with pytest.raises(bigmem.BigmemError, match="closed> takes no allocations"):
        bigmem.cuda.upload([b"data"], [(MIB, 4)], 0, allocator=allocator)


@pytest.mark.parametrize("mechanism", ["vmm", "register", "alloc"])
def test_a_gpu_that_allows_no_guards_is_refused(
    fake: _core.FakeCuda, mechanism: pinned.Mechanism
) -> None:
    """Blocks that nobody records would wait for ever."""
    fake.fail("cuCtxRecordEvent", NOT_SUPPORTED)
    line = r"does not tell when all .* done \(cuCtxRecordEvent: CUDA_ERROR_NOT_SUPPORTED\)"
    with pytest.raises(bigmem.BigmemError, match=line):
        PinnedAllocator(mechanism=mechanism)
    fake.fail("cuCtxRecordEvent", 0)
    allocator = PinnedAllocator(mechanism=mechanism)
    allocator.allocate(MIB).release()
    assert allocator.flush(20)


def test_a_capture_is_no_reason_to_refuse_a_gpu(fake: _core.FakeCuda) -> None:
    PinnedAllocator()
    told, unknown = fake.stream(blocking=False), fake.stream(blocking=True)
    with capturing():
        fake.begin_capture(told)
        allocator = PinnedAllocator()
        assert fake.end_capture(told)
    fake.begin_capture(unknown)
    PinnedAllocator()
    assert fake.end_capture(unknown)
    assert allocator.allocate(MIB)


def test_releasing_and_warm_blocks_call_no_function_of_cuda(
    fake: _core.FakeCuda, allocator: PinnedAllocator
) -> None:
    """On the threads of the program, that is; workers ask whether events are done."""
    warm = allocator.mechanism == "vmm" and allocator.release == bigmem.Recycle()
    for _ in range(5):
        array = bigmem.empty(9 * MIB, np.uint8, allocator=allocator)
        before = fake.own_calls()
        del array
        assert fake.own_calls() == before
        assert allocator.flush(20)
        if warm:
            before = fake.own_calls()
            array = bigmem.empty(9 * MIB, np.uint8, allocator=allocator)
            assert (fake.own_calls(), array.size) == (before, 9 * MIB)
            assert allocator.stats().warm_hits > 0


def test_threads_that_are_the_first_at_once_find_one_driver(
    fake: _core.FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here, the other one comes while this one looks for the functions."""
    first = []

    def addresses() -> dict[str, int]:
        monkeypatch.setattr(driver, "_addresses", fake.functions)
        first.append(driver.loaded())
        return fake.functions()

    monkeypatch.setattr(driver, "_addresses", addresses)
    assert driver.loaded() is first[0]
    assert driver.loaded() is first[0]


@pytest.mark.parametrize("mechanism", ["vmm", "register", "alloc"])
def test_pinned_memory_is_not_for_children(
    fake: _core.FakeCuda, mechanism: pinned.Mechanism
) -> None:
    block = PinnedAllocator(mechanism=mechanism).allocate(4 * MIB)
    assert "dc" in flags_of(block.address)


@pytest.mark.parametrize("mechanism", ["register", "alloc"])
def test_pinned_memory_is_not_dumped(fake: _core.FakeCuda, mechanism: pinned.Mechanism) -> None:
    """As that of the driver, which sees to it itself: it may be secret."""
    block = PinnedAllocator(mechanism=mechanism, wipe=True).allocate(4 * MIB)
    assert "dd" in flags_of(block.address)


@pytest.mark.parametrize("mechanism", ["vmm", "register", "alloc"])
@pytest.mark.parametrize("alignment", [1, 64, 4096, 1 << 16])
def test_blocks_are_aligned_wherever_the_driver_puts_them(
    fake: _core.FakeCuda, mechanism: pinned.Mechanism, alignment: int
) -> None:
    """What the driver allocates itself begins amid a page, which it shares with other ranges."""
    allocator = PinnedAllocator(mechanism=mechanism)
    blocks = [allocator.allocate(nbytes, alignment=alignment) for nbytes in (100, 5000, MIB)]
    for block in blocks:
        assert block.address % max(alignment, 64) == 0
        assert "dc" in flags_of(block.address)
        memoryview(block)[-1] = 1


def flags_of(address: int) -> list[str]:
    """What the kernel notes of a mapping."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        word, _, rest = line.partition(" ")
        if word == "VmFlags:" and inside:
            return rest.split()
        if "-" in word and ":" not in word:
            begin, _, end = word.partition("-")
            inside = int(begin, 16) <= address < int(end, 16)
    raise AssertionError("no mapping there")


def test_by_name(fake: _core.FakeCuda) -> None:
    made = bigmem.make("pinned")
    assert isinstance(made, PinnedAllocator)
    assert (made.name, made.mechanism, made.device) == ("pinned", "vmm", 0)


def test_numpy_can_be_served(fake: _core.FakeCuda) -> None:
    allocator = PinnedAllocator()
    with bigmem.use(allocator, min_bytes=MIB):
        array = np.ones(MIB)
        total = (array + array).sum()
    assert total == 2 * MIB
    assert allocator.stats().allocations >= 2


def test_wiped_memory_is_zero_before_it_is_anyones(fake: _core.FakeCuda) -> None:
    allocator = PinnedAllocator(wipe=True)
    block = allocator.allocate(9 * MIB)
    view = memoryview(block)
    view[:] = b"s" * len(view)
    view.release()
    address = block.address
    block.release()
    assert allocator.flush(10)
    again = allocator.allocate(9 * MIB)
    assert again.address == address
    assert not np.frombuffer(memoryview(again), np.uint8).any()


@pytest.mark.parametrize("mechanism", ["register", "alloc"])
def test_a_block_given_up_in_parts_is_unpinned_as_a_whole(
    fake: _core.FakeCuda, mechanism: str
) -> None:
    cuda = driver.loaded()
    pages = _core.CudaPages(cuda.driver, 0, mechanism, cuda.fences)
    begin = pages.reserve(12 * MIB, 4096)
    assert pages.commit(begin, 12 * MIB) == 0
    for offset in (8, 0, 4):  # whichever the workers take first
        assert 12 * MIB <= fake.memory() <= 12 * MIB + 4096
        assert pages.wipe(begin + offset * MIB, 4 * MIB) == 0
        assert pages.decommit(begin + offset * MIB, 4 * MIB) == 0
        assert pages.unreserve(begin + offset * MIB, 4 * MIB) == 0
    assert fake.memory() == 0
