"""What a run of the pipeline's comparison makes of the layers' report."""

import argparse
import gc
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from emulated_device import EmulatedDevice, HostPointSums
from waiting import wait_for

import bigmem
from bench import pipeline_run
from bench.machine import forget_peak
from bench.pipeline_inputs import Inputs
from bench.pipeline_run import by_mark, gap
from bigmem import _core, osmem
from bigmem.cuda import PinnedAllocator, driver
from prover.backends.cuda.backend import CudaBackend
from prover.pipeline.engine import Engine
from prover.pipeline.report import LayerReport, Row
from prover.pipeline.usage import processor_seconds, reclaimers


def row(*path: str, outer: float, own: float, **parts: Any) -> Row:
    zeros = dict.fromkeys(Row.__dataclass_fields__, 0.0)
    given = {"path": path, "calls": 1, "outer_s": outer, "inner_s": outer - own, "gap_s": own}
    return Row(**{**zeros, **given, **parts})  # type: ignore[arg-type]


REPORT = LayerReport(
    wall_s=10.0,
    reading_s=0.0,
    workers=1,
    proofs=1,
    idle_s=0.0,
    between_s=0.0,
    rows=(
        row("worker", outer=10.0, own=0.25),
        row("worker", "wait", outer=1.75, own=1.75),
        row("worker", "circuit", outer=8.0, own=1.0, release_s=0.75, wait_s=0.25),
        row("worker", "circuit", "proof", outer=7.0, own=0.5, map_s=0.5),
        row("worker", "circuit", "proof", "NTT/MSM-H", outer=4.0, own=0.25, fault_s=0.25),
        row("worker", "circuit", "proof", "NTT/MSM-H", "ntt", outer=3.75, own=3.75, fault_s=2.0),
        row("worker", "circuit", "proof", "allocate", outer=0.5, own=0.5, map_s=0.25),
        row("worker", "circuit", "proof", "write", outer=2.0, own=2.0),
        row("ahead", outer=9.0, own=1.0),
        row("ahead", "synthesis", outer=8.0, own=8.0),
    ),
)


def test_the_gap_is_what_no_innermost_layer_of_a_circuit_covers() -> None:
    found = gap(REPORT)
    assert (found["outer_s"], found["inner_s"], found["gap_s"]) == (8.0, 5.75, 2.25)
    assert found["gap_of_inner"] == pytest.approx(2.25 / 5.75)
    parts = {name: found[f"gap_{name}_s"] for name in ("map", "release", "fault", "wait")}
    assert parts == {"map": 0.75, "release": 0.75, "fault": 0.25, "wait": 0.25}


def test_every_second_of_the_proving_thread_has_one_mark() -> None:
    found = by_mark(REPORT)
    assert found == {"gap": 2.25, "wait": 1.75, "NTT/MSM-H": 4.0, "write": 2.0}
    assert sum(found.values()) == 10.0


def reclaim_on(threads: set[int], allocator: bigmem.Allocator, seconds: float) -> None:
    """Release memory until threads have spent so much on giving it back."""
    wanted = processor_seconds(threads) + seconds
    deadline = time.monotonic() + 60
    while processor_seconds(threads) < wanted:
        bigmem.full(1 << 22, 1.0, allocator=allocator)  # dropped at once
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.fixture
def elsewhere() -> Iterator[bigmem.ArenaAllocator]:
    """An allocator of the process's own workers, which have been at work."""
    small = bigmem.AnonymousPages(huge="never")
    with bigmem.ArenaAllocator(pages=small, release=bigmem.Deferred()) as allocator:
        bigmem.full(1 << 22, 1.0, allocator=allocator)
        wait_for(lambda: reclaimers() != set())
        yield allocator


def test_reclaiming_is_charged_to_its_threads_alone(elsewhere: bigmem.ArenaAllocator) -> None:
    others = reclaimers()
    small, pool = bigmem.AnonymousPages(huge="never"), bigmem.ReclaimPool()
    with bigmem.ArenaAllocator(pages=small, release=bigmem.Deferred(), reclaim=pool) as allocator:
        bigmem.full(1 << 22, 1.0, allocator=allocator)
        wait_for(lambda: reclaimers() > others)
        (ours,) = reclaimers() - others
        reclaim_on({ours}, allocator, 0.001)
        assert allocator.flush()
        idle = processor_seconds({ours})
        with ThreadPoolExecutor(1) as busy:
            busy.submit(sum, range(10**6)).result()
            spent = busy.submit(time.thread_time).result()
        assert processor_seconds({ours}) - idle < spent
        reclaim_on(others, elsewhere, 0.01)
        assert processor_seconds({ours}) - idle < spent + 0.01


def test_the_peak_can_be_forgotten() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pytest.skip("this kernel keeps the peak for ever")
    held = bytearray(b"x") * (64 << 20)
    high = osmem.peak_resident_bytes()
    del held
    forget_peak()
    assert osmem.peak_resident_bytes() < high - (32 << 20)


@pytest.mark.parametrize("mode", ["seed", "normal"])
@pytest.mark.parametrize("policy", ["recycle+pinned", "pinned ahead"])
def test_the_cells_of_a_gpu_run_over_an_emulated_one(
    policy: str, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = Inputs(tmp_path / "inputs", "bn128", 6, 3)
    inputs.make("cpu", print)
    fake = _core.FakeCuda()
    monkeypatch.setattr(driver, "_addresses", fake.functions)
    monkeypatch.setattr(driver, "_loaded", None)
    device = EmulatedDevice()
    backend = CudaBackend(device, HostPointSums(device))  # type: ignore[arg-type]
    monkeypatch.setattr(pipeline_run, "get_backend", lambda *_, **__: backend)
    options = argparse.Namespace(
        key=inputs.key, mode=mode, policy=policy, regime="4 KiB", backend="cuda",
        ahead=None, unexplained=1.0, out=tmp_path, witnesses=inputs.witnesses,
    )  # fmt: skip
    prefaulted = []
    prefault = PinnedAllocator.prefault

    def watched(allocator: PinnedAllocator, nbytes: int) -> None:
        prefaulted.append(nbytes)
        prefault(allocator, nbytes)

    monkeypatch.setattr(PinnedAllocator, "prefault", watched)
    run = pipeline_run.measure(options)
    assert "error" not in run
    assert inputs.judge([(Path(a), Path(b)) for a, b in run["proofs"]]) is None
    pinned = run["owners"]["assignments"]
    blocks = 2 + 3 * (4 if mode == "seed" else 1)
    vectors = 4 if mode == "seed" else 1  # a unit each
    assert prefaulted == ([2 * vectors << 21] if policy == "pinned ahead" else [])
    if prefaulted:
        assert pinned["allocations"] == blocks + 1
        assert pinned["warm_hits"] == blocks - 1  # all but the first mask and what is pinned ahead
    else:
        assert pinned["allocations"] == blocks
        assert 0 < pinned["warm_hits"] < blocks
    assert 0 < run["device_s"] < run["wall_s"]
    gc.collect()
    _core.FakeCuda()  # what is left undone is done


@pytest.mark.parametrize("vectors", [1, 4])
@pytest.mark.parametrize("signals", [1 << 16, (1 << 16) + 1, 3 << 15, 70_000])
def test_what_is_pinned_ahead_holds_all_assignments(
    vectors: int, signals: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In both modes, of any number of signals: large blocks begin at whole units."""
    fake = _core.FakeCuda()
    monkeypatch.setattr(driver, "_addresses", fake.functions)
    monkeypatch.setattr(driver, "_loaded", None)
    sizes = [32 * signals, *[32 << 16] * 3][:vectors]
    engine: Any = argparse.Namespace(
        vector_bytes=sizes, circuit_bytes=sum(sizes), assignment_bytes=2 * sum(sizes)
    )
    with PinnedAllocator() as allocator:
        masks = [allocator.allocate(signals) for _ in range(2)]
        allocator.prefault(pipeline_run._whole_units(engine))
        hits, peak = allocator.stats().warm_hits, allocator.stats().peak_resident
        held = [[allocator.allocate(size) for size in sizes] for _ in range(2)]
        for _ in range(3):
            for block in held.pop(0):
                block.release()
            held.append([allocator.allocate(size) for size in sizes])
        stats = allocator.stats()
        assert stats.warm_hits == hits + 5 * vectors
        assert stats.peak_resident == peak
        rounding = pipeline_run._most_rounding(engine)
        assert peak <= 2 * signals + engine.assignment_bytes + rounding
        del masks, held, block
    gc.collect()
    _core.FakeCuda()  # what is left undone is done


def test_a_run_that_holds_more_than_its_budget_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = Inputs(tmp_path / "inputs", "bn128", 6, 3)
    inputs.make("cpu", print)
    options = argparse.Namespace(
        key=inputs.key, mode="seed", policy="detached", regime="4 KiB", backend="cpu",
        ahead=None, unexplained=1.0, out=tmp_path, witnesses=inputs.witnesses,
    )  # fmt: skip
    run = pipeline_run.measure(options)
    assert "error" not in run
    assert run["budget_bytes"] == 2 * 4 * 4096 + 2 * 4096  # vectors and masks of a page each
    assert run["held_bytes"] == run["budget_bytes"]
    assert min(run["reading_s"], run["flush_s"]) > 0

    class Understated(Engine):
        def __init__(self, *given: Any, **options: Any) -> None:
            super().__init__(*given, **options)
            self.mask_bytes -= 4096

    monkeypatch.setattr(pipeline_run, "Engine", Understated)
    run = pipeline_run.measure(options)
    assert run["error"] == "the assignments held 40 KiB, and the budget was 36 KiB"


def test_what_the_backend_leaves_to_reclaim_is_not_the_policys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: bigmem.ArenaAllocator
) -> None:
    """As the memory that copies to a GPU go through, which is wiped in the background."""
    inputs = Inputs(tmp_path / "inputs", "bn128", 6, 2)
    inputs.make("cpu", print)

    class Staged(EmulatedDevice):
        def upload(self, *given: Any, **options: Any) -> Any:
            reclaim_on(reclaimers(), elsewhere, 0.001)
            return super().upload(*given, **options)

    device = Staged()
    backend = CudaBackend(device, HostPointSums(device))  # type: ignore[arg-type]
    monkeypatch.setattr(pipeline_run, "get_backend", lambda *_, **__: backend)
    options = argparse.Namespace(
        key=inputs.key, mode="seed", policy="inline", regime="4 KiB", backend="cuda",
        ahead=None, unexplained=1.0, out=tmp_path, witnesses=inputs.witnesses,
    )  # fmt: skip
    assert pipeline_run.measure(options)["reclaim_cpu_s"] == 0
