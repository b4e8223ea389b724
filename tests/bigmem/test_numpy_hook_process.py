"""The hook over a whole process: forks, exits, and what the interpreter does at its end."""

from collections.abc import Callable

import pytest

RunPython = Callable[..., str]
NAMES = ["system", "mapped", "dontneed", "deferred", "recycle"]


@pytest.mark.parametrize("name", NAMES)
def test_exit_with_arrays_alive_is_silent(run_prepared: RunPython, name: str) -> None:
    run_prepared(
        f"""
        import atexit
        bigmem.install(bigmem.make({name!r}))
        kept = [np.ones(1 << 20) for _ in range(10)]
        module = type(sys)("other"); sys.modules["other"] = module
        module.kept = np.ones(1 << 20)

        class Late:
            array = np.ones(1 << 20)
            def __del__(self):
                del self.array_of_its_own
        late = Late()
        late.array_of_its_own = np.ones(1 << 20)
        late.cycle = late
        atexit.register(lambda: np.ones(1 << 22).sum())

        def forever():
            while True:
                np.loadtxt(["1 2 3"] * 10000).resize(100000)
        for _ in range(3):
            threading.Thread(target=forever, daemon=True).start()
        time.sleep(0.2)
        """
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_late_destructor_may_allocate(run_prepared: RunPython, name: str) -> None:
    out = run_prepared(
        f"""
        bigmem.install(bigmem.make({name!r}))

        class Late:
            def __del__(self, empty=np.empty, write=os.write):
                array = empty(1 << 20)
                array.fill(3)
                write(1, b"%d" % array[-1])
        late = Late()
        """
    )
    assert out == "3"


@pytest.mark.parametrize("name", NAMES)
def test_a_child_of_fork_uses_the_hook_at_once(run_prepared: RunPython, name: str) -> None:
    out = run_prepared(
        f"""
        warnings.simplefilter("ignore", DeprecationWarning)
        allocator = bigmem.make({name!r})
        bigmem.install(allocator)
        kept = np.arange(1 << 20)
        if (child := os.fork()) == 0:
            other = np.arange(1 << 20)[::-1]
            kept += other
            good = (kept == (1 << 20) - 1).all()
            del kept
            live = allocator.stats().live
            os._exit(0 if good and live == other.base.nbytes and bigmem.flush(10) else 1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), kept[5], kept.sum())
        """
    )
    assert out.split() == ["0", "5", str(sum(range(1 << 20)))]


def test_numpy_does_not_miss_a_policy(run_python: RunPython) -> None:
    # NumPy would warn of every array that it must free without knowing how.
    run_python(
        """
        import os
        os.environ["NUMPY_WARN_IF_NO_MEM_POLICY"] = "1"
        import numpy as np
        import bigmem
        bigmem.install(min_bytes=1)
        array = np.arange(100000)
        array.resize(200000, refcheck=False)
        with bigmem.use(bigmem.make("mapped"), 1):
            other = np.loadtxt(["1 2 3"] * 1000)
        del array, other
        bigmem.uninstall()
        """
    )
