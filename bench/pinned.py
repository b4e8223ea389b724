"""What pinned memory costs, everyone's side by side, and what it makes the GPU wait for.

    python -m bench.pinned [--gib 8] [--json FILE] [--markdown FILE]

Each contender has a process of its own. It takes a large block cold and warm, eight blocks of
129.5 MiB, grows and lets go while a kernel of 300 ms runs on another stream, gives its memory
back, copies, and frees a block under a copy that still waits on the GPU, to allocate and fill it
again at once. Meanwhile a native thread launches empty kernels and notes what each launch takes.
A contender that is missing or fails is in the tables with the reason. About three minutes.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from bench import command_line, machine, pinned_report
from bench.device import Gpu, available
from bench.pinned_contenders import CONTENDERS, Contender

GIB, MIB = machine.GIB, machine.MIB
ODD = 129 * MIB + MIB // 2  # what pools that round to powers of two take 256 MiB for
ODD_BLOCKS = 8
KERNEL_MS = 300.0
SECONDS = 60.0  # for one contender
BACK_SECONDS = 2.0
Figures = dict[str, Any]


def milliseconds(call: Callable[..., Any], *arguments: object) -> tuple[Any, float]:
    """The answer, and how long it took."""
    start = time.perf_counter()
    answer = call(*arguments)
    return answer, (time.perf_counter() - start) * 1e3


def write(address: int, value: int, nbytes: int) -> None:
    """Fill a block from the processor's side, on one thread."""
    ctypes.memset(address, value, nbytes)


def share_back(before: int, taken: int, start: float) -> float | None:
    """The part of the bytes taken that is with the system at most two seconds after `start`.

    None where nothing was taken, as by a pool that had it already.
    """
    if taken <= 0:
        return None
    while True:
        share = 1 - (before - available()) / taken
        if share >= 0.99 or time.perf_counter() - start > BACK_SECONDS:
            return share
        time.sleep(0.01)


def large(gpu: Gpu, contender: Contender, gib: float) -> Figures:
    """A large block: cold, its first fill, let go with the GPU idle, warm, given back."""
    nbytes = int(gib * GIB)
    before = available()
    address, cold = milliseconds(contender.allocate, nbytes)
    taken = before - available()
    part = min(nbytes, GIB)
    _, first_fill = milliseconds(write, address, 1, part)
    _, second_fill = milliseconds(write, address, 2, part)
    _, free_idle = milliseconds(contender.free, address)
    warm = []
    for _ in range(5 if contender.keeps else 1):
        time.sleep(0.005)
        address, each = milliseconds(contender.allocate, nbytes)
        warm.append(each)
        contender.free(address)
    start = time.perf_counter()
    _, give_back = milliseconds(contender.give_back)
    return {
        "cold_ms_per_gib": cold / gib,
        "first_fill_ms_per_gib": first_fill * GIB / part,
        "warm_fill_ms_per_gib": second_fill * GIB / part,
        "taken_share": taken / nbytes,
        "free_idle_ms": free_idle,
        "warm_ms": min(warm),
        "give_back_ms": give_back,
        "back_share": share_back(before, taken, start),
    }


def odd(gpu: Gpu, contender: Contender, gib: float) -> Figures:
    """What a block of 129.5 MiB takes from the machine, on average."""
    before = available()
    addresses = [contender.allocate(ODD) for _ in range(ODD_BLOCKS)]
    for address in addresses:
        write(address, 1, ODD)
    taken = before - available()
    for address in addresses:
        contender.free(address)
    contender.give_back()
    return {"odd_mib": taken / ODD_BLOCKS / MIB}


def busy(gpu: Gpu, contender: Contender, gib: float) -> Figures:
    """Grow, let go and give back while a kernel runs, and what launches see of each."""
    nbytes = int(gib / 2 * GIB)
    stream = gpu.stream()
    before = available()
    gpu.spin(KERNEL_MS, stream)
    with gpu.watch() as watch:
        address, growth = milliseconds(contender.allocate, nbytes)
    found: Figures = {"growth_ms": growth, "growth_launches": asdict(watch.launches)}
    taken = before - available()
    gpu.synchronize(stream)

    gpu.spin(KERNEL_MS, stream)
    with gpu.watch() as watch:
        _, found["free_busy_ms"] = milliseconds(contender.free, address)
        found["kernel_still_ran"] = not gpu.idle(stream)
        time.sleep(0.02)  # background work of the release's, if there is any
    found["free_launches"] = asdict(watch.launches)
    gpu.synchronize(stream)

    address = contender.allocate(nbytes)
    gpu.spin(KERNEL_MS, stream)
    with gpu.watch() as watch:
        contender.free(address)
        start = time.perf_counter()
        _, found["give_back_busy_ms"] = milliseconds(contender.give_back)
        found["back_busy_share"] = share_back(before, taken, start)
    found["give_back_launches"] = asdict(watch.launches)
    gpu.synchronize(stream)
    return found


def copies(gpu: Gpu, contender: Contender, gib: float) -> Figures:
    """GiB/s both ways."""
    address = contender.allocate(GIB)
    write(address, 1, GIB)
    with gpu.memory(GIB) as device:
        to_device = gpu.speed(gpu.to_device, device, address, GIB)
        to_host = gpu.speed(gpu.to_host, address, device, GIB)
    contender.free(address)
    contender.give_back()
    return {"h2d_gib_s": to_device, "d2h_gib_s": to_host}


def reuse(gpu: Gpu, contender: Contender, gib: float) -> Figures:
    """Free a block under a copy that waits for a kernel; allocate and fill again at once."""
    found = {"untold": reuse_once(gpu, contender, told=False)}
    if contender.tells is not None:
        found["told"] = reuse_once(gpu, contender, told=True)
    return found


def reuse_once(gpu: Gpu, contender: Contender, *, told: bool) -> Figures:
    """The same once: the bytes that came out wrong, and how long the caller was held."""
    nbytes = 64 * MIB
    stream = gpu.stream()
    # A first round without anything on the GPU, so that both rounds find the same block idle.
    address = contender.allocate(nbytes)
    write(address, 1, nbytes)
    with gpu.memory(nbytes) as device:
        gpu.spin(KERNEL_MS / 2, stream)
        if told:
            target = contender.copy_told(device, address, nbytes, stream)
        else:
            target = device
            gpu.to_device(device, address, nbytes, stream)
        start = time.perf_counter()
        contender.free(address)
        again = contender.allocate(nbytes)
        held = (time.perf_counter() - start) * 1e3
        write(again, 2, nbytes)
        gpu.synchronize(stream)
        arrived = np.empty(nbytes, np.uint8)
        gpu.call("cuMemcpyDtoH_v2", arrived.ctypes.data, target, nbytes)
    contender.free(again)
    return {
        "wrong_bytes": int(np.count_nonzero(arrived != 1)),
        "held_ms": held,
        "same_block": again == address,
    }


STEPS = (large, odd, busy, copies, reuse)


def measure(name: str, gib: float) -> Iterator[Figures]:
    """All figures of a contender, and what went wrong, as they come."""
    gpu = Gpu()
    yield {"gpu": gpu.name(), "cuda": gpu.driver_version()}
    contender = CONTENDERS[name](gpu)
    yield {"tells": contender.tells}
    # What the first calls of a process set up is nobody's price of a block; nor is compiling.
    contender.free(contender.allocate(MIB))
    contender.give_back()
    with gpu.watch():
        pass
    for step in STEPS:
        try:
            yield step(gpu, contender, gib)
        except Exception as error:  # the next question may still have an answer
            yield {f"failed {step.__name__}": f"{type(error).__name__}: {error}"}
            for address in list(contender.held):
                contender.free(address)
    yield {"note": contender.note()}


@contextmanager
def cached_file(nbytes: int) -> Iterator[np.memmap[Any, Any]]:
    """A file of so many bytes, stamped and in the page cache; nothing is written to the disk."""
    with tempfile.NamedTemporaryFile(prefix="bigmem-upload-", dir=Path.cwd()) as file:
        file.truncate(nbytes)
        mapped = np.memmap(file.name, np.uint8, "r+")
        mapped[::MIB] = 1 + np.arange(len(mapped[::MIB])) % 250
        starts = range(0, nbytes, 256 * MIB)
        with ThreadPoolExecutor(16) as pool:  # a byte of each page brings it in
            list(pool.map(lambda at: int(mapped[at : at + 256 * MIB : 4096].sum()), starts))
        yield np.memmap(file.name, np.uint8, "r")


def measure_upload(gib: float) -> Iterator[Figures]:
    """`upload` from the page cache, by threads and chunk, against pinned and pageable copies."""
    from importlib import import_module

    from bigmem import cuda

    module: Any = import_module("bigmem.cuda.upload")
    gpu = Gpu()
    nbytes = 2 * int(gib * GIB)
    part = min(GIB, nbytes)
    stream = gpu.stream()
    with cached_file(nbytes) as mapped, gpu.memory(part) as device, cuda.PinnedAllocator() as ours:
        parts = [mapped[at : at + part] for at in range(0, nbytes, part)]
        block = ours.allocate(part)
        write(block.address, 1, part)
        yield {"pinned_gib_s": gpu.speed(gpu.to_device, device, block.address, part)}
        block.release()
        for each in (parts[0], parts[-1]):  # the first copy sets up what others need
            source = each.ctypes.data
            _, took = milliseconds(gpu.call, "cuMemcpyHtoD_v2", device, source, part)
        yield {"pageable_gib_s": part / GIB / took * 1e3}

        def upload(chunk: str | int) -> None:
            cuda.upload(parts, [(device, part)] * len(parts), stream, allocator=ours, chunk=chunk)
            gpu.synchronize(stream)

        usual, speeds = module._THREADS, {}
        upload(module._CHUNK)
        for threads in (1, 2, 4, 8, 12, 16):
            module._THREADS = threads
            for chunk in ("1MiB", "4MiB", "16MiB"):
                _, took = milliseconds(upload, chunk)
                speeds[f"{threads} threads, {chunk}"] = nbytes / GIB / took * 1e3
                if threads == 1:
                    break  # seconds each
        module._THREADS = usual
        took = min(milliseconds(upload, module._CHUNK)[1] for _ in range(3))
        arrived = np.empty(part, np.uint8)
        gpu.call("cuMemcpyDtoH_v2", arrived.ctypes.data, device, part)
        yield {
            "upload_gib_s": nbytes / GIB / took * 1e3,
            "upload_threads": usual,
            "upload_chunk_mib": module._CHUNK / MIB,
            "upload_speeds": speeds,
            "upload_right": bool(np.array_equal(arrived, parts[-1])),
        }


def measure_part(name: str, gib: float) -> Iterator[Figures]:
    """What a process of its own does."""
    if name == "gpu":
        Gpu()
    elif name == "upload":
        yield from measure_upload(gib)
    else:
        yield from measure(name, gib)


def in_process(words: list[str], seconds: float) -> Figures:
    """The figures that a process of its own prints, and why it ended early if it did."""
    found: Figures = {}
    with subprocess.Popen(
        [sys.executable, "-m", "bench.pinned", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            output, complaints = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            output, complaints = process.communicate()
            found["failed"] = f"it took longer than {seconds:.0f} s"
    for line in output.splitlines():
        if line.startswith("{"):
            found.update(json.loads(line))
    if process.returncode and "failed" not in found:
        last = (complaints.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
        found["failed"] = last
    return found


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--gib", type=command_line.gib, default=8, help="size of the large block")
    parser.add_argument(
        "--only",
        nargs="+",
        action=command_line.Distinct,
        choices=[*CONTENDERS, "upload"],
        default=None,
    )
    command_line.add_result_options(parser)
    parser.add_argument("--part", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part is not None:
        for one in measure_part(options.part, options.gib):
            print(json.dumps(one), flush=True)
        return 0
    if reason := in_process(["--part", "gpu"], SECONDS).get("failed"):
        print(f"pinned: there is no GPU to use: {reason}", file=sys.stderr)
        return 2
    wanted = options.only or [*CONTENDERS, "upload"]
    machine.warm_up(min(int(2 * options.gib * GIB), available() // 2), threads=16)
    found = {}
    for name in wanted:
        start = time.perf_counter()
        found[name] = in_process(["--part", name, "--gib", str(options.gib)], SECONDS)
        failures = [f"{key}: {text}" for key, text in found[name].items() if "failed" in key]
        print(
            f"{name}: {time.perf_counter() - start:.0f} s", *failures, sep="\n  ", file=sys.stderr
        )
    page = pinned_report.page(found, options.gib)
    print(page, end="")
    command_line.write_results(options, {"gib": options.gib, "contenders": found}, page)
    return 1 if all("failed" in one for one in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
