"""NumPy's own arrays on our allocators: which are served, by whom, and that none is lost."""

import asyncio
import contextvars
import io
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy_memory import Counting, raised_unraisable

import bigmem
from bigmem import _core, numpy_hook
from bigmem.wrappers import Wrapper

KIB, MIB = 1 << 10, 1 << 20
Array = np.ndarray[Any, Any]


pytestmark = pytest.mark.usefixtures("uninstalled")


def make_resized() -> Array:
    array = np.arange(1000.0)
    for length in (3000, 70_000, 65_000, 200_000, 10, 40_000):
        array.resize(length, refcheck=False)
        array[-1] = length
    return array


def make_loaded() -> Array:
    file = io.BytesIO()
    np.save(file, np.arange(30_000))
    file.seek(0)
    return np.load(file)  # type: ignore[no-any-return]


WORKLOADS: dict[str, Callable[[], Array]] = {
    "temporaries": lambda: np.arange(20_000.0) * 2 + np.ones(20_000) ** 2,
    "zeros": lambda: np.zeros((100, 100, 5)),
    "resize": make_resized,
    "fromiter": lambda: np.fromiter((i * 0.5 for i in range(3_000)), float),
    "loadtxt": lambda: np.loadtxt(io.StringIO("1.5 2\n" * 500)),
    "fromstring": lambda: np.fromstring("1 2 3 " * 2000, sep=" "),
    "fromstring, nothing": lambda: np.fromstring("", sep=" "),
    "argsort": lambda: np.argsort(np.arange(20_000)[::-1]),
    "stable sort": lambda: np.sort(np.arange(20_000)[::-1] // 3, kind="stable"),
    "no elements": lambda: np.empty((2, 0, 2)),
    "load": make_loaded,
    "strings": lambda: np.array([str(i) * (i % 50) for i in range(1000)]),
    "objects": lambda: np.array([object] * 5000),
    "records": lambda: np.zeros(5000, dtype="i4,f8,S5"),
    "concatenate": lambda: np.concatenate([np.arange(3000)] * 7),
    "unique": lambda: np.unique(np.arange(20_000) % 77),
    "matmul": lambda: np.ones((100, 90)) @ np.ones((90, 80)),
    "fft": lambda: np.fft.fft(np.arange(4096.0)),
    "setflags": lambda: np.arange(9000).byteswap().copy(order="F"),
}


def test_results_are_numpys_and_nothing_is_lost(allocator: bigmem.Allocator) -> None:
    for name, workload in WORKLOADS.items():
        expected = workload()
        before = allocator.stats()
        bigmem.install(allocator, min_bytes="1KiB")
        array = workload()
        np.testing.assert_array_equal(array, expected, err_msg=name)
        assert array.dtype == expected.dtype, name
        bigmem.uninstall()
        del array
        assert _core.numpy_ranges() == 0, name
        assert not [b for b in bigmem.live_blocks() if b.allocator == allocator.name], name
        after = allocator.stats()
        made = after.allocations - before.allocations
        if not isinstance(allocator, Wrapper):  # which may keep what is released
            assert made == after.releases - before.releases, name
            assert after.live == before.live, name
        if after.allocations and name != "no elements":  # those written in Python do not count
            assert made > 0, name


def test_sizes_from_min_bytes_on_are_served(allocator: bigmem.Allocator) -> None:
    bigmem.install(allocator, min_bytes=10_000)
    below, least, above = (np.empty(n, np.uint8) for n in (9_999, 10_000, 10_001))
    assert {
        block.nbytes for block in bigmem.live_blocks() if block.allocator == allocator.name
    } == {
        10_000,
        10_001,
    }
    del below, least, above


def test_min_bytes_of_one_serves_everything() -> None:
    allocator = Counting()
    bigmem.install(allocator, min_bytes=1)
    arrays = [np.zeros(n) for n in (0, 1, 2, 100)]
    bigmem.uninstall()
    assert [sum(array) for array in arrays] == [0, 0, 0, 0]
    assert {8, 16, 800} <= set(allocator.sizes)


@pytest.mark.parametrize("senseless", [0, -1, "much", "0MiB"])
def test_senseless_min_bytes_are_refused(senseless: int | str) -> None:
    with pytest.raises(bigmem.BigmemError):
        bigmem.install(min_bytes=senseless)
    with pytest.raises(bigmem.BigmemError):
        with bigmem.use(bigmem.make("system"), senseless):
            pass


def test_only_allocators_are_taken() -> None:
    with pytest.raises(TypeError, match=r"bigmem\.Allocator, not str"):
        bigmem.install("recycle")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"bigmem\.Allocator, not NoneType"):
        with bigmem.use(None):  # type: ignore[arg-type]
            pass


def test_the_process_default_is_what_install_takes() -> None:
    allocator = Counting()
    previous = bigmem.set_allocator(allocator)
    try:
        bigmem.install()
        np.ones(MIB, np.uint8)
    finally:
        bigmem.set_allocator(previous)
    assert allocator.sizes == [MIB]


def test_arrays_outlive_uninstall_and_their_allocator(allocator: bigmem.Allocator) -> None:
    bigmem.install(allocator, min_bytes=KIB)
    array = np.arange(10_000)
    bigmem.uninstall()
    allocator.close()
    np.testing.assert_array_equal(array, np.arange(10_000))
    array.resize(20_000, refcheck=False)
    assert array[9_999] == 9_999
    assert not array[10_000:].any()
    assert np.arange(10_000).sum() == array.sum()


def test_a_closed_allocator_serves_nothing(allocator: bigmem.Allocator) -> None:
    bigmem.install(allocator, min_bytes=KIB)
    allocator.close()
    with raised_unraisable() as errors:
        with pytest.raises(MemoryError):
            np.arange(10_000)
        assert "takes no allocations" in str(errors[0])


def test_a_later_install_replaces_the_earlier() -> None:
    first, second = Counting(), Counting()
    bigmem.install(first)
    kept = np.ones(MIB, np.uint8)
    bigmem.install(second, min_bytes=2 * MIB)
    np.ones(MIB, np.uint8)
    np.ones(3 * MIB, np.uint8)
    kept.resize(4 * MIB, refcheck=False)
    bigmem.uninstall()
    np.ones(MIB, np.uint8)
    assert (first.sizes, second.sizes) == ([MIB], [3 * MIB, 4 * MIB])
    assert kept[: 2 * MIB].sum() == MIB


# --- use() ---


def test_use_is_scoped_and_nests() -> None:
    outer, inner = Counting(), Counting()
    np.ones(MIB, np.uint8)
    with bigmem.use(outer, min_bytes=MIB):
        np.ones(MIB, np.uint8)
        with bigmem.use(inner, min_bytes=4 * MIB):
            np.ones(4 * MIB, np.uint8)
            np.ones(2 * MIB, np.uint8)  # below the inner one's: what would be without it
            np.ones(10, np.uint8)
        np.ones(5 * MIB, np.uint8)
    np.ones(7 * MIB, np.uint8)
    assert inner.sizes == [4 * MIB]
    assert outer.sizes == [MIB, 2 * MIB, 5 * MIB]


def test_use_goes_before_install() -> None:
    everywhere, here = Counting(), Counting()
    bigmem.install(everywhere, min_bytes=MIB)
    with bigmem.use(here, min_bytes=4 * MIB):
        np.ones(4 * MIB, np.uint8)
        np.ones(2 * MIB, np.uint8)
    np.ones(6 * MIB, np.uint8)
    assert (here.sizes, everywhere.sizes) == ([4 * MIB], [2 * MIB, 6 * MIB])


def test_use_ends_with_an_exception_and_may_be_a_decorator() -> None:
    allocator = Counting()
    with pytest.raises(KeyError):
        with bigmem.use(allocator):
            raise KeyError
    np.ones(MIB, np.uint8)
    bigmem.use(allocator)(lambda: np.ones(2 * MIB, np.uint8))()
    np.ones(MIB, np.uint8)
    assert allocator.sizes == [2 * MIB]


def test_arrays_of_an_inner_use_are_resized_and_freed_outside() -> None:
    outer, inner = Counting(), Counting()
    with bigmem.use(outer, min_bytes=MIB):
        with bigmem.use(inner, min_bytes=4 * MIB):
            large, middle, small = (np.ones(n * MIB // 2, np.uint8) for n in (8, 4, 1))
    for array in (large, middle, small):
        array.resize(5 * MIB, refcheck=False)
        assert array.sum() == min(np.count_nonzero(array), 5 * MIB)
    # An array's realloc is that of the handler it was made under.
    assert inner.sizes == [4 * MIB, 5 * MIB, 5 * MIB, 5 * MIB]
    assert outer.sizes == [2 * MIB]


def test_two_allocators_in_two_threads_do_not_mix() -> None:
    allocators = [Counting(), Counting()]
    together = threading.Barrier(2)

    def work(number: int) -> None:
        with bigmem.use(allocators[number]):
            for _ in range(20):
                together.wait()
                np.ones((1 + number) * MIB, np.uint8)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [set(allocator.sizes) for allocator in allocators] == [{MIB}, {2 * MIB}]


def test_use_covers_tasks_and_copied_contexts_but_no_new_thread() -> None:
    allocator = Counting()

    async def task(size: int) -> None:
        await asyncio.sleep(0)
        np.ones(size, np.uint8)

    async def main() -> None:
        with bigmem.use(allocator):
            inside = asyncio.create_task(task(2 * MIB))
            await asyncio.to_thread(np.ones, 3 * MIB, np.uint8)
            contextvars.copy_context().run(np.ones, 4 * MIB, np.uint8)
            thread = threading.Thread(target=np.ones, args=(5 * MIB, np.uint8))
            thread.start()
            thread.join()
        outside = asyncio.create_task(task(6 * MIB))
        await asyncio.gather(inside, outside)

    asyncio.run(main())
    assert sorted(allocator.sizes) == [2 * MIB, 3 * MIB, 4 * MIB]


# --- install() in every thread ---


class Subclass(threading.Thread):
    def run(self) -> None:
        np.ones(3 * MIB, np.uint8)


def start_everything(allocator: Counting) -> set[int]:
    """Arrays of distinct sizes in every kind of thread that starts after install()."""

    def join(thread: threading.Thread) -> None:
        thread.start()
        thread.join()

    join(threading.Thread(target=np.ones, args=(2 * MIB, np.uint8)))
    join(Subclass())
    join(threading.Timer(0, np.ones, (4 * MIB, np.uint8)))
    with ThreadPoolExecutor(1) as pool:
        pool.submit(np.ones, 5 * MIB, np.uint8).result()

    async def main() -> None:
        await asyncio.to_thread(np.ones, 6 * MIB, np.uint8)
        await asyncio.create_task(asyncio.to_thread(np.ones, 7 * MIB, np.uint8))
        np.ones(8 * MIB, np.uint8)

    asyncio.run(main())
    contextvars.copy_context().run(np.ones, 9 * MIB, np.uint8)
    np.ones(10 * MIB, np.uint8)
    return {n // MIB for n in allocator.sizes}


def test_install_covers_every_thread() -> None:
    assert numpy_hook.mechanism() == "default handler"
    allocator = Counting()
    installed, made = threading.Event(), threading.Event()

    def run_already() -> None:
        installed.wait()
        np.ones(11 * MIB, np.uint8)
        made.set()

    threading.Thread(target=run_already).start()
    bigmem.install(allocator)
    installed.set()
    made.wait()
    contextvars.Context().run(np.ones, 12 * MIB, np.uint8)
    assert start_everything(allocator) == set(range(2, 13))


def test_where_the_default_handler_cannot_be_edited(run_prepared: Callable[..., str]) -> None:
    out = run_prepared(
        """
        import asyncio, contextvars
        from concurrent.futures import ThreadPoolExecutor
        from bigmem import numpy_hook, osmem
        osmem.is_writable = lambda address: False
        MIB = 1 << 20

        class Subclass(threading.Thread):
            def run(self):
                np.ones(3 * MIB, np.uint8)

        def join(thread):
            thread.start()
            thread.join()
            assert not thread.is_alive() and "run" not in vars(thread)

        def live(size):
            array = np.ones(size * MIB, np.uint8)
            return size, bigmem.stats().live // MIB

        allocator = bigmem.make("deferred")
        bigmem.install(allocator)
        print(numpy_hook.mechanism(), live(2))
        before = allocator.stats().allocations
        join(threading.Thread(target=np.ones, args=(2 * MIB, np.uint8)))
        join(Subclass())
        join(threading.Timer(0, np.ones, (4 * MIB, np.uint8)))
        with ThreadPoolExecutor(1) as pool:
            print(pool.submit(live, 5).result())
        print(asyncio.run(asyncio.to_thread(live, 6)))
        print(contextvars.copy_context().run(live, 7), live(8))
        print(allocator.stats().allocations - before)
        kept = np.ones(MIB, np.uint8)
        bigmem.uninstall()
        print(live(9), threading.Thread.start.__qualname__)
        join(threading.Thread(target=np.ones, args=(2 * MIB, np.uint8)))
        kept.resize(10 * MIB, refcheck=False)
        print(allocator.stats().live // MIB, int(kept.sum()) // MIB)
        """
    )
    assert out.splitlines() == [
        "new threads (2, 2)",
        "(5, 5)",
        "(6, 6)",
        "(7, 7) (8, 8)",
        "7",
        "(9, 1) Thread.start",
        "0 1",
    ]


def test_a_thread_that_cannot_start_can_be_started_again(run_prepared: Callable[..., str]) -> None:
    out = run_prepared(
        """
        from bigmem import osmem
        osmem.is_writable = lambda address: False
        bigmem.install()
        thread = threading.Thread(target=print, args=("ran",))
        thread.start()
        thread.join()
        try:
            thread.start()
        except RuntimeError as error:
            print(error)
        print(vars(thread).get("run"))
        """
    )
    assert out.splitlines() == ["ran", "threads can only be started once", "None"]
