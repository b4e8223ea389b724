"""What a fork keeps whole on both sides, each in a process of its own."""

from collections.abc import Callable

import pytest

Run = Callable[..., str]


@pytest.mark.parametrize("policy", ["Inline()", "Deferred()", "Recycle()", "Deferred('free')"])
def test_children_allocate_release_and_flush_while_the_reclaimer_is_busy(
    run_prepared: Run, policy: str
) -> None:
    run_prepared(
        """
        # This program has threads of its own, and Python 3.12 and later warn of that.
        warnings.simplefilter("ignore", DeprecationWarning)
        allocator = native(eval("bigmem." + sys.argv[1]))
        mapped = native(bigmem.Deferred(), mapped=True)
        system = bigmem.SystemAllocator()
        kept = fill(allocator, 3 << 20, 42)
        stop = False
        def busy():
            while not stop:
                fill(allocator, 2 << 20)
                fill(mapped, 2 << 20)
                fill(system, 2 << 20)
        threads = [threading.Thread(target=busy) for _ in range(2)]
        for thread in threads:
            thread.start()
        for attempt in range(15):
            child = os.fork()
            if child == 0:
                try:
                    stats = allocator.stats()
                    good = stats.warm == stats.pending == stats.reclaiming == 0
                    good &= bool((kept == 42).all())
                    kept[:] = 1
                    mine = fill(allocator, 4 << 20)
                    others = [fill(mapped, 4 << 20), fill(system, 4 << 20)]
                    del mine, others
                    good &= allocator.flush(20) and mapped.flush(20)
                    os._exit(0 if good else 1)
                except BaseException as error:
                    print(error, file=sys.stderr)
                    os._exit(2)
            _, status = os.waitpid(child, 0)
            assert status == 0, (attempt, status)
            assert (kept == 42).all()
        stop = True
        for thread in threads:
            thread.join()
        """,
        policy,
    )


def test_a_child_gives_its_copies_of_idle_memory_up(run_prepared: Run) -> None:
    run_prepared(
        """
        allocator = native(bigmem.Recycle(decay=1000))
        array = fill(allocator, 256 << 20)
        del array
        assert allocator.stats().warm == 256 << 20
        child = os.fork()
        if child == 0:
            os._exit(0 if bigmem.osmem.resident_bytes() < 128 << 20 else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert allocator.stats().warm == 256 << 20
        assert bigmem.osmem.resident_bytes() > 256 << 20
        """,
    )


def test_workers_of_a_child_start_anew(run_prepared: Run) -> None:
    run_prepared(
        """
        allocator = native(bigmem.Deferred())
        fill(allocator, 1 << 20)
        wait_for(lambda: workers() == 1)
        child = os.fork()
        if child == 0:
            good = workers() == 0
            fill(allocator, 1 << 20)
            wait_for(lambda: workers() == 1)
            wait_for(lambda: allocator.stats().pending == 0)
            os._exit(0 if good else 1)
        assert os.waitpid(child, 0)[1] == 0
        """,
    )


def test_a_child_waits_for_no_fence_of_its_parent(run_prepared: Run) -> None:
    run_prepared(
        """
        # This program has threads of its own, and Python 3.12 and later warn of that.
        warnings.simplefilter("ignore", DeprecationWarning)
        allocators = [native(bigmem.Recycle()), bigmem.SystemAllocator()]
        asked, answer = threading.Event(), threading.Event()
        parent = os.getpid()
        class Slow:
            slow = False
            def done(self):
                assert os.getpid() == parent
                if self.slow:
                    asked.set()
                    answer.wait(20)
                return False
        living = []
        for allocator in allocators:
            block = allocator.allocate(10_000)
            block.fence(Slow())
            block.release()
            living.append(allocator.allocate(10_000))
            living[-1].fence(Slow())
        Slow.slow = True
        thread = threading.Thread(target=bigmem.flush, args=(0,))
        thread.start()
        assert asked.wait(20)
        child = os.fork()
        if child == 0:
            done = [allocator.flush(5) for allocator in allocators]
            while living:
                living.pop().release()
            done += [allocator.flush(5) for allocator in allocators]
            # One of its own counts.
            class Mine:
                done = False
            block = allocators[0].allocate(10_000)
            block.fence(Mine())
            block.release()
            done.append(not allocators[0].flush(0.05))
            Mine.done = True
            done.append(allocators[0].flush(5))
            os._exit(0 if all(done) else 1)
        assert os.waitpid(child, 0)[1] == 0
        answer.set()
        thread.join()
        Slow.done = lambda self: True
        """,
    )


def test_a_fork_finds_no_thread_of_ours_and_python_does_not_warn(run_prepared: Run) -> None:
    # Python 3.12 and later warn of forks in any process that has other threads.
    run_prepared(
        """
        allocators = [native(bigmem.Deferred(), reclaim=bigmem.ReclaimPool(n)) for n in (1, 3)]
        quick = 0
        while quick < 20:
            for allocator in allocators:
                fill(allocator, 8 << 20)
            start = time.monotonic()
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                child = os.fork()
                if child == 0:
                    os._exit(len(tasks()) - 1)
            # On a busy machine one may take so long that it does not wait for the workers.
            if time.monotonic() - start < 0.25:
                quick += 1
                assert not told, told
            assert os.waitpid(child, 0)[1] == 0
            # They come back without a further allocation or release.
            wait_for(lambda: workers() == 4)
            wait_for(lambda: not any(a.stats().pending for a in allocators))
        """
    )


def test_functions_that_run_after_a_fork_find_no_thread_of_ours_either(run_prepared: Run) -> None:
    # logging has such a function before Python 3.13. Python counts the threads after they have run.
    run_prepared(
        """
        import concurrent.futures.thread, logging, random
        found = []
        def after():
            for _ in range(1000):
                pass
            found.append(len(tasks()))
        os.register_at_fork(after_in_parent=after)
        kept = fill(native(bigmem.Deferred()), 8 << 20)
        while len(found) < 20:
            # They come back without a further allocation or release.
            wait_for(lambda: workers() == 1)
            start = time.monotonic()
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                child = os.fork()
                if child == 0:
                    os._exit(0)
            # On a busy machine one may take so long that it does not wait for the worker.
            if time.monotonic() - start >= 0.25:
                found.pop()
            else:
                assert not told, told
            assert os.waitpid(child, 0)[1] == 0
        wait_for(lambda: workers() == 1)
        assert found == [1] * 20, found
        """
    )


def test_workers_that_ended_for_a_fork_that_did_not_wait_for_all_come_back(
    run_prepared: Run,
) -> None:
    run_prepared(
        """
        warnings.simplefilter("ignore", DeprecationWarning)
        for size in (1, 3):
            table, pool = _core.ProbedPages(), bigmem.ReclaimPool(size)
            allocator = native(bigmem.Deferred(), table, reclaim=pool)
            kept = fill(allocator, 1 << 20)
            wait_for(lambda: pool.running == size)
            table.delay("decommit", 1)
            fill(allocator, 8 << 20)
            wait_for(lambda: table.calls("decommit")[0] > 0)
            child = os.fork()  # waits a quarter of a second for the one that is busy
            if child == 0:
                os._exit(0)
            table.delay("decommit", 0)
            assert os.waitpid(child, 0)[1] == 0
            wait_for(lambda: pool.running == size)
            assert allocator.flush(20)
            assert pool.running == size
        """
    )


def test_a_fork_keeps_nothing_of_the_function_that_forked(run_prepared: Run) -> None:
    run_prepared(
        """
        os.register_at_fork(after_in_parent=lambda: None)
        allocator = native(bigmem.Deferred())
        def fork():
            local = fill(allocator, 8 << 20)
            child = os.fork()
            if child == 0:
                os._exit(0)
            return child
        for _ in range(5):
            child = fork()
            assert allocator.stats().live == 0
            assert os.waitpid(child, 0)[1] == 0
        """
    )


def test_a_function_that_runs_long_after_a_fork_does_not_keep_the_workers_away(
    run_prepared: Run,
) -> None:
    run_prepared(
        """
        warnings.simplefilter("ignore", DeprecationWarning)
        os.register_at_fork(after_in_parent=lambda: wait_for(lambda: workers() == 1))
        kept = fill(native(bigmem.Deferred()), 8 << 20)
        wait_for(lambda: workers() == 1)
        child = os.fork()
        if child == 0:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        """
    )


def test_a_fork_waits_for_no_worker_that_is_stuck(run_prepared: Run) -> None:
    run_prepared(
        """
        warnings.simplefilter("ignore")
        table = _core.ProbedPages()
        allocator = native(bigmem.Deferred(), table)
        array = fill(allocator, 8 << 20)
        table.delay("decommit", 5.0)
        del array
        wait_for(lambda: allocator.stats().reclaiming)
        child = os.fork()
        if child == 0:
            table.delay("decommit", 0)
            fill(allocator, 1 << 20)
            os._exit(0 if allocator.flush(5) else 1)
        assert allocator.stats().reclaiming, "the fork waited for the reclaim"
        assert os.waitpid(child, 0)[1] == 0
        table.delay("decommit", 0)
        assert allocator.flush(20)
        """
    )


@pytest.mark.parametrize("huge", ["never", "always"])
def test_a_living_child_costs_the_parent_no_copy_of_its_idle_memory(
    run_prepared: Run, huge: str
) -> None:
    run_prepared(
        """
        import resource
        def faults():
            return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        size = 64 << 20
        allocator = native(bigmem.Recycle(decay=1000), huge=sys.argv[1])
        from kernel import areas
        def step():
            return fill(allocator, size).ctypes.data
        def huge_bytes():
            return sum(area["AnonHugePages"] for area in areas(address, size))
        held = fill(allocator, size, 7)
        for _ in range(3):
            address = step()
        huge_before = huge_bytes()
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(writer)
            os.read(reader, 1)
            os._exit(0 if bool((held == 7).all()) else 1)
        before = faults()
        step()
        # Its interpreter pages are copied; 64 MiB would be 16384.
        assert faults() - before < 1000, faults() - before
        assert huge_bytes() >= huge_before
        # What was live is the child's too: it goes back instead of being copied page by page.
        del held
        assert allocator.flush(20)
        assert allocator.stats().warm == size
        os.write(writer, b"x")
        assert os.waitpid(child, 0)[1] == 0
        held = fill(allocator, size, 7)
        step()
        del held
        assert allocator.stats().warm == 2 * size
        """,
        huge,
    )


def test_idle_memory_stays_with_the_parent(run_prepared: Run) -> None:
    run_prepared(
        """
        allocator = native(bigmem.Recycle(decay=1000))
        fill(allocator, 64 << 20)
        small = [fill(allocator, 40_000) for _ in range(100)]
        del small[::2]
        warm = allocator.stats().warm
        child = os.fork()
        if child == 0:
            good = allocator.stats().warm == 0
            zeros = bigmem.zeros(64 << 20, np.uint8, allocator=allocator)
            good = good and not zeros.any()
            # A child of the child shares nothing it should not, and misses nothing either.
            zeros[:] = 3
            grandchild = os.fork()
            if grandchild == 0:
                os._exit(0 if bool((zeros == 3).all()) else 1)
            good = good and os.waitpid(grandchild, 0)[1] == 0
            os._exit(0 if good else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert allocator.stats().warm == warm
        """
    )


@pytest.mark.parametrize("policy", ["Recycle(decay=0.2)", "Deferred()"])
def test_workers_come_back_after_a_fork_while_the_main_thread_waits(
    run_prepared: Run, policy: str
) -> None:
    run_prepared(
        """
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of its own
        allocator = native(eval("bigmem." + sys.argv[1]))
        failed = []
        def work():
            try:
                fill(allocator, 8 << 20)
                child = os.fork()
                if child == 0:
                    os._exit(0)
                assert os.waitpid(child, 0)[1] == 0
                wait_for(lambda: allocator.stats().resident == 0)
            except BaseException as error:
                failed.append(error)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert not failed, failed
        """,
        policy,
    )


def test_a_childs_budget_counts_nothing_that_its_parent_was_unmapping(run_prepared: Run) -> None:
    run_prepared(
        """
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of its own
        table, budget = _core.ProbedPages(), bigmem.Budget("64MiB")
        allocator = native(bigmem.Inline(), table, mapped=True, budget=budget)
        block = allocator.allocate("32MiB")
        table.delay("unreserve", 0.5)
        thread = threading.Thread(target=block.release)
        thread.start()
        wait_for(lambda: table.calls("unreserve")[0] == 1)
        assert budget.used == 32 << 20
        child = os.fork()
        if child == 0:
            os._exit(0 if budget.used == 0 else 1)
        assert os.waitpid(child, 0)[1] == 0
        thread.join()
        assert budget.used == 0
        """
    )


@pytest.mark.parametrize("closes", ["flush", "with"])
def test_a_fork_may_be_the_last_to_know_a_pool(run_prepared: Run, closes: str) -> None:
    run_prepared(
        """
        warnings.simplefilter("ignore", DeprecationWarning)
        for _ in range(5):
            pool = bigmem.ReclaimPool(1)
            allocator = native(bigmem.Deferred(), reclaim=pool)
            array = fill(allocator, 8 << 20)
            time.sleep(0.1)  # the worker rests for twenty milliseconds at a time by now
            if sys.argv[1] == "with":
                with allocator:
                    del array
                    allocator.flush()
            else:
                del array
                allocator.flush()
                allocator.close()
            del allocator, pool
            child = os.fork()
            if child == 0:
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            wait_for(lambda: workers() == 0)
        """,
        closes,
    )


def test_a_fork_while_the_process_ends_starts_no_workers(run_prepared: Run) -> None:
    run_prepared(
        """
        warnings.simplefilter("ignore", DeprecationWarning)
        table, pool = _core.ProbedPages(), bigmem.ReclaimPool(1)
        allocator = native(bigmem.Deferred(), table, reclaim=pool)
        fill(allocator, 1 << 20)
        wait_for(lambda: pool.running == 1 and allocator.stats().pending == 0)
        table.delay("decommit", 1)
        called = table.calls("decommit")[0]
        fill(allocator, 8 << 20)
        wait_for(lambda: table.calls("decommit")[0] > called)
        _core.end_workers()  # one is still busy
        table.delay("decommit", 0)
        child = os.fork()
        if child == 0:
            array = fill(allocator, 8 << 20)
            del array
            os._exit(0 if allocator.flush(20) and pool.running == 1 else 1)
        assert os.waitpid(child, 0)[1] == 0
        fill(allocator, 8 << 20)
        wait_for(lambda: workers() == 0)
        fill(allocator, 8 << 20)
        assert pool.running == workers() == 0
        """
    )
