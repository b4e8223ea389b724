"""Every kind of allocator, for tests of what they have in common."""

import functools
import gc
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import SupportsIndex

import pytest
from kernel import SMALL, Range
from layer_times import Clock, module

import bigmem
from bigmem import _core, pressure
from bigmem.native import NativeAllocator

POLICIES = {
    "inline": bigmem.Inline(),
    "inline-free": bigmem.Inline(advice="free"),
    "deferred": bigmem.Deferred(),
    "deferred-free": bigmem.Deferred(advice="free"),
    "recycle": bigmem.Recycle(),
    "recycle-at-once": bigmem.Recycle(decay=0),
    "recycle-free": bigmem.Recycle(decay=0.01, advice="free"),
    "recycle-little": bigmem.Recycle(max_warm="1MiB"),
}


UNIT = 2 << 20

# What programs of the tests that run in a process of their own begin with.
PRELUDE = """
import gc, os, signal, sys, threading, time, warnings
import numpy as np
import bigmem
from bigmem import _core
from bigmem.native import NativeAllocator
from waiting import wait_for

def native(release, table=None, huge="never", **options):
    return NativeAllocator(pages=bigmem.AnonymousPages(huge=huge), release=release, reserve=0,
                           mapping_per_block=options.pop("mapped", False),
                           budget=options.pop("budget", None),
                           reclaim=options.pop("reclaim", None), name=None, table=table,
                           fences=options.pop("fences", None))

def fill(allocator, nbytes, value=1):
    array = bigmem.empty(nbytes, np.uint8, allocator=allocator)
    array[:] = value
    return array

def tasks():
    return os.listdir("/proc/self/task")

def workers():
    names = [open(f"/proc/self/task/{task}/comm").read().strip() for task in tasks()]
    return names.count("bigmem-reclaim")
"""


class ByteArrayAllocator(bigmem.Allocator):
    """What a user might write: blocks over any writable buffer."""

    def allocate(
        self, nbytes: SupportsIndex | str, *, alignment: int = 64, zeroed: bool = False
    ) -> bigmem.Block:
        size = self.check_request(nbytes, alignment)
        try:
            memory = memoryview(bytearray(size + alignment))
        except (MemoryError, OverflowError):
            raise bigmem.OutOfMemory(f"no {size} bytes") from None
        base = bigmem.Block(memory, allocator=self).address
        offset = -base % alignment
        return bigmem.Block(memory[offset : offset + size], allocator=self)


def native(
    release: "bigmem.Inline | bigmem.Deferred | bigmem.Recycle",
    huge: str,
    *,
    mapping_per_block: bool = False,
    table: "_core.ProbedPages | None" = None,
    budget: bigmem.Budget | None = None,
    reclaim: bigmem.ReclaimPool | None = None,
    wipe: bool = False,
    fences: "_core.Fences | None" = None,
) -> NativeAllocator:
    return NativeAllocator(
        pages=bigmem.AnonymousPages(huge=huge),  # type: ignore[arg-type]
        release=release,
        reserve=0,
        mapping_per_block=mapping_per_block,
        budget=budget,
        reclaim=reclaim,
        name=None,
        wipe=wipe,
        table=table,
        fences=fences,
    )


@pytest.fixture(autouse=True, scope="session")
def _no_pressure_from_outside() -> None:
    """Warm memory stays warm in tests, however busy the machine is."""
    pressure._root = Path("/nowhere")


@pytest.fixture(name="native")
def native_fixture() -> Callable[..., NativeAllocator]:
    return native


def _makers() -> dict[str, Callable[[], bigmem.Allocator]]:
    makers: dict[str, Callable[[], bigmem.Allocator]] = {}
    for huge in ("never", "always"):
        for name, policy in POLICIES.items():
            makers[f"arena-{name}-{huge}"] = lambda p=policy, h=huge: native(p, h)
            if not isinstance(policy, bigmem.Recycle):
                makers[f"mapped-{name}-{huge}"] = lambda p=policy, h=huge: native(
                    p, h, mapping_per_block=True
                )
    for name, policy in POLICIES.items():
        # As under vm.overcommit_memory=2.
        makers[f"strict-{name}"] = lambda p=policy: native(p, "auto", table=_core.ProbedPages(True))
    for name in ("recycle", "deferred"):
        makers[f"arena-{name}-auto"] = lambda p=POLICIES[name]: native(p, "auto")
    makers["mapped-auto"] = lambda: native(bigmem.Inline(), "auto", mapping_per_block=True)
    makers["arena-budget"] = lambda: native(bigmem.Recycle(), "auto", budget=bigmem.Budget("4GiB"))
    return makers


def _fixed_makers() -> dict[str, Callable[[], bigmem.Allocator]]:
    """Those whose blocks are never resized."""
    makers: dict[str, Callable[[], bigmem.Allocator]] = {}
    for name, policy in POLICIES.items():
        # Waiting for a GPU that has never anything to do.
        makers[f"gpu-{name}"] = lambda p=policy: native(p, "auto", fences=_core.ProbedFences(True))
        # Pages that come in units of 2 MiB only.
        makers[f"units-{name}"] = lambda p=policy: native(
            p, "auto", table=_core.ProbedPages(True, granularity=UNIT)
        )
    return makers


def _wrappers() -> dict[str, Callable[[], bigmem.Allocator]]:
    upstreams: dict[str, Callable[[], bigmem.Allocator]] = {
        "system": bigmem.SystemAllocator,
        "python": ByteArrayAllocator,
        "recycle": bigmem.ArenaAllocator,
        "deferred": lambda: bigmem.ArenaAllocator(release=bigmem.Deferred()),
        "mapped": bigmem.MappedAllocator,
    }
    wraps: dict[str, Callable[[bigmem.Allocator], bigmem.Allocator]] = {
        "limited": lambda below: bigmem.Limited(below, "64GiB"),
        "traced": lambda below: bigmem.Traced(below, where=True),
        "guarded": bigmem.Guarded,
        "guarded-at-once": lambda below: bigmem.Guarded(below, quarantine=0),
        "all": lambda below: bigmem.Guarded(bigmem.Traced(bigmem.Limited(below, "64GiB"))),
        "twice": lambda below: bigmem.Traced(bigmem.Guarded(bigmem.Guarded(below))),
    }
    return {
        f"{wrap}-{below}": lambda w=wraps[wrap], u=upstreams[below]: w(u())
        for wrap in wraps
        for below in upstreams
        if wrap in ("limited", "traced", "guarded") or below in ("python", "recycle")
    }


RESIZABLE_MAKERS = _makers()
NATIVE_MAKERS = {**RESIZABLE_MAKERS, **_fixed_makers()}
COUNTING_MAKERS = {"system": bigmem.SystemAllocator, **NATIVE_MAKERS}
WRAPPERS = _wrappers()
MAKERS = {"python": ByteArrayAllocator, **COUNTING_MAKERS, **WRAPPERS}


@pytest.fixture(params=list(MAKERS))
def allocator(request: pytest.FixtureRequest) -> Iterator[bigmem.Allocator]:
    with MAKERS[request.param]() as made:
        yield made


@pytest.fixture(params=list(COUNTING_MAKERS))
def counting_allocator(request: pytest.FixtureRequest) -> Iterator[bigmem.Allocator]:
    with MAKERS[request.param]() as made:
        yield made


@pytest.fixture(params=list(NATIVE_MAKERS))
def native_allocator(request: pytest.FixtureRequest) -> Iterator[NativeAllocator]:
    with MAKERS[request.param]() as made:
        assert isinstance(made, NativeAllocator)
        yield made


@pytest.fixture(params=list(WRAPPERS))
def wrapper(request: pytest.FixtureRequest) -> Iterator[bigmem.wrappers.Wrapper]:
    with WRAPPERS[request.param]() as made:
        assert isinstance(made, bigmem.wrappers.Wrapper)
        yield made


@pytest.fixture
def uninstalled() -> Iterator[None]:
    """NumPy serves itself before and after the test, and has nothing of ours."""
    assert _core.numpy_ranges() == 0
    yield
    bigmem.uninstall()
    if _core.numpy_ranges():
        gc.collect()
    assert _core.numpy_ranges() == 0


@pytest.fixture
def run_python() -> Callable[..., str]:
    """Run a program in a fresh interpreter; it must exit with 0 and leave stderr empty."""

    def run(program: str, *arguments: str, timeout: float = 60, prefix: str = "") -> str:
        code = textwrap.dedent(prefix) + textwrap.dedent(program)
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},  # what tests share
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stderr + done.stdout
        return done.stdout

    return run


@pytest.fixture
def run_prepared(run_python: Callable[..., str]) -> Callable[..., str]:
    """The same, for programs that begin with `PRELUDE`."""
    return functools.partial(run_python, prefix=PRELUDE)


@pytest.fixture
def run(run_python: Callable[..., str]) -> Callable[..., str]:
    """The same for programs that look at their memory with the helpers of `kernel`."""
    prefix = """
import ctypes, errno, os, resource, sys, warnings
import numpy as np
import bigmem
from bigmem import _core, osmem
from kernel import *
"""
    return lambda program, *arguments: run_python(program, *arguments, prefix=prefix)


@pytest.fixture
def make_range() -> Iterator[Callable[..., Range]]:
    made: list[Range] = []

    def make(
        nbytes: int, page: int = SMALL, *, strict: bool = False, options: tuple[int, int, bool]
    ) -> Range:
        table = _core.ProbedPages(strict, _core.AnonymousPages(*options))
        made.append(Range(table, nbytes, page))
        return made[-1]

    yield make
    for each in made:
        assert each.table.unreserve(each.address, each.nbytes) == 0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """What layers are timed with."""
    clock = Clock()
    monkeypatch.setattr(module, "_now", clock)
    return clock


@pytest.fixture
def recorded() -> Iterator[Callable[[], bigmem.LayerTree]]:
    """The layers of the test alone."""
    with bigmem.record_layers() as recorded:
        yield recorded
