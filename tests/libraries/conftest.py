"""What the tests beside other libraries share."""

import gc
import itertools
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bigmem

BUILT_IN = ("system", "mapped", "dontneed", "deferred", "recycle")
_serial = itertools.count()


@pytest.fixture(params=BUILT_IN)
def allocator(request: pytest.FixtureRequest) -> Iterator[bigmem.Allocator]:
    """Each allocator of our own; no block of it may be in use when the test is over."""
    made = bigmem.make(request.param)
    made.name = f"{request.param}-{next(_serial)}"  # tells its blocks from all others
    yield made
    assert _in_use(made) == 0
    made.close()


@pytest.fixture
def in_use(allocator: bigmem.Allocator) -> Callable[[], int]:
    """How many blocks of `allocator` are in use.

    Nobody collects garbage first: a block must die with its last reference.
    """
    return lambda: _in_use(allocator)


def _in_use(allocator: bigmem.Allocator) -> int:
    listed = sum(block.allocator == allocator.name for block in bigmem.live_blocks())
    stats = allocator.stats()
    assert stats.allocations - stats.releases == listed
    return listed


@pytest.fixture
def same_under_hook(
    allocator: bigmem.Allocator, in_use: Callable[[], int]
) -> Callable[[Callable[[], Any]], None]:
    """Check that a workload's results are the same to the last bit with the hook and without.

    They may be numbers, texts, bytes and arrays, in lists, tuples and dictionaries. Nothing of the
    workload may be left in use when it is over.
    """

    def check(workload: Callable[[], Any]) -> None:
        expected = _bits(workload())
        assert _bits(workload()) == expected  # or there is nothing to compare with
        bigmem.install(allocator, min_bytes="4KiB")
        try:
            result = workload()
        finally:
            bigmem.uninstall()
        assert _bits(result) == expected
        assert allocator.stats().allocations > 0
        del result
        gc.collect()
        assert in_use() == 0

    return check


def _bits(result: Any) -> Any:
    if isinstance(result, dict):
        return {key: _bits(value) for key, value in result.items()}
    if isinstance(result, list | tuple):
        return [_bits(value) for value in result]
    if isinstance(result, str | bytes):
        return result
    array = np.asarray(result)
    if array.dtype == object:
        return [_bits(value) for value in array.ravel().tolist()]
    return array.dtype.str, array.shape, array.tobytes()


@pytest.fixture
def run_suite(tmp_path: Path) -> Callable[..., str]:
    """Run tests that an installed package brings along, under `hooked`; return what pytest says.

    All must pass, and the hook must have served some of their arrays.
    """

    def run(*arguments: str, prefix: tuple[str, ...] = ()) -> str:
        here, programs = Path(__file__).parent, Path(sys.executable).parent
        command = [*prefix, "-m", "pytest", "-q", "-p", "hooked", "-p", "no:cacheprovider"]
        done = subprocess.run(
            [sys.executable, *command, "--disable-warnings", *arguments],
            cwd=tmp_path,
            env={
                **os.environ,
                "PYTHONPATH": str(here),
                "PATH": f"{programs}:{os.environ['PATH']}",  # meson, which builds a part of NumPy's
                "NPY_AVAILABLE_MEM": "1GB",  # NumPy leaves tests out that need more
                "OMP_NUM_THREADS": "1",
                "OPENBLAS_NUM_THREADS": "1",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-20_000:]
        served = re.search(r"^hooked: (\d+) allocations", done.stdout, re.MULTILINE)
        assert served
        assert int(served[1]) > 0
        return done.stdout

    return run
