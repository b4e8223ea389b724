"""The contract that every allocator keeps, and what this one adds."""

import multiprocessing
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

import bigmem
import bigmem.testing


class TestContract(bigmem.testing.AllocatorContract):
    @pytest.fixture
    def allocator(self) -> Iterator[bigmem.Allocator]:
        with bigmem.make("shared") as allocator:
            yield allocator


def test_forked_workers_fill_the_parents_array() -> None:
    squares = bigmem.zeros(1000, np.int64, allocator=bigmem.make("shared"))

    def work(begin: int, end: int) -> None:
        squares[begin:end] = np.arange(begin, end) ** 2

    fork = multiprocessing.get_context("fork")
    workers = [
        fork.Process(target=work, args=(begin, begin + 250)) for begin in range(0, 1000, 250)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert np.array_equal(squares, np.arange(1000) ** 2)


def test_the_environment_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIGMEM_ALLOCATOR", "shared")
    program = "import bigmem; print(type(bigmem.get_allocator()).__name__)"
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert done.stdout == "SharedAllocator\n"
