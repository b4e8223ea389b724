"""What held a witness holds it no longer."""

import os
from pathlib import Path

import numpy as np
import pytest

import bigmem
from prover.service.secret import SecretFile
from prover.service.worker import make_allocator


def test_a_secret_file_is_overwritten_when_it_is_closed(tmp_path):
    secret = SecretFile()
    secret.write(b"w" * 3_000_000)
    other = os.dup(secret.fileno())
    copy = os.open(tmp_path / "copy", os.O_RDWR | os.O_CREAT)
    secret.copy_to(copy)
    assert os.pread(copy, 4_000_000, 0) == b"w" * 3_000_000
    secret.close()
    secret.close()
    assert os.pread(other, 4_000_000, 0) == bytes(3_000_000)
    assert SecretFile.of(tmp_path / "copy").size == 3_000_000
    os.close(other)
    os.close(copy)


@pytest.mark.parametrize("name", ["recycle", "deferred", "dontneed", "mapped"])
@pytest.mark.parametrize("budget", [None, 64 << 20])
def test_vectors_are_overwritten_before_their_memory_is_used_again(name, budget):
    allocator = make_allocator(name, budget)
    vector = bigmem.full(3 << 20, 0xA5, dtype=np.uint8, allocator=allocator)
    del vector
    assert allocator.flush(60)
    assert not bigmem.empty(3 << 20, np.uint8, allocator=allocator).any()


def test_a_budget_bounds_any_allocator():
    allocator = make_allocator("system", 1 << 20)
    with pytest.raises(bigmem.OutOfMemory):
        allocator.allocate(2 << 20)


def test_neither_process_leaves_a_core(server):
    for process in (server.worker(), server.worker().parent()):
        limits = Path(f"/proc/{process.pid}/limits").read_text()
        (line,) = (line for line in limits.splitlines() if line.startswith("Max core file size"))
        assert int(line.split()[4]) <= 1
