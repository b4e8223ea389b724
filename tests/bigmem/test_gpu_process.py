"""Arenas that wait for a GPU, each in a process of its own: forks, exits, and a machine made up."""

from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., str]


def test_no_fragment_is_seen_before_its_unit_is_there(run_prepared: Run) -> None:
    """Another thread allocates what is left of units while a commit is under way, and fails."""
    run_prepared(
        """
        import errno
        table = _core.ProbedPages(strict=True, granularity=2 << 20)
        arena = native(bigmem.Recycle(), table, fences=_core.ProbedFences(True))
        first = arena.allocate(4096)  # leaves a fragment that is there
        table.delay("commit", 0.3)
        table.refuse("commit", errno.ENOMEM)
        refused = []
        def grow():
            try:
                arena.allocate((3 << 20) + 4096)
            except bigmem.OutOfMemory:
                refused.append(True)
        thread = threading.Thread(target=grow)
        before = table.calls("commit")[0]
        thread.start()
        wait_for(lambda: table.calls("commit")[0] > before)
        assert thread.is_alive()
        kept = [fill(arena, 4096) for _ in range(255)]
        kept += [fill(arena, 512 << 10)]
        thread.join()
        assert refused
        assert arena.stats().live == 256 * 4096 + (512 << 10)
        table.refuse("commit", 0)
        table.delay("commit", 0)
        fill(arena, 3 << 20)
        assert all((array == 1).all() for array in kept)
        """
    )


@pytest.mark.parametrize("pages", ["pinned", "touched later"])
def test_pinned_memory_is_not_taken_for_promised(
    run_prepared: Run, tmp_path: Path, pages: str
) -> None:
    """It is resident, if not as private memory: nobody needs room for it a second time."""
    (tmp_path / "proc").mkdir()
    lines = "MemTotal: 8388608 kB\nMemFree: 0 kB\nMemAvailable: 1048576 kB\n"
    (tmp_path / "proc/meminfo").write_text(lines)
    run_prepared(
        """
        from pathlib import Path
        from bigmem import pressure
        pressure._root = Path(sys.argv[1])
        pressure._watch()
        table = _core.ProbedPages(True, granularity=2 << 20, pinned=sys.argv[2] == "pinned")
        held = native(bigmem.Recycle(), table).allocate(2 << 30)
        plain = native(bigmem.Recycle())
        fill(plain, 40 << 20)
        assert plain.stats().warm == 40 << 20
        large = plain.allocate(64 << 20)
        assert (plain.stats().warm > 0) == (sys.argv[2] == "pinned"), plain.stats()
        """,
        str(tmp_path),
        pages,
    )


def test_pinned_memory_stays_warm_after_a_fork(run_prepared: Run) -> None:
    """The child has none of it, so that nothing is copied when it is used again."""
    run_prepared(
        """
        table = _core.ProbedPages(True, granularity=2 << 20, pinned=True)
        arena = native(bigmem.Recycle(), table)
        block = arena.allocate(4 << 20)
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        del block
        assert arena.stats().warm == 4 << 20, arena.stats()
        """
    )


@pytest.mark.parametrize("policy", ["Inline()", "Deferred()", "Recycle()"])
def test_a_child_of_fork_never_asks_the_gpu(run_prepared: Run, policy: str) -> None:
    run_prepared(
        """
        warnings.simplefilter("ignore", DeprecationWarning)
        class Event:
            done = False
        gpu = _core.ProbedFences()
        table = _core.ProbedPages(True, granularity=2 << 20)
        arena = native(eval("bigmem." + sys.argv[1]), table, fences=gpu)
        live, guarded, fenced = (fill(arena, 3 << 20, n) for n in range(3))
        assert gpu.attach(live.ctypes.data) and gpu.attach(fenced.ctypes.data)
        held = arena.allocate(3 << 20)
        held.fence(Event())
        unfenced = fill(arena, 5000)
        del guarded, fenced, held
        wait_for(lambda: gpu.calls("done") > 0)
        calls = lambda: [gpu.calls(name) for name in ("guard", "done", "drop")]
        for _ in range(10):
            child = os.fork()
            if child == 0:
                try:
                    before = calls()
                    good = (live == 0).all() and (unfenced == 1).all()
                    good &= gpu.attach(live.ctypes.data) is None
                    before[2] += 1  # the test's own
                    good &= arena.flush(20)
                    good &= arena._core.fenced() == 0
                    del live, unfenced
                    again = fill(arena, 3 << 20)
                    del again
                    good &= arena.flush(20) and calls() == before
                    arena.trim()
                    arena.close()
                    os._exit(0 if good else 1)
                except BaseException as error:
                    print(error, file=sys.stderr)
                    os._exit(2)
            assert os.waitpid(child, 0)[1] == 0
        assert arena._core.fenced() == 9 << 20
        assert (live == 0).all()
        del live
        Event.done = True
        def settled():
            gpu.finish_all()
            return arena.flush(0)
        wait_for(settled)
        assert gpu.mistakes() == 0 and gpu.open() == 0
        """,
        policy,
    )


@pytest.mark.parametrize("delay", ["0", "0.02"])
@pytest.mark.parametrize("policy", ["Inline()", "Deferred()", "Recycle()"])
def test_exit_with_work_under_way_is_silent(run_prepared: Run, policy: str, delay: str) -> None:
    run_prepared(
        """
        import atexit
        gpu = _core.ProbedFences()
        arena = native(eval("bigmem." + sys.argv[1]), fences=gpu)
        blocks = [arena.allocate(1 << 20) for _ in range(50)]
        assert gpu.attach(blocks[0].address)
        kept = blocks[25:]
        del blocks
        gpu.delay(float(sys.argv[2]))
        time.sleep(0.03)
        """,
        policy,
        delay,
    )


def test_workers_ask_nothing_after_the_process_has_begun_to_end(run_prepared: Run) -> None:
    out = run_prepared(
        """
        import atexit
        gpu = _core.ProbedFences()
        arena = native(bigmem.Recycle(), fences=gpu)
        del [arena.allocate(1 << 20) for _ in range(5)][:]
        wait_for(lambda: gpu.calls("done") > 3)
        gpu.delay(0.05)
        called = gpu.calls("done")
        wait_for(lambda: gpu.calls("done") > called)  # a worker is in a call now
        _core.end_workers()
        assert _core.ReclaimPool(None).running() == 0
        before = gpu.calls("done")
        time.sleep(0.2)
        assert gpu.calls("done") == before
        assert workers() == 0
        print("asked")
        """
    )
    assert out == "asked\n"
