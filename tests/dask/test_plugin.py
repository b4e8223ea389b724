"""`BigmemPlugin` in the workers of real clusters, and its arithmetic beside them."""

import asyncio
import contextlib
import math
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import numpy as np
import pytest
from distributed import Client, wait
from waiting import wait_for

import bigmem
from bigmem import dask as bigmem_dask
from bigmem import pressure
from bigmem.dask import BigmemPlugin, Thresholds, budget_for

from .conftest import cluster

MIB = 1 << 20
KEEPING = partial(bigmem.ArenaAllocator, release=bigmem.Recycle(decay=math.inf), name="keeping")


def worker(
    limit: int | None, target: Any = 0.6, spill: Any = 0.7, pause: Any = 0.8, process: int = 0
) -> Any:
    """What the plugin looks at of a worker."""
    return SimpleNamespace(
        memory_manager=SimpleNamespace(
            memory_limit=limit,
            memory_target_fraction=target,
            memory_spill_fraction=spill,
            memory_pause_fraction=pause,
            memory_monitor_interval=0.01,
        ),
        monitor=SimpleNamespace(get_process_memory=lambda: process),
        metrics={},
        periodic_callbacks={},
    )


def metrics(client: Client) -> list[dict[str, int]]:
    """What the scheduler has heard from each worker."""
    return [
        {name: value for name, value in one["metrics"].items() if name.startswith("bigmem_")}
        for one in client.scheduler_info(n_workers=-1)["workers"].values()
    ]


@pytest.fixture
def plugged(process: Client) -> Iterator[Callable[[BigmemPlugin], Client]]:
    def register(plugin: BigmemPlugin) -> Client:
        process.register_plugin(plugin)
        return process

    yield register
    with contextlib.suppress(ValueError):  # the test did it
        process.unregister_worker_plugin("bigmem")


# Without a cluster


def test_nothing_else_imports_dask() -> None:
    modules = "{'dask', 'distributed'} & {*sys.modules}"
    code = f"import bigmem, bigmem.cli, prover.cli, sys; print({modules})"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "set()\n"


def test_without_distributed_the_error_says_what_to_install() -> None:
    code = "import sys; sys.modules['distributed'] = None; import bigmem.dask"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("pip install 'bigmem[dask]'")


@pytest.mark.parametrize(
    ("fractions", "near", "most"),
    [
        ({}, 600, 950),
        ({"target": 0.95}, 630, 950),
        ({"target": False}, 630, 950),
        ({"target": False, "spill": False}, 720, 950),
        ({"target": False, "spill": False, "pause": False}, 855, 950),
    ],
)
def test_idle_memory_goes_before_dask_acts(fractions: Any, near: int, most: int) -> None:
    with dask.config.set({"distributed.worker.memory.terminate": 0.95}):
        assert Thresholds.of(worker(1000, **fractions)) == Thresholds(near, most)


def test_the_budget_is_what_is_left_of_the_memory_limit() -> None:
    with dask.config.set({"distributed.worker.memory.terminate": 0.95}):
        assert budget_for(worker(1000, process=150)).limit == 800
        assert budget_for(worker(1000, process=2000)).limit == 1
    with dask.config.set({"distributed.worker.memory.terminate": False}):
        assert budget_for(worker(1000, process=150)).limit == 850


def test_without_a_memory_limit_the_budget_is_a_share_of_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pressure, "_root", Path("/"))  # which other tests move
    usable = pressure.limit()
    assert usable is not None
    with dask.config.set({"distributed.worker.memory.terminate": 0.5}):
        assert Thresholds.of(worker(None)) == Thresholds(None, None)
        assert budget_for(worker(None)).limit == pytest.approx(usable / 2, rel=0.01)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"allocator": bigmem.SystemAllocator()}, TypeError),
        ({"budget": "much"}, bigmem.BigmemError),
        ({"budget": 0}, bigmem.BigmemError),
        ({"min_bytes": 0}, bigmem.BigmemError),
    ],
)
def test_nonsense_is_refused_before_it_is_sent(arguments: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        BigmemPlugin(**arguments)


def test_memory_goes_back_beside_the_event_loop() -> None:
    """With an allocator written in Python, which has nothing but `trim`."""
    trimmed_by: list[int] = []

    class Slow(bigmem.SystemAllocator):
        def stats(self) -> bigmem.AllocatorStats:
            return bigmem.AllocatorStats(warm=1)

        def trim(self) -> int:
            trimmed_by.append(threading.get_ident())
            return 7

    def make(*, budget: bigmem.Budget) -> bigmem.Allocator:
        return Slow()

    async def scenario() -> int:
        near_its_limit = worker(1000, process=601)
        plugin = BigmemPlugin(make)
        plugin.setup(near_its_limit)
        try:
            while not trimmed_by:
                await asyncio.sleep(0.001)
            while not (given := near_its_limit.metrics["bigmem_given_back"](near_its_limit)):
                await asyncio.sleep(0.001)
        finally:
            plugin.teardown(near_its_limit)
        assert near_its_limit.metrics == near_its_limit.periodic_callbacks == {}
        return int(given)

    assert asyncio.run(asyncio.wait_for(scenario(), 60)) % 7 == 0
    assert threading.get_ident() not in trimmed_by


@pytest.mark.parametrize("fails", [("stats",), ("stats", "trim")])
def test_an_allocator_that_fails_is_looked_after_all_the_same(
    fails: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    trimmed: list[int] = []

    class Failing(bigmem.SystemAllocator):
        def stats(self) -> bigmem.AllocatorStats:
            raise RuntimeError("no stats")

        def trim(self) -> int:
            trimmed.append(7)
            if "trim" in fails:
                raise RuntimeError("no trim")
            return 7

    one = worker(1000, process=601)
    with dask.config.set({"distributed.worker.memory.terminate": 0.95}):
        failing = bigmem.Limited(Failing(), 900, name="failing")
        plugin = BigmemPlugin("theirs", min_bytes=1)
        watch = bigmem_dask._Watch(one, bigmem_dask._Served(plugin, failing, bigmem.Budget(900)))
    block = failing.allocate(100)
    for _ in range(3):
        asyncio.run(watch._look())
    assert watch._given_back == (0 if "trim" in fails else 21)
    assert len(trimmed) == 3
    assert failing.limit == watch.served.budget.limit == 950 - (601 - block.nbytes)
    (told,) = [record for record in caplog.records if record.name == "bigmem"]
    assert "'failing'> fails to tell what it holds, or to give it back" in told.getMessage()
    assert "(RuntimeError: no stats)" in told.getMessage()
    assert told.exc_info is None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # why NumPy has none
@pytest.mark.parametrize("allocator", [KEEPING, "recycle", "system"])
def test_the_budget_follows_what_others_leave(
    allocator: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """What the worker has beyond the arrays, of the 950 MiB at which Dask would end it."""
    full = worker(1000 * MIB, process=1200 * MIB)

    async def budget_is(nbytes: int) -> None:
        while full.metrics["bigmem_budget"](full) != nbytes:
            await asyncio.sleep(0.001)

    async def scenario() -> None:
        plugin = BigmemPlugin(allocator)
        plugin.setup(full)
        try:
            await budget_is(1)
            with pytest.raises(MemoryError):
                np.ones(MIB)
            await asyncio.sleep(0.05)  # some looks: it is told once
            full.monitor.get_process_memory = lambda: 150 * MIB
            await budget_is(800 * MIB)
            array = np.ones(64 * MIB, np.uint8)
            # An array counts as the allocator's from when it is made, and others no more for it.
            full.monitor.get_process_memory = lambda: 150 * MIB + array.nbytes
            await asyncio.sleep(0.2)
            await budget_is(800 * MIB)
            full.monitor.get_process_memory = lambda: 350 * MIB + array.nbytes
            await budget_is(600 * MIB)
            with pytest.raises(MemoryError):
                np.ones(601 * MIB, np.uint8)
        finally:
            plugin.teardown(full)

    with dask.config.set({"distributed.worker.memory.terminate": 0.95}):
        asyncio.run(asyncio.wait_for(scenario(), 60))
    (told,) = [record.getMessage() for record in caplog.records if record.name == "bigmem"]
    assert told.startswith("no room for arrays: 1.172 GiB of this worker are not the allocator's")
    assert "arrays of 64 KiB and more raise MemoryError" in told


def test_a_moments_smaller_share_of_others_makes_no_room() -> None:
    """An array that is not yet written is the allocator's, and not yet the process's."""
    process = iter([300, 250] + [300] * 8 + [250] * 9)
    one = worker(1000)
    one.monitor.get_process_memory = lambda: next(process)
    with dask.config.set({"distributed.worker.memory.terminate": 0.95}):
        watch = bigmem_dask._Watch(
            one,
            bigmem_dask._Served(BigmemPlugin(), bigmem.SystemAllocator(), bigmem.Budget(1)),
        )
    limits = []
    for _ in range(19):
        asyncio.run(watch._look())
        limits.append(watch.served.budget.limit)
    assert limits == [650] * 19
    process = iter([250])
    asyncio.run(watch._look())
    assert watch.served.budget.limit == 700


def test_a_budget_that_was_named_stays() -> None:
    named = BigmemPlugin(budget=500)
    one = worker(1000, process=900)
    watch = bigmem_dask._Watch(
        one, bigmem_dask._Served(named, bigmem.SystemAllocator(), bigmem.Budget(500))
    )
    asyncio.run(watch._look())
    assert watch.served.budget.limit == 500


# Workers that are threads of this process


def test_workers_of_one_process_share_and_the_last_one_uninstalls() -> None:
    before = bigmem.get_allocator()
    with cluster(n_workers=2, processes=False) as client:
        client.register_plugin(BigmemPlugin(KEEPING))
        installed = bigmem.get_allocator()
        assert installed.name == "keeping"
        assert np.ones(MIB).nbytes <= installed.stats().peak_live
        kept = client.submit(np.ones, MIB).result()

        client.register_plugin(BigmemPlugin("deferred"))
        assert bigmem.get_allocator().name == "deferred"
        assert bigmem_dask._current is not None
        assert bigmem_dask._current.workers == 2
        with pytest.raises(bigmem.BigmemError, match="takes no allocations"):
            installed.allocate(1)

        first, second = client.scheduler_info(n_workers=-1)["workers"]
        client.retire_workers([first])
        wait_for(lambda: bigmem_dask._current.workers == 1)
        assert bigmem.get_allocator().name == "deferred"
    assert second
    assert bigmem_dask._current is None
    assert bigmem.get_allocator() is before
    installed.flush()
    held = installed.stats().live
    assert held >= kept.nbytes
    assert (kept == 1).all()
    del kept
    installed.flush()
    assert installed.stats().live < held


# A worker that is a process


def test_every_thread_is_served_and_the_scheduler_hears_of_it(
    plugged: Callable[[BigmemPlugin], Client],
) -> None:
    client = plugged(BigmemPlugin(KEEPING, budget="150MiB"))
    kept = client.submit(np.ones, 64 * MIB, dtype=np.uint8, pure=False)
    wait(kept)
    (live,) = client.run(lambda: bigmem.stats().live).values()
    assert live >= 64 * MIB
    wait_for(lambda: metrics(client)[0].get("bigmem_live") == live)
    assert metrics(client)[0] == {
        "bigmem_live": live,
        "bigmem_pending": 0,
        "bigmem_warm": 0,
        "bigmem_budget": 150 * MIB,
        "bigmem_given_back": 0,
    }
    small = client.submit(np.ones, 63 << 10, dtype=np.uint8, pure=False)
    large = client.submit(np.ones, 64 << 10, dtype=np.uint8, pure=False)
    assert small.result().size + large.result().size == 127 << 10
    (grown,) = client.run(lambda: bigmem.stats().live).values()
    assert grown == live + (64 << 10)
    with pytest.raises(MemoryError):
        client.submit(np.ones, 100 * MIB, dtype=np.uint8).result()
    del kept
    fits = client.submit(np.ones, 100 * MIB, dtype=np.uint8, pure=False)
    assert fits.result()[-1] == 1


def test_arrays_outlive_the_plugin(plugged: Callable[[BigmemPlugin], Client]) -> None:
    client = plugged(BigmemPlugin())
    kept = client.submit(np.arange, MIB)
    assert client.submit(lambda: bigmem.get_allocator().name, pure=False).result() == "recycle"
    client.unregister_worker_plugin("bigmem")
    assert client.submit(lambda array: int(array.sum()), kept).result() == MIB * (MIB - 1) // 2
    served = client.run(lambda: (np.ones(MIB), bigmem.stats().allocations)[1])
    assert list(served.values()) == [0]  # of the open allocators: the plugin's is closed
    wait_for(lambda: metrics(client) == [{}])


def test_warm_memory_goes_back_when_the_worker_nears_its_limit(
    plugged: Callable[[BigmemPlugin], Client],
) -> None:
    client = plugged(BigmemPlugin(KEEPING))
    near, excess = int(0.6 * 1024 * MIB), 120 * MIB

    def fill_and_drop(dask_worker: Any) -> None:
        np.ones(near + excess - dask_worker.monitor.get_process_memory(), np.uint8)

    def state(dask_worker: Any) -> tuple[int, int, int, str]:
        return (
            dask_worker.monitor.get_process_memory(),
            bigmem.stats().warm,
            dask_worker.metrics["bigmem_given_back"](dask_worker),
            dask_worker.status.name,
        )

    client.run(fill_and_drop)
    wait_for(lambda: next(iter(client.run(state).values()))[0] <= near + 4 * MIB)
    wait_for(lambda: next(iter(client.run(state).values()))[2] > 0)
    ((_, warm, given_back, status),) = client.run(state).values()
    assert status == "running"
    assert given_back < excess + 30 * MIB  # no more went than had to
    assert warm > 200 * MIB
    wait_for(lambda: metrics(client)[0].get("bigmem_given_back", 0) >= given_back)


def test_a_worker_that_was_full_serves_arrays_once_it_is_not(
    plugged: Callable[[BigmemPlugin], Client],
) -> None:
    def fill(dask_worker: Any) -> None:
        dask_worker.others = bytearray(500 * MIB)
        dask_worker.others[::4096] = bytes([1]) * (500 * MIB // 4096)

    def empty(dask_worker: Any) -> None:
        del dask_worker.others

    def budget(dask_worker: Any) -> int:
        return int(dask_worker.metrics["bigmem_budget"](dask_worker))

    def resident(dask_worker: Any) -> int:
        return int(dask_worker.monitor.get_process_memory())

    client = plugged(BigmemPlugin(KEEPING))  # imports what it takes
    client.unregister_worker_plugin("bigmem")
    # What was warm goes back in the background.
    wait_for(lambda: next(iter(client.run(resident).values())) < 300 * MIB)
    client.run(fill)
    client = plugged(BigmemPlugin(KEEPING))
    with pytest.raises(MemoryError):
        client.submit(np.ones, 450 * MIB, dtype=np.uint8, pure=False).result()
    client.run(empty)
    wait_for(lambda: next(iter(client.run(budget).values())) > 600 * MIB)
    assert client.submit(lambda: np.ones(450 * MIB, np.uint8)[-1], pure=False).result() == 1


def test_a_restarted_worker_gets_it_too(plugged: Callable[[BigmemPlugin], Client]) -> None:
    client = plugged(BigmemPlugin("deferred"))
    before = client.run(lambda: (bigmem.get_allocator().name, __import__("os").getpid()))
    client.restart()
    after = client.run(lambda: (bigmem.get_allocator().name, __import__("os").getpid()))
    ((name, pid),) = after.values()
    assert (name, pid) not in before.values()
    assert name == "deferred"


def test_a_failing_factory_changes_nothing(process: Client) -> None:
    def fail(*, budget: bigmem.Budget) -> bigmem.Allocator:
        raise bigmem.BigmemError(f"no allocator within {budget.limit}")

    with pytest.raises(bigmem.BigmemError, match="no allocator within"):
        process.register_plugin(BigmemPlugin(fail, budget=5))
    process.unregister_worker_plugin("bigmem")
    (name,) = process.run(lambda: bigmem.get_allocator().name).values()
    assert name == "recycle"
    assert list(process.run(lambda: bigmem.stats().allocations).values()) == [0]
