"""Exit, signals, limits and threads, each in a process of its own."""

import textwrap
from collections.abc import Callable

import pytest

Run = Callable[..., str]


def test_importing_reserves_nothing_and_starts_nothing(run_python: Run) -> None:
    run_python(
        """
        import os
        import numpy, psutil
        from importlib.metadata import entry_points
        size = lambda: int(open("/proc/self/statm").read().split()[0]) * 4096
        before, threads = size(), len(os.listdir("/proc/self/task"))
        import bigmem
        names = ("system", "mapped", "dontneed", "deferred", "recycle")
        allocators = [bigmem.make(name) for name in names]
        assert size() - before < 32 << 20, size() - before
        assert len(os.listdir("/proc/self/task")) == threads
        """
    )


def test_workers_start_before_a_release_needs_them_and_sleep_when_idle(run_prepared: Run) -> None:
    run_prepared(
        """
        inline, deferred = native(bigmem.Inline()), native(bigmem.Deferred())
        del_me = fill(inline, 1 << 20); del del_me
        assert deferred.reclaim.running == 0
        block = fill(deferred, 1 << 20)
        assert deferred.reclaim.running == 1
        wait_for(lambda: workers() == 1)  # a new thread names itself
        del block
        assert deferred.flush(10)
        task, = [t for t in tasks() if "bigmem" in open(f"/proc/self/task/{t}/comm").read()]
        def switches():
            lines = open(f"/proc/self/task/{task}/status").read().splitlines()
            return sum(int(l.split()[1]) for l in lines if "ctxt_switches" in l)
        time.sleep(0.5)
        asleep = switches()
        time.sleep(1)
        assert switches() == asleep
        # It wakes by itself for the next block.
        block = fill(deferred, 1 << 20)
        del block
        wait_for(lambda: deferred.stats().pending == deferred.stats().reclaiming == 0)
        assert deferred.stats().reclaim_seconds > 0
        """,
    )


@pytest.mark.parametrize("mapped", [False, True])
def test_a_sleeping_worker_wakes_for_a_block_that_was_slow_to_make(
    run_prepared: Run, mapped: bool
) -> None:
    run_prepared(
        """
        table = _core.ProbedPages()
        mapped = sys.argv[1] == "True"
        fill(native(bigmem.Deferred()), 1 << 20)  # starts the worker
        wait_for(lambda: workers() == 1)
        time.sleep(0.5)
        allocator = native(bigmem.Deferred(), table, mapped=mapped)
        # Were it woken before the block lives, it would find nothing and sleep again meanwhile.
        table.delay("reserve", 0.3)
        block = fill(allocator, 1 << 20)
        time.sleep(0.3)
        del block
        wait_for(lambda: allocator.stats().pending == allocator.stats().reclaiming == 0)
        """,
        str(mapped),
    )


def test_release_does_not_wait_for_a_reclaim_under_way(run_prepared: Run) -> None:
    run_prepared(
        """
        table = _core.ProbedPages()
        allocator = native(bigmem.Deferred(), table)
        blocks = [fill(allocator, 8 << 20) for _ in range(8)]
        table.delay("decommit", 1.0)
        blocks.pop()
        while not allocator.stats().reclaiming:
            time.sleep(0.001)
        # The worker sits in its system call for a second; everything else goes on.
        blocks.clear()
        again = fill(allocator, 8 << 20)
        stats = allocator.stats()
        assert stats.reclaiming == 8 << 20 and stats.pending == 7 * (8 << 20), stats
        assert allocator.flush(0.01) is False
        table.delay("decommit", 0)
        assert allocator.flush(30)
        """,
    )


@pytest.mark.parametrize("mapped", [False, True])
def test_an_inline_release_lets_other_threads_run(run_prepared: Run, mapped: bool) -> None:
    run_prepared(
        """
        table = _core.ProbedPages()
        allocator = native(bigmem.Inline(), table, mapped=sys.argv[1] == "True")
        block = fill(allocator, 8 << 20)
        table.delay("decommit", 0.5)
        table.delay("unreserve", 0.5)
        count, stop = 0, False
        def counter():
            global count
            while not stop:
                count += 1
                time.sleep(0.001)
        thread = threading.Thread(target=counter)
        thread.start()
        before = count
        del block
        during = count - before
        stop = True
        thread.join()
        assert during > 10, during
        """,
        str(mapped),
    )


EXITS = {
    "pending gigabytes": """
        allocator = native(bigmem.Deferred())
        for _ in range(8):
            array = fill(allocator, 128 << 20)
        del array
    """,
    "live globals": """
        policies = (bigmem.Inline, bigmem.Deferred, bigmem.Recycle)
        arrays = [fill(native(policy()), 8 << 20) for policy in policies]
        default = bigmem.zeros(1 << 20)
    """,
    "a slow reclaim under way": """
        table = _core.ProbedPages()
        allocator = native(bigmem.Deferred(), table)
        array = fill(allocator, 8 << 20)
        table.delay("decommit", 200.0)
        del array
        while not allocator.stats().reclaiming:
            time.sleep(0.001)
    """,
    "a daemon thread that allocates": """
        allocators = [native(bigmem.Recycle()), native(bigmem.Inline()), bigmem.SystemAllocator()]
        def work():
            while True:
                for allocator in allocators:
                    fill(allocator, 300_000)
                    bigmem.zeros(2 << 20, allocator=allocator)
        for _ in range(4):
            threading.Thread(target=work, daemon=True).start()
        time.sleep(0.2)
    """,
    "objects that allocate in __del__": """
        allocator = native(bigmem.Recycle())
        class Late:
            def __init__(self):
                self.cycle = self
                self.array = bigmem.zeros(100_000, allocator=allocator)
            def __del__(self, allocator=allocator):
                allocator.allocate(200_000, zeroed=True)
        late = [Late() for _ in range(20)]
        sys.late = Late()
    """,
    "the process default": """
        array = fill(bigmem.get_allocator(), 1 << 20)
    """,
    "a fence that is never done": """
        allocator = native(bigmem.Recycle())
        class Never:
            def done(self):
                return False
        block = allocator.allocate(1 << 20)
        block.fence(Never())
        del block
    """,
}


@pytest.mark.parametrize("tracing", [False, True], ids=["plain", "tracing"])
@pytest.mark.parametrize("situation", EXITS)
def test_exit_is_quiet_and_does_not_hang(run_prepared: Run, situation: str, tracing: bool) -> None:
    program = "import tracemalloc; tracemalloc.start()\n" * tracing
    program += textwrap.dedent(EXITS[situation])
    for _ in range(4 if "thread" in situation else 1):
        run_prepared(program, timeout=60)


def test_signal_handlers_may_allocate_and_release(run_prepared: Run) -> None:
    run_prepared(
        """
        allocators = [native(p()) for p in (bigmem.Inline, bigmem.Deferred, bigmem.Recycle)]
        handled = 0
        held = []
        def handler(*_):
            global handled
            handled += 1
            for allocator in allocators:
                held.append(fill(allocator, 40_000, 3))
            if len(held) > 30:
                assert all((array == 3).all() for array in held)
                held.clear()
            # Not periodic: on a busy machine handlers would pile up inside each other.
            signal.setitimer(signal.ITIMER_REAL, 0.001)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            for allocator in allocators:
                array = fill(allocator, 50_000, 5)
                assert (array == 5).all()
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert handled > 20
        """,
    )


@pytest.mark.parametrize(
    "kind", ["Inline()", "Deferred()", "Recycle()", "Recycle(advice='free')", "mapped", "deferred"]
)
def test_a_limited_address_range_is_enough_for_one_block_at_a_time(
    run_prepared: Run, kind: str
) -> None:
    run_prepared(
        """
        import resource
        size = int(open("/proc/self/statm").read().split()[0]) * 4096
        limit = size + (220 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        if sys.argv[1].islower():
            release = bigmem.Inline() if sys.argv[1] == "mapped" else bigmem.Deferred()
            allocator = native(release, mapped=True)
        else:
            allocator = native(eval("bigmem." + sys.argv[1]))
        for step in range(10):
            array = fill(allocator, (100 + 5 * (step % 5)) << 20)
            del array
        try:
            allocator.allocate(400 << 20)
        except bigmem.OutOfMemory as error:
            assert "refused" in str(error), error
        else:
            raise AssertionError("more than the limit")
        allocator.trim()
        allocator.flush(20)
        stats = allocator.stats()
        assert stats.resident == 0, stats
        # Ranges that hold nothing are given back: someone else may need them.
        other = np.empty(150 << 20, np.uint8)
        """,
        kind,
    )


def test_refused_threads_cost_nothing_but_the_background(run_prepared: Run) -> None:
    run_prepared(
        """
        import resource
        if os.geteuid() == 0:
            os.setresuid(65534, 65534, 65534)  # the limit does not bind root
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
        try:
            threading.Thread(target=print).start()
        except RuntimeError:
            pass
        else:
            raise AssertionError("this system does not refuse threads: the test tests nothing")
        allocator = native(bigmem.Deferred())
        for _ in range(10):
            array = fill(allocator, 32 << 20)
            del array
        assert allocator.reclaim.running == 0
        stats = allocator.stats()
        assert stats.peak_resident <= 64 << 20, stats
        assert stats.reclaimed >= 9 * (32 << 20)
        assert allocator.flush(10) and allocator.stats().pending == 0
        """,
    )


def test_subinterpreters_are_refused(run_python: Run) -> None:
    out = run_python(
        """
        try:
            import _interpreters as interpreters
        except ImportError:
            import _xxsubinterpreters as interpreters
        attempt = "try: import bigmem._core"
        attempt += "\\nexcept ImportError as error: print('refused:', error)"
        try:
            interpreter = interpreters.create("legacy")  # one that shares the GIL
        except TypeError:
            interpreter = interpreters.create()
        interpreters.run_string(interpreter, attempt)
        """
    )
    assert "refused" in out


def test_other_systems_get_a_clear_import_error(run_python: Run) -> None:
    out = run_python(
        """
        import sys
        sys.platform = "darwin"
        try:
            import bigmem
        except ImportError as error:
            print(error)
        """
    )
    assert out.strip() == "bigmem runs on Linux only (this is darwin)"


def test_threads_that_share_an_allocator_never_see_each_others_bytes(run_prepared: Run) -> None:
    run_prepared(
        """
        import random
        policies = (bigmem.Inline(), bigmem.Deferred(), bigmem.Recycle(),
                    bigmem.Recycle(decay=0.01), bigmem.Recycle(0.01, None, "free"))
        allocators = [native(policy) for policy in policies]
        end = time.monotonic() + 2.5
        errors = []
        def work(seed):
            rng = random.Random(seed)
            held = []
            while time.monotonic() < end:
                allocator = rng.choice(allocators)
                zeroed = rng.random() < 0.5
                size = int(10 ** rng.uniform(0, 6.5))
                make = bigmem.zeros if zeroed else bigmem.empty
                array = make(size, np.uint8, allocator=allocator)
                if zeroed and array.any():
                    errors.append("not zero")
                array[:] = seed
                held.append(array)
                if len(held) > 20:
                    gone = held.pop(rng.randrange(20))
                    if not (gone == seed).all():
                        errors.append("changed")
                if rng.random() < 0.002:
                    gc.collect()
                    allocator.trim()
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 7)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        assert not errors, errors[:5]
        for allocator in allocators:
            assert allocator.flush(20)
            allocator.trim()
            assert allocator.stats().resident == 0
        """,
    )


@pytest.mark.parametrize("mapped", [False, True])
def test_an_allocation_waits_for_address_range_that_is_being_unmapped(
    run_prepared: Run, mapped: bool
) -> None:
    run_prepared(
        """
        import resource
        table = _core.ProbedPages()
        allocator = native(bigmem.Deferred(), table, mapped=MAPPED)
        size = int(open("/proc/self/statm").read().split()[0]) * 4096
        limit = size + (160 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        table.delay("unreserve", 0.1)
        for step in range(3):
            array = fill(allocator, (100 + step) << 20)
            del array
            before = table.calls("unreserve")[0]
            wait_for(lambda: table.calls("unreserve")[0] > before)
        """.replace("MAPPED", str(mapped)),
    )


def test_a_limit_that_comes_late_is_kept_too(run_prepared: Run) -> None:
    run_prepared(
        """
        import resource
        policies = (bigmem.Recycle(), bigmem.Deferred(), bigmem.Inline())
        allocators = [native(policy) for policy in policies] + [native(policies[1], mapped=True)]
        size = int(open("/proc/self/statm").read().split()[0]) * 4096
        limit = size + (300 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        for allocator in allocators:
            for step in range(12):
                array = fill(allocator, (100 + 8 * step) << 20)
                del array
        """,
        timeout=240,  # to touch some gigabytes
    )
