"""Allocators around allocators, and what blocks offer them."""

import gc
import sys
import threading
from collections.abc import Callable

import pytest

import bigmem
from bigmem.wrappers import Limited, Wrapper

Run = Callable[..., str]


class Event:
    """A fence whose time a test decides."""

    is_done = False

    def done(self) -> bool:
        return self.is_done


class Plain(Wrapper):
    """The least that a wrapper is."""

    def allocate(
        self, nbytes: "int | str", *, alignment: int = 64, zeroed: bool = False
    ) -> bigmem.Block:
        size = self.check_request(nbytes, alignment)
        below = self.upstream.allocate(size, alignment=alignment, zeroed=zeroed)
        return bigmem.Block(below, allocator=self)


def test_on_release_is_called_once_while_the_buffer_is_held() -> None:
    memory = bytearray(100)
    calls = []

    def on_release() -> None:
        with pytest.raises(BufferError):
            memory.append(1)
        calls.append(1)

    allocator = bigmem.SystemAllocator()
    block = bigmem.Block(memory, allocator=allocator, on_release=on_release)
    assert calls == []
    block.release()
    assert calls == [1]
    block.release()
    del block
    assert calls == [1]
    memory.append(1)
    bigmem.Block(memory, allocator=allocator, on_release=on_release)  # dies at once
    assert calls == [1, 1]


def test_on_release_waits_for_the_fences() -> None:
    allocator = bigmem.SystemAllocator()
    calls: list[int] = []
    event = Event()
    block = bigmem.Block(
        bytearray(100), allocator=allocator, on_release=lambda: calls.append(len(calls))
    )
    block.fence(event)
    block.release()
    assert allocator.flush(0.01) is False
    assert calls == []
    event.is_done = True
    assert allocator.flush(10)
    assert calls == [0]


def test_a_failing_on_release_is_reported_and_leaves_other_errors_alone() -> None:
    memory = bytearray(100)
    heard: list[object] = []

    def on_release() -> None:
        raise RuntimeError("cannot let go")

    def fail() -> None:
        block = bigmem.Block(memory, allocator=bigmem.SystemAllocator(), on_release=on_release)
        raise KeyError(block.nbytes)

    hook, sys.unraisablehook = sys.unraisablehook, lambda args: heard.append(args.exc_value)
    try:
        with pytest.raises(KeyError, match="100") as caught:
            fail()
        caught.value.__traceback__ = None  # it holds the frame, and that the block
        del caught
        gc.collect()
    finally:
        sys.unraisablehook = hook
    assert [str(error) for error in heard] == ["cannot let go"]
    memory.append(1)


def test_an_on_release_of_garbage_is_called_whole() -> None:
    # The collector clears what it finds in a cycle, functions included, in no particular order.
    calls = []

    def counter(number: int) -> Callable[[], None]:
        return lambda: calls.append(number)

    class Owner:
        def __init__(self, on_release: Callable[[], None]) -> None:
            self.block = bigmem.Block(
                bytearray(10), allocator=bigmem.SystemAllocator(), on_release=on_release
            )
            self.cycle = self

    # Older than its owner: the collector comes by it first.
    counters = [counter(number) for number in range(50)]
    while counters:
        Owner(counters.pop())
    gc.collect()
    assert sorted(calls) == list(range(50))


def test_fences_of_garbage_still_hold(allocator: bigmem.Allocator) -> None:
    event = Event()

    class Owner:
        def __init__(self) -> None:
            self.block = allocator.allocate(100_000)
            self.block.fence(event)
            self.cycle = self

    owner = Owner()
    begin, end = owner.block.address, owner.block.address + owner.block.nbytes
    del owner
    gc.collect()
    assert bigmem._core.parked_by(allocator) == 1
    other = allocator.allocate(100_000)
    assert other.address + other.nbytes <= begin or other.address >= end
    event.is_done = True
    assert allocator.flush(20)


def test_senseless_arguments_of_a_block() -> None:
    allocator = bigmem.SystemAllocator()
    with pytest.raises(TypeError, match="on_release must be callable"):
        bigmem.Block(bytearray(3), allocator=allocator, on_release=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="allocator"):
        bigmem.Block(bytearray(3))  # type: ignore[call-arg]
    calls: list[int] = []
    with pytest.raises(BufferError):
        bigmem.Block(b"read only", allocator=allocator, on_release=lambda: calls.append(1))
    assert calls == []


def test_origin_and_birth() -> None:
    block = bigmem.Block(bytearray(3), allocator=bigmem.SystemAllocator(), origin=("x", 3))
    later = bigmem.SystemAllocator().allocate(10)
    assert block.origin == ("x", 3)
    assert later.origin is None
    assert 0 < block.born <= later.born


def test_on_release_at_exit_is_quiet(run_python: Run) -> None:
    run_python(
        """
        import bigmem
        log = []
        class Owner:
            def __init__(self):
                self.block = bigmem.Block(bytearray(10), allocator=bigmem.SystemAllocator(),
                                          on_release=self.let_go)
            def let_go(self): pass
        kept = Owner()
        limited = bigmem.Limited(bigmem.ArenaAllocator(), "1MiB")
        blocks = [limited.allocate(10) for _ in range(10)]
        """
    )


def test_a_wrapper_passes_on_and_reports_what_is_below() -> None:
    arena = bigmem.ArenaAllocator(release=bigmem.Recycle(), name="pool")
    wrapper = Plain(arena)
    assert wrapper.name == "Plain(pool)"
    assert Plain(wrapper, name="outer").name == "outer"
    block = wrapper.allocate(8 << 20)
    assert block.allocator is wrapper
    assert wrapper.stats() == arena.stats()
    assert wrapper.stats().live == 8 << 20
    del block
    assert wrapper.stats().warm == 8 << 20
    assert wrapper.trim() == 8 << 20
    assert wrapper.stats().warm == 0
    with pytest.raises(TypeError, match="Allocator"):
        Plain("pool")  # type: ignore[arg-type]


def test_flush_waits_for_the_wrappers_own_fences_and_the_upstream() -> None:
    arena = bigmem.ArenaAllocator(release=bigmem.Deferred())
    wrapper = Plain(Plain(arena))
    event = Event()
    block = wrapper.allocate(4 << 20)
    block.fence(event)
    block.release()
    assert arena.stats().live == 4 << 20
    assert wrapper.flush(0.01) is False
    event.is_done = True
    assert wrapper.flush(20) is True
    stats = arena.stats()
    assert (stats.live, stats.pending, stats.reclaiming) == (0, 0, 0)


def test_closing_a_wrapper_leaves_its_upstream_open() -> None:
    arena = bigmem.ArenaAllocator()
    with Plain(arena) as wrapper:
        block = wrapper.allocate(1 << 20)
    with pytest.raises(bigmem.BigmemError, match="takes no allocations"):
        wrapper.allocate(10)
    assert arena.allocate(10).nbytes == 10
    assert block.nbytes == 1 << 20


def test_an_upstream_that_only_its_wrapper_knew_gives_its_memory_back(run_python: Run) -> None:
    run_python(
        """
        import time, bigmem, numpy as np
        before = bigmem.osmem.resident_bytes()
        for wrap in (bigmem.Traced, lambda a: bigmem.Limited(a, "1GiB"), bigmem.Guarded):
            with wrap(bigmem.ArenaAllocator()) as wrapper:
                bigmem.full(64 << 20, 1, np.uint8, allocator=wrapper)
        del wrapper
        end = time.monotonic() + 20
        while bigmem.osmem.resident_bytes() - before > 48 << 20:
            assert time.monotonic() < end
            time.sleep(0.01)
        """
    )


def test_the_sum_of_all_stats_counts_wrapped_memory_once() -> None:
    before = bigmem.stats().live
    arena = bigmem.ArenaAllocator()
    wrapper = Plain(Plain(arena))
    block = wrapper.allocate(64 << 20)
    assert bigmem.stats().live - before == block.nbytes


def test_limited_refuses_what_is_too_much_and_says_why() -> None:
    limited = Limited(bigmem.SystemAllocator(name="libc"), "1MiB", name="loader")
    block = limited.allocate(1 << 19)
    with pytest.raises(bigmem.OutOfMemory) as caught:
        limited.allocate((1 << 19) + 1)
    assert str(caught.value) == (
        "loader has a limit of 1 MiB: 512 KiB are live, 512 KiB more were asked for"
    )
    assert limited.live == 1 << 19
    other = limited.allocate(1 << 19)
    assert limited.live == 1 << 20
    del block, other
    assert limited.live == 0
    assert limited.allocate("1MiB").nbytes == 1 << 20


def test_limited_counts_a_block_until_its_fences_are_done() -> None:
    limited = Limited(bigmem.SystemAllocator(), 1000)
    event = Event()
    block = limited.allocate(1000)
    block.fence(event)
    block.release()
    assert limited.live == 1000
    event.is_done = True
    assert limited.flush(10)
    assert limited.live == 0


def test_limited_gives_its_charge_back_when_the_upstream_fails() -> None:
    limited = Limited(Limited(bigmem.SystemAllocator(), 100), 1000)
    with pytest.raises(bigmem.OutOfMemory, match="limit of 100 bytes"):
        limited.allocate(500)
    assert limited.live == 0


def test_limited_is_exact_under_threads() -> None:
    system = bigmem.SystemAllocator()
    limited = Limited(system, 10_000)
    refused = [0] * 8

    def work(number: int) -> None:
        held: list[bigmem.Block] = []
        for step in range(2000):
            if held and (step + number) % 3 == 0:
                held.pop()
            try:
                held.append(limited.allocate(500 + number))
            except bigmem.OutOfMemory:
                refused[number] += 1
                held.clear()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(refused) > 0
    assert limited.live == system.stats().live == 0
    assert system.stats().peak_live <= 10_000


def test_limited_is_exact_under_interrupts(run_python: Run) -> None:
    run_python(
        """
        import signal, time, bigmem
        class Interrupt(Exception): pass
        allocating = False
        def interrupt(*_):
            global allocating
            if allocating:
                allocating = False
                raise Interrupt
        signal.signal(signal.SIGALRM, interrupt)
        limited = bigmem.Limited(bigmem.SystemAllocator(), "1MiB")
        count = 0
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        while count < 500:
            try:
                allocating = True
                while True:
                    limited.allocate(1000)
            except Interrupt:
                count += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert limited.live == 0, limited.live
        """
    )


@pytest.mark.parametrize("wrap", ["Limited(arena, '1GiB')", "Traced(arena)", "Guarded(arena)"])
@pytest.mark.parametrize("tracing", [False, True])
def test_exit_with_everything_going_on_is_quiet(run_python: Run, wrap: str, tracing: bool) -> None:
    run_python(
        """
        import sys, threading, time, tracemalloc
        import numpy as np
        if sys.argv[2] == "True":
            tracemalloc.start(5)
        import bigmem
        arena = bigmem.ArenaAllocator(release=bigmem.Deferred())
        wrapper = eval("bigmem." + sys.argv[1])
        bigmem.set_allocator(wrapper)
        class Owner:
            def __init__(self): self.array, self.cycle = bigmem.ones(10_000), self
            def __del__(self): bigmem.empty(1000)[:] = 1
        owners = [Owner() for _ in range(100)]
        for _ in range(300):
            bigmem.ones(5000)
        def forever():
            while True:
                bigmem.ones(3000)
        threading.Thread(target=forever, daemon=True).start()
        time.sleep(0.1)
        """,
        wrap,
        str(tracing),
    )


@pytest.mark.parametrize("wrap", ["Limited(arena, '1GiB')", "Traced(arena)", "Guarded(arena)"])
def test_children_of_fork_allocate_and_release_through_wrappers(run_python: Run, wrap: str) -> None:
    run_python(
        """
        import os, sys, threading, warnings
        import numpy as np
        import bigmem
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        arena = bigmem.ArenaAllocator(release=bigmem.Deferred())
        wrapper = eval("bigmem." + sys.argv[1])
        kept = bigmem.full(100_000, 42, np.uint8, allocator=wrapper)
        stop = False
        def busy():
            while not stop:
                bigmem.ones(1000, allocator=wrapper)
        threads = [threading.Thread(target=busy) for _ in range(2)]
        for thread in threads: thread.start()
        for _ in range(10):
            child = os.fork()
            if child == 0:
                good = bool((kept == 42).all())
                kept[:] = 1
                for _ in range(20):
                    good &= bool((bigmem.ones(1000, allocator=wrapper) == 1).all())
                good &= wrapper.flush(20)
                os._exit(0 if good else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        stop = True
        for thread in threads: thread.join()
        assert (kept == 42).all()
        """,
        wrap,
    )
