"""The GPU tests' gate, their programs, and an oracle in Python integers.

These tests never pass for want of a GPU: collecting them without one ends the run with an error.
"""

from __future__ import annotations

import io
import itertools
import os
import random
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bigmem.cuda
from bench import machine
from bench.device import Gpu, available
from bench.kernel_resources import anew
from prover import curves
from prover.backends.cpu import _cpu

# Compile anew, on a machine where these tests ran before, too: a program that CuPy has kept comes
# without a log.
os.environ["CUPY_CACHE_IN_MEMORY"] = "1"
# With these a log is empty, or a launch waits for the kernel.
for name in ("CUPY_COMPILE_WITH_PTX", "CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_MAX_CONNECTIONS"):
    os.environ.pop(name, None)

HERE = Path(__file__).parent
KERNELS = HERE.parents[1] / "prover" / "kernels"
CLASSES = {"bn128": "Bn128", "bls12381": "Bls12381"}
ARITHMETICS = {"portable": "Portable<prover::u32>", "ptx": "Ptx"}
THREADS = 64

Affine = tuple["Element", "Element"] | None


def what_is_missing() -> str | None:
    try:
        import cupy
    except (ImportError, OSError) as error:  # the latter where it can make no folder for its cache
        return f"CuPy cannot be imported ({error}); `make test-gpu` installs it"
    try:
        cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"no usable NVIDIA GPU ({error})"
    return None


def pytest_configure() -> None:
    missing = what_is_missing()
    if missing:
        pytest.exit(f"tests/gpu: {missing}.", returncode=1)


@dataclass
class Program:
    """A compiled file of kernels, and what the compiler said of it."""

    title: str
    module: Any
    log: str
    kernels: dict[str, Any] = field(default_factory=dict)

    def run(self, name: str, *arguments: Any, rows: int = 1, threads: int = THREADS) -> None:
        """Launch with at least ``rows`` threads, wait, and fail on a fault."""
        import cupy

        kernel = self.kernels.setdefault(name, self.module.get_function(name))
        kernel((max(1, -(-rows // threads)),), (threads,), arguments)
        cupy.cuda.runtime.deviceSynchronize()

    def spilled(self) -> int:
        """Bytes of registers stored to memory for want of registers, over all kernels."""
        stores = re.findall(r"(\d+) bytes spill stores", self.log)
        assert stores, "the compiler's log reports no spills:\n" + self.log
        return sum(map(int, stores))


PROGRAMS: dict[tuple[str, ...], Future[Program]] = {}
COMPILERS = ThreadPoolExecutor(len(CLASSES) * len(ARITHMETICS))
RESOURCES: list[str] = []


def compile_program(
    curve: str, arithmetic: str, file: str, head: str, names: tuple[str, ...]
) -> Program:
    import cupy
    from cupy.cuda import nvrtc

    source = (
        f'#include "{curve}.cuh"\n#include "ptx.cuh"\nusing Curve = prover::{CLASSES[curve]}'
        f"<prover::{arithmetic}>;\n{head}" + (HERE / file).read_text(encoding="utf-8")
    )
    # CuPy itself adds --device-as-default-execution-space
    options = ("--std=c++17", f"-I{KERNELS}", "--ptxas-options=-v", *anew(nvrtc.getVersion()))
    if not names:
        names = tuple(re.findall(r"__global__ void (\w+)", source))
    module = cupy.RawModule(code=source, options=options, name_expressions=names)
    log = io.StringIO()
    with cupy.cuda.Device(0):  # a thread of the pool has none yet
        module.compile(log_stream=log)
    return Program(f"{curve} {arithmetic} {file} {head}".strip(), module, log.getvalue())


@pytest.fixture(params=ARITHMETICS.values(), ids=ARITHMETICS.keys())
def arithmetic(request: pytest.FixtureRequest) -> str:
    """That of compilers without carry chains, and that of the backend."""
    return str(request.param)


@pytest.fixture
def program(curve: Oracle, arithmetic: str) -> Callable[..., Program]:
    """program(file, head="", names=()): the file's kernels for the curve, compiled once.

    Those of the other curve and arithmetic, which will be wanted too, are compiled beside it.
    """

    def get(file: str, head: str = "", names: tuple[str, ...] = ()) -> Program:
        for one in itertools.product(CLASSES, ARITHMETICS.values()):
            key = (*one, file, head)
            if key not in PROGRAMS:
                PROGRAMS[key] = COMPILERS.submit(compile_program, *key, names)
        return PROGRAMS[curve.name, arithmetic, file, head].result()

    return get


def pytest_terminal_summary(terminalreporter: Any) -> None:
    import cupy

    runtime, nvrtc = cupy.cuda.runtime, cupy.cuda.nvrtc
    properties = runtime.getDeviceProperties(0)
    show = terminalreporter.write_line
    terminalreporter.section("machine")
    show(
        f"{properties['name'].decode()}, compute capability {properties['major']}."
        f"{properties['minor']}, {properties['multiProcessorCount']} multiprocessors, "
        f"{properties['totalGlobalMem'] / 2**30:.0f} GiB"
    )
    show(
        f"driver {driver_version()} for CUDA {version(runtime.driverGetVersion())}, runtime "
        f"{version(runtime.runtimeGetVersion())}, NVRTC {'.'.join(map(str, nvrtc.getVersion()))}, "
        f"CuPy {cupy.__version__}"
    )
    show(machine.summary())
    terminalreporter.section("kernels")
    show(f"{'kernel':<44}{'registers':>10}{'local bytes':>12}")
    compiled = [future.result() for future in PROGRAMS.values() if not future.exception()]
    for program in compiled:
        show(f"{program.title}: {program.spilled()} bytes spilled")
        for name, kernel in program.kernels.items():
            show(f"  {name:<42}{kernel.num_regs:>10}{kernel.local_size_bytes:>12}")
    for line in RESOURCES:
        show(line)


@pytest.fixture
def resources_told() -> list[str]:
    """Lines on the backend's own kernels, for the summary."""
    return RESOURCES


def driver_version() -> str:
    """What nvidia-smi calls it, which some containers lack; the runtime does not tell."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "(nvidia-smi tells no version)"
    return done.stdout.split()[0]


def version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


@dataclass(frozen=True)
class Element:
    """An element of Fp (one coefficient) or of Fp[u] / (u^2 + 1) (two)."""

    q: int
    c: tuple[int, ...]

    def __add__(self, other: Element) -> Element:
        pairs = zip(self.c, other.c, strict=True)
        return Element(self.q, tuple((a + b) % self.q for a, b in pairs))

    def __neg__(self) -> Element:
        return Element(self.q, tuple(-a % self.q for a in self.c))

    def __sub__(self, other: Element) -> Element:
        return self + -other

    def __mul__(self, other: Element) -> Element:
        if len(self.c) == 1:
            return Element(self.q, (self.c[0] * other.c[0] % self.q,))
        (a, b), (c, d) = self.c, other.c
        return Element(self.q, ((a * c - b * d) % self.q, (a * d + b * c) % self.q))

    def inverse(self) -> Element:
        """0 for 0, as the kernels have it."""
        norm = sum(a * a for a in self.c) % self.q
        if len(self.c) == 1:
            return Element(self.q, (pow(self.c[0], -1, self.q) if norm else 0,))
        scale = pow(norm, -1, self.q) if norm else 0
        return Element(self.q, (self.c[0] * scale % self.q, -self.c[1] * scale % self.q))

    def is_zero(self) -> bool:
        return not any(self.c)


def add(p: Affine, q: Affine) -> Affine:
    """The chord and tangent law of y^2 = x^3 + b."""
    if p is None or q is None:
        return q if p is None else p
    (x1, y1), (x2, y2) = p, q
    if x1 == x2:
        if (y1 + y2).is_zero():
            return None
        xx = x1 * x1
        slope = (xx + xx + xx) * (y1 + y1).inverse()
    else:
        slope = (y2 - y1) * (x2 - x1).inverse()
    x = slope * slope - x1 - x2
    return x, slope * (x1 - x) - y1


def multiply(p: Affine, scalar: int) -> Affine:
    total: Affine = None
    for bit in bin(scalar)[2:]:
        total = add(total, total)
        if bit == "1":
            total = add(total, p)
    return total


@dataclass(frozen=True)
class Oracle:
    """One curve's integers and points, and the rows of bytes that kernels read and write."""

    curve: curves.Curve

    @property
    def name(self) -> str:
        return self.curve.name

    @property
    def r(self) -> int:
        return self.curve.r

    def modulus(self, name: str) -> int:
        return self.curve.r if name == "scalar" else self.curve.q

    def width(self, name: str) -> int:
        return 32 if name == "scalar" else self.curve.coordinate_bytes

    def radix(self, name: str) -> int:
        return 1 << (8 * self.width(name))

    def rows(self, values: list[int], name: str) -> np.ndarray:
        width = self.width(name)
        data = b"".join(value.to_bytes(width, "little") for value in values)
        return np.frombuffer(data, np.uint8).reshape(len(values), width).copy()

    def integers(self, data: np.ndarray) -> list[int]:
        return [int.from_bytes(row.tobytes(), "little") for row in data]

    def montgomery(self, values: list[int], name: str) -> np.ndarray:
        radix, modulus = self.radix(name), self.modulus(name)
        return self.rows([value * radix % modulus for value in values], name)

    def standard(self, data: np.ndarray, name: str) -> list[int]:
        modulus = self.modulus(name)
        inverse = pow(self.radix(name), -1, modulus)
        held = self.integers(data.reshape(-1, self.width(name)))
        assert all(value < modulus for value in held), "a result is not reduced"
        return [value * inverse % modulus for value in held]

    def encode(self, elements: list[Element]) -> np.ndarray:
        return self.montgomery([c for element in elements for c in element.c], "base")

    def decode(self, group: int, data: np.ndarray) -> list[Element]:
        flat = self.standard(data, "base")
        return [
            Element(self.curve.q, tuple(flat[i : i + group])) for i in range(0, len(flat), group)
        ]

    def element(self, group: int, *coefficients: int) -> Element:
        padded = (*coefficients, 0)[:group]
        return Element(self.curve.q, tuple(c % self.curve.q for c in padded))

    def random_element(self, group: int, rng: random.Random) -> Element:
        return Element(self.curve.q, tuple(rng.randrange(1, self.curve.q) for _ in range(group)))

    def affine_rows(self, group: int, points: list[Affine]) -> np.ndarray:
        zero = self.element(group, 0)
        flat = [coordinate for p in points for coordinate in (p or (zero, zero))]
        return self.encode(flat).reshape(len(points), self.curve.point_bytes(group))

    def xyzz_rows(self, group: int, points: list[Affine], rng: random.Random) -> np.ndarray:
        """Rows of the points with random denominators."""
        flat: list[Element] = []
        for p in points:
            if p is None:
                flat += [self.random_element(group, rng)] * 2 + [self.element(group, 0)] * 2
                continue
            z = self.random_element(group, rng)
            zz, zzz = z * z, z * z * z
            flat += [p[0] * zz, p[1] * zzz, zz, zzz]
        return self.encode(flat).reshape(len(points), 2 * self.curve.point_bytes(group))

    def points_of_affine(self, group: int, data: np.ndarray) -> list[Affine]:
        flat = self.decode(group, data)
        pairs = zip(flat[::2], flat[1::2], strict=True)
        return [None if x.is_zero() and y.is_zero() else (x, y) for x, y in pairs]

    def points_of_xyzz(self, group: int, data: np.ndarray) -> list[Affine]:
        flat = self.decode(group, data)
        points: list[Affine] = []
        for x, y, zz, zzz in zip(*(flat[i::4] for i in range(4)), strict=True):
            if zz.is_zero():
                points.append(None)
                continue
            assert zz * zz * zz == zzz * zzz
            points.append((x * zz.inverse(), y * zzz.inverse()))
        return points

    def generator(self, group: int) -> Affine:
        return self.points_of_affine(group, _cpu.generator(self.name, group).reshape(1, -1))[0]


@pytest.fixture(params=list(curves.CURVES))
def curve(request: pytest.FixtureRequest) -> Oracle:
    return Oracle(curves.CURVES[request.param])


@pytest.fixture(params=[1, 2], ids=["g1", "g2"])
def group(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def rng() -> random.Random:
    return random.Random(20260101)


@pytest.fixture
def add_points() -> Callable[[Affine, Affine], Affine]:
    return add


@pytest.fixture
def multiply_point() -> Callable[[Affine, int], Affine]:
    return multiply


@pytest.fixture(scope="session")
def gpu() -> Gpu:
    made = Gpu()
    with made.watch():  # compiles it, which takes longer than the kernels that it is for
        pass
    return made


@pytest.fixture(scope="session", autouse=True)
def touched_memory() -> None:
    """A virtual machine's memory is slow to come the first time it is touched."""
    machine.warm_up(min(16 << 30, available() // 2), threads=16)


@pytest.fixture
def pinned(gpu: Gpu) -> Iterator[bigmem.cuda.PinnedAllocator]:
    """A pinned arena that gives everything back at the end."""
    for compiling in PROGRAMS.values():  # for other tests: it takes memory, and the processor
        compiling.exception()
    gpu.enter()
    with bigmem.cuda.PinnedAllocator(name="test") as allocator:
        yield allocator
        gpu.synchronize()
        assert allocator.flush(10)
        allocator.trim()


@dataclass
class Finished:
    """A program that ran in a process of its own."""

    code: int
    output: str
    complaints: str
    seconds: float


@pytest.fixture
def program_of() -> Callable[..., Finished]:
    """Run a program that begins with a GPU and a pinned allocator; both outputs are kept."""
    prelude = """
import ctypes, gc, os, signal, sys, threading, time
import numpy as np
import bigmem, bigmem.cuda
from bench.device import Gpu, CudaError
gpu = Gpu()
GIB, MIB = 1 << 30, 1 << 20
def pin(allocator, nbytes, value=None):
    array = bigmem.empty(nbytes, np.uint8, allocator=allocator)
    if value is not None:
        array[:] = value
    return array
"""

    def run(program: str, timeout: float = 60, wrap: tuple[str, ...] = ()) -> Finished:
        root = Path(__file__).parents[2]
        start = time.monotonic()
        done = subprocess.run(
            [*wrap, sys.executable, "-c", prelude + textwrap.dedent(program)],
            cwd=root,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *filter(None, sys.path)])},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return Finished(done.returncode, done.stdout, done.stderr, time.monotonic() - start)

    return run


@pytest.fixture(autouse=True)
def device_is_well() -> Iterator[None]:
    """A fault of one test shows in that test: launches are asynchronous, faults sticky."""
    import cupy

    yield
    cupy.cuda.runtime.deviceSynchronize()
