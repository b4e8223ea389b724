"""What pinned memory costs on this machine's first GPU, and what it brings.

Measured in a process of its own: the doctor's figures stay free of the driver's threads, CuPy is
never imported into it, and a driver that hangs costs the time limit and no more.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np

from bigmem.errors import BigmemError

GIB = 1 << 30
_ROUNDS = 3
_TO_DEVICE, _TO_HOST = 1, 2  # cudaMemcpyKind


@dataclass(frozen=True, slots=True)
class GpuCosts:
    """Medians, in ms per GiB unless named.

    Attributes
    ----------
    device
        Its name.
    nbytes
        Bytes that each call was about.
    host_alloc_ms, host_free_ms
        ``cudaHostAlloc`` and ``cudaFreeHost``.
    register_ms, unregister_ms
        ``cudaHostRegister`` and ``cudaHostUnregister`` of memory that was touched before.
    pinned_to_device_ms, pageable_to_device_ms
        Copies to the GPU from memory of either kind.
    pinned_to_host_ms, pageable_to_host_ms
        Copies from the GPU.
    """

    device: str
    nbytes: int
    host_alloc_ms: float
    host_free_ms: float
    register_ms: float
    unregister_ms: float
    pinned_to_device_ms: float
    pageable_to_device_ms: float
    pinned_to_host_ms: float
    pageable_to_host_ms: float


@dataclass(frozen=True, slots=True)
class PinnedArena:
    """What `bigmem.cuda.PinnedAllocator` is on this machine.

    Attributes
    ----------
    mechanism
        What it goes by: ``"vmm"``, ``"register"`` or ``"alloc"``; `None` where it is not to be had.
    why
        In one line, why not a better one; `None` where it is the best.
    allocate_ms, give_back_ms
        ms per GiB of a fresh block, ready to be written, and of giving it back; medians.
    """

    mechanism: str | None
    why: str | None = None
    allocate_ms: float | None = None
    give_back_ms: float | None = None


@dataclass(frozen=True, slots=True)
class GpuReport:
    """The costs, or in one line why there are none.

    Attributes
    ----------
    costs
        `None` where nothing was measured.
    note
        Why not; `None` where it was.
    devices
        How many GPUs the driver shows to this process; `None` where nobody asked it.
    arena
        What pinned memory of bigmem's is here; `None` where nothing was measured.
    """

    costs: GpuCosts | None
    note: str | None
    devices: int | None = None
    arena: PinnedArena | None = None


def measure_gpu(nbytes: int, seconds: float) -> GpuReport:
    """Measure in a process of its own, if CuPy is installed and there is a device.

    Parameters
    ----------
    nbytes
        Size of the buffers.
    seconds
        When the other process is stopped.
    """
    if importlib.util.find_spec("cupy") is None:
        return GpuReport(None, "not measured: CuPy is not installed")
    # The other process imports from where this one does, and from nowhere else.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", __name__, str(nbytes)],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return GpuReport(None, f"not measured: it took longer than the {seconds:.0f} s left")
    except OSError as error:
        return GpuReport(None, f"not measured: {error}")
    return _read(done)


def _read(done: subprocess.CompletedProcess[str]) -> GpuReport:
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
        costs, arena = answer["costs"], answer["arena"]
        return GpuReport(
            None if costs is None else GpuCosts(**costs),
            answer["note"],
            answer["devices"],
            None if arena is None else PinnedArena(**arena),
        )
    except (IndexError, KeyError, TypeError, ValueError):
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return GpuReport(None, f"not measured: {last}")


def _device_count() -> int:
    """GPUs that the driver shows to this process, by the driver's own library.

    Raises
    ------
    OSError
        There is no driver, or it refuses to start.
    """
    driver = ctypes.CDLL("libcuda.so.1")
    count = ctypes.c_int()
    code = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if code == 100:  # CUDA_ERROR_NO_DEVICE
        return 0
    if code:
        raise OSError(f"the CUDA driver answers with error {code}")
    return count.value


def _report(nbytes: int) -> GpuReport:
    devices = None
    try:
        devices = _device_count()
        if not devices:
            return GpuReport(None, "not measured: there is no GPU", devices)
        return GpuReport(_measure(nbytes), None, devices, _measure_arena(nbytes))
    except Exception as error:  # whatever a driver or CuPy comes up with is told, not raised
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return GpuReport(None, f"not measured: {lines[0]}", devices)


def _measure(nbytes: int) -> GpuCosts:
    import cupy

    runtime = cupy.cuda.runtime
    on_device = cupy.cuda.alloc(nbytes)
    pageable = np.ones(nbytes, np.uint8)

    def copy(address: int, kind: int) -> Callable[[], None]:
        ends = (on_device.ptr, address) if kind == _TO_DEVICE else (address, on_device.ptr)

        def run() -> None:
            runtime.memcpy(*ends, nbytes, kind)
            runtime.deviceSynchronize()

        return run

    rounds = []
    for _ in range(1 + _ROUNDS):
        found: dict[str, float] = {}
        address, found["host_alloc_ms"] = _timed(lambda: runtime.hostAlloc(nbytes, 0))
        ctypes.memset(address, 1, nbytes)
        for name, at in (("pinned", address), ("pageable", pageable.ctypes.data)):
            found[f"{name}_to_device_ms"] = _timed(copy(at, _TO_DEVICE))[1]
            found[f"{name}_to_host_ms"] = _timed(copy(at, _TO_HOST))[1]
        found["host_free_ms"] = _timed(runtime.freeHost, address)[1]
        found["register_ms"] = _timed(runtime.hostRegister, pageable.ctypes.data, nbytes, 0)[1]
        found["unregister_ms"] = _timed(runtime.hostUnregister, pageable.ctypes.data)[1]
        rounds.append(found)
    name = runtime.getDeviceProperties(runtime.getDevice())["name"]
    return GpuCosts(
        device=name.decode(errors="replace") if isinstance(name, bytes) else str(name),
        nbytes=nbytes,
        # The first round warms the driver up.
        **{key: median(each[key] for each in rounds[1:]) * GIB / nbytes for key in rounds[0]},
    )


def _measure_arena(nbytes: int) -> PinnedArena:
    from bigmem import cuda

    try:
        arena = cuda.PinnedAllocator()
        why = None if arena.mechanism == "vmm" else _refusal_of_vmm()
        rounds = []
        for _ in range(1 + _ROUNDS):
            block, allocating = _timed(arena.allocate, nbytes)
            block.release()
            rounds.append((allocating, _timed(lambda: arena.flush() and arena.trim())[1]))
        arena.close()
    except BigmemError as error:
        return PinnedArena(None, str(error))
    allocated, gave_back = (
        median(each) * GIB / nbytes for each in zip(*rounds[1:], strict=True)
    )  # fmt: skip
    return PinnedArena(arena.mechanism, why, allocated, gave_back)


def _refusal_of_vmm() -> str | None:
    from bigmem import cuda

    try:
        cuda.PinnedAllocator(mechanism="vmm").close()
    except BigmemError as error:
        return str(error)
    return None


def _timed(call: Callable[..., Any], *arguments: object) -> tuple[Any, float]:
    """The answer, and the milliseconds that it took."""
    start = time.perf_counter()
    answer = call(*arguments)
    return answer, (time.perf_counter() - start) * 1e3


if __name__ == "__main__":
    print(json.dumps(asdict(_report(int(sys.argv[1])))))
