"""Pinned memory over a driver without a GPU."""

import gc
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from waiting import wait_for

import bigmem
from bigmem import _core, pressure
from bigmem.cuda import PinnedAllocator, driver
from bigmem.cuda.pinned import Mechanism

# What programs that run in a process of their own begin with.
PRELUDE = """
import gc, os, signal, sys, threading, time
import numpy as np
import bigmem
from bigmem import _core
from bigmem.cuda import PinnedAllocator, capturing, driver, record
from waiting import wait_for

fake = _core.FakeCuda()
driver._addresses = fake.functions
"""

_VARIANTS: dict[str, tuple[Mechanism, bigmem.Inline | bigmem.Deferred | bigmem.Recycle, bool]] = {
    "vmm-recycle": ("vmm", bigmem.Recycle(), False),
    "vmm-inline": ("vmm", bigmem.Inline(), False),
    "vmm-wipe": ("vmm", bigmem.Recycle(decay=0), True),
    "register": ("register", bigmem.Recycle(), False),
    "alloc": ("alloc", bigmem.Deferred(), False),
}


@pytest.fixture(autouse=True, scope="session")
def _no_pressure_from_outside() -> None:
    """Warm memory stays warm in tests, however busy the machine is."""
    pressure._root = Path("/nowhere")


@pytest.fixture
def fake(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[_core.FakeCuda]:
    """A driver of one idle device, which the library finds instead of a real one."""
    fake = _core.FakeCuda()
    # What earlier tests left to the workers goes first.
    gc.collect()
    if not request.session.testsfailed:  # its report keeps what a failed test has
        wait_for(lambda: fake.memory() == 0)
    monkeypatch.setattr(driver, "_addresses", fake.functions)
    monkeypatch.setattr(driver, "_loaded", None)
    yield fake
    _core.FakeCuda()  # whatever the test left undone is done


def _made(name: str) -> Iterator[PinnedAllocator]:
    mechanism, release, wipe = _VARIANTS[name]
    made = PinnedAllocator(mechanism=mechanism, release=release, wipe=wipe)
    yield made
    made.close()


@pytest.fixture(params=list(_VARIANTS))
def allocator(request: pytest.FixtureRequest, fake: _core.FakeCuda) -> Iterator[PinnedAllocator]:
    yield from _made(request.param)


# By the other mechanisms a block's memory goes as a whole, with its last part: trim() may return
# while a worker is about it.
@pytest.fixture(params=[name for name in _VARIANTS if name.startswith("vmm")])
def native_allocator(
    request: pytest.FixtureRequest, fake: _core.FakeCuda
) -> Iterator[PinnedAllocator]:
    yield from _made(request.param)


@pytest.fixture
def run() -> Callable[..., str]:
    """Run a program in a fresh interpreter; it must exit with 0 and leave stderr empty."""

    def run(program: str, prelude: str = PRELUDE) -> str:
        beside = Path(__file__).parent.parent / "bigmem"
        done = subprocess.run(
            [sys.executable, "-c", prelude + textwrap.dedent(program)],
            env={**os.environ, "PYTHONPATH": str(beside)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stderr + done.stdout
        return done.stdout

    return run
