"""Everything at once, for a while; test_stress.py runs it.

    python tests/bigmem/stress.py storm SECONDS SEED [BUDGET]
    python tests/bigmem/stress.py forks COUNT

Exits with 0 and nothing on stderr if every byte was where it belonged and all memory came back.
"""

import ctypes
import gc
import os
import queue
import random
import signal
import sys
import threading
import time
import traceback
import warnings
from typing import Any

import numpy as np
from conftest import POLICIES, UNIT, native

import bigmem
from bigmem import _core, osmem
from bigmem.native import NativeAllocator

THREADS = 8
LARGEST = 32 << 20
# What one thread holds, and what waits to be taken over by another: 384 MiB live in all.
HELD = 32 << 20
HANDED_OVER = 1 << 20
QUEUED = 16
FLUSH_SECONDS = 5.0
# Of mallopt: the C library then keeps nothing large either, whatever it sees freed.
M_MMAP_THRESHOLD = -3
# A child that hangs dies of this, and fails the test.
CHILD_SECONDS = 20

Array = np.ndarray[Any, Any]


def make_allocators(budget: bigmem.Budget | None) -> list[bigmem.Allocator]:
    """Every policy on both kinds of pages, mappings, and the C library."""
    arenas = [
        native(policy, huge, budget=budget)
        for policy in POLICIES.values()
        for huge in ("never", "always")
    ]
    mapped = [
        native(POLICIES[name], "auto", mapping_per_block=True, budget=budget)
        for name in ("inline", "deferred")
    ]
    gpu = [
        native(
            POLICIES[name],
            "auto",
            budget=budget,
            table=_core.ProbedPages(True, granularity=UNIT),
            fences=_core.ProbedFences(True),
        )
        for name in ("inline", "deferred", "recycle")
    ]
    return [*arenas, *mapped, *gpu, bigmem.SystemAllocator()]


class Stamped:
    """An array that knows what every one of its bytes must be."""

    def __init__(self, array: Array, stamp: int) -> None:
        self.array, self.stamp = array, stamp
        array[:] = stamp

    def check(self) -> None:
        assert (self.array == self.stamp).all(), "somebody else wrote here"


class Cycle(Stamped):
    """Only the garbage collector frees it, in whichever thread it happens to run."""

    def __init__(self, array: Array, stamp: int) -> None:
        super().__init__(array, stamp)
        self.me = self

    def __del__(self) -> None:
        self.check()


class Storm:
    """The state that the threads share."""

    def __init__(self, seconds: float, seed: int, budget: bigmem.Budget | None) -> None:
        self.allocators = make_allocators(budget)
        self.budget = budget
        self.seed = seed
        self.end = time.monotonic() + seconds
        self.queues: list[queue.SimpleQueue[Stamped]] = [
            queue.SimpleQueue() for _ in range(THREADS)
        ]
        self.errors: list[str] = []
        self.signals = self.forks = 0
        self.refused = self.resized = 0

    def running(self) -> bool:
        return time.monotonic() < self.end and not self.errors

    def make(self, rng: random.Random, kind: type[Stamped], most: int) -> Stamped | None:
        """A stamped array of random size; `None` if the budget has no room for it."""
        nbytes = int(most ** rng.random())
        zeroed = rng.random() < 0.3
        constructor = bigmem.zeros if zeroed else bigmem.empty
        try:
            array = constructor(nbytes, np.uint8, allocator=rng.choice(self.allocators))
        except bigmem.OutOfMemory:
            assert self.budget is not None
            self.refused += 1
            return None
        assert not (zeroed and array.any()), "not zero"
        return kind(array, rng.randrange(1, 256))

    def work(self, number: int) -> None:
        """One thread: make, keep, check, drop, hand over, and disturb."""
        try:
            rng = random.Random(self.seed * THREADS + number)
            held: list[Stamped] = []
            while self.running():
                self.step(rng, number, held)
            for item in held:
                item.check()
        except BaseException:
            self.errors.append(traceback.format_exc())

    def step(self, rng: random.Random, number: int, held: list[Stamped]) -> None:
        item = self.make(rng, Stamped, LARGEST)
        if item is None:
            held.clear()
        else:
            held.append(item)
        while sum(one.array.nbytes for one in held) > HELD:
            held.pop(rng.randrange(len(held))).check()
        if held and held[-1].array.nbytes <= HANDED_OVER:
            other = self.queues[rng.randrange(THREADS)]
            if other.qsize() < QUEUED:
                other.put(held.pop())
        while not self.queues[number].empty():
            try:
                self.queues[number].get_nowait().check()
            except queue.Empty:
                break
        if rng.random() < 0.3:
            self.make(rng, Cycle, HANDED_OVER // 4)
        if rng.random() < 0.1:
            self.resize(rng)
        if rng.random() < 0.02:
            self.disturb(rng)

    def resize(self, rng: random.Random) -> None:
        """A block grows and shrinks, or stays as it is; what it keeps stays the same."""
        try:
            block = rng.choice(self.allocators).allocate(int(LARGEST ** rng.random()))
        except bigmem.OutOfMemory:
            self.refused += 1
            return
        stamp = rng.randrange(1, 256)
        Stamped(np.frombuffer(memoryview(block), np.uint8), stamp)
        for _ in range(4):
            kept = block.nbytes
            self.resized += _core.resize_block(block, int(LARGEST ** rng.random()))
            array = np.frombuffer(memoryview(block), np.uint8)
            assert (array[:kept] == stamp).all(), "not kept"
            array[kept:] = stamp
            del array  # a view for no longer than the block stays where it is

    def disturb(self, rng: random.Random) -> None:
        allocator = rng.choice(self.allocators)
        action = rng.randrange(4)
        if action == 0:
            gc.collect()
        elif action == 1:
            allocator.trim()
        elif action == 2:
            allocator.flush(0.01)
        else:
            stats = bigmem.stats()
            assert stats.releases <= stats.allocations
            assert self.budget is None or self.budget.used <= self.budget.limit

    def on_signal(self, *_: object) -> None:
        """Allocate and release in a handler, between any two instructions of the main thread."""
        self.signals += 1
        item = self.make(random.Random(self.signals), Stamped, 1 << 18)
        if item is not None:
            item.check()

    def fork(self) -> None:
        """A child allocates, releases and flushes; the parent's bytes stay what they are."""
        kept = self.make(random.Random(self.forks), Stamped, 1 << 20)
        child = os.fork()
        if child == 0:
            be_a_child(random.Random(self.forks).sample(self.allocators, 4), kept)
        _, status = os.waitpid(child, 0)
        self.forks += 1
        assert status == 0, f"fork {self.forks}: a child ended with {status}"
        if kept is not None:
            kept.check()

    def run(self) -> None:
        threads = [threading.Thread(target=self.work, args=(n,)) for n in range(THREADS)]
        for thread in threads:
            thread.start()
        signal.signal(signal.SIGALRM, self.on_signal)
        signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
        reported = 0.0
        while self.running():
            self.fork()
            if time.monotonic() - reported > 5:
                reported = time.monotonic()
                print(f"{self.end - reported:.0f} s to go: {self.report()}", flush=True)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for thread in threads:
            thread.join()
        self.queues.clear()
        assert not self.errors, self.errors[0]

    def report(self) -> str:
        stats = bigmem.stats()
        return (
            f"{stats.allocations} allocations, {self.forks} forks, {self.signals} signals, "
            f"{self.refused} refused, {self.resized} resized, {stats.live >> 20} MiB live, "
            f"{osmem.resident_bytes() >> 20} MiB resident"
        )


def be_a_child(allocators: list[bigmem.Allocator], kept: Stamped | None) -> None:
    """What a forked child does; never returns."""
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(CHILD_SECONDS)
        if kept is not None:
            kept.check()
            kept.array[:] = 0
        for allocator in allocators:
            try:
                for nbytes in (3, 300_000, 2 << 20):
                    Stamped(bigmem.zeros(nbytes, np.uint8, allocator=allocator), 7).check()
            except bigmem.OutOfMemory:
                assert isinstance(allocator, NativeAllocator)
                assert allocator.budget is not None
        for allocator in allocators:
            assert allocator.flush(FLUSH_SECONDS), f"{allocator} did not flush"
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def check_all_is_back(allocators: list[bigmem.Allocator], resident: int) -> None:
    """Nothing live, pending or warm, and the memory really with the system."""
    gc.collect()
    for allocator in allocators:
        assert allocator.stats().live == 0, (allocator, allocator.stats())
        assert allocator.flush(20), allocator
        allocator.trim()
        assert allocator.stats().resident == 0, (allocator, allocator.stats())
    grown = osmem.resident_bytes() - resident
    assert grown < 64 << 20, f"{grown >> 20} MiB stayed"


def storm(seconds: float, seed: int, limit: str | None) -> None:
    budget = None if limit is None else bigmem.Budget(limit, timeout=0.05)
    resident = osmem.resident_bytes()
    print(f"seed {seed}", flush=True)
    state = Storm(seconds, seed, budget)
    state.run()
    print(f"done: {state.report()}", flush=True)
    check_all_is_back(state.allocators, resident)
    assert budget is None or budget.used == 0
    assert state.forks > 0
    assert state.signals > 5
    assert state.resized > 5
    assert bigmem.stats().allocations > 200


def forks(count: int) -> None:
    """Forks while the workers have work from every policy, and another thread makes more."""
    allocators = make_allocators(None)
    resident = osmem.resident_bytes()
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            for allocator in allocators:
                Stamped(bigmem.empty(1 << 20, np.uint8, allocator=allocator), 1)

    thread = threading.Thread(target=work)
    thread.start()
    for number in range(count):
        allocator = allocators[number % len(allocators)]
        kept = Stamped(bigmem.empty(1 << 20, np.uint8, allocator=allocator), 9)
        Stamped(bigmem.empty(8 << 20, np.uint8, allocator=allocator), 1)
        child = os.fork()
        if child == 0:
            be_a_child([allocator, allocators[(number + 1) % len(allocators)]], kept)
        status = os.waitpid(child, 0)[1]
        assert status == 0, f"fork {number}: a child ended with {status}"
        kept.check()
    stop.set()
    thread.join()
    del kept
    check_all_is_back(allocators, resident)


if __name__ == "__main__":
    # Python 3.12 and later warn of forks in any process with threads.
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 128 << 10)
    if sys.argv[1] == "storm":
        storm(float(sys.argv[2]), int(sys.argv[3]), (sys.argv[4:] or [None])[0])
    else:
        forks(int(sys.argv[2]))
