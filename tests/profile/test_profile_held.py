"""What bigmem's allocators hold in a profiled program, sampled and in the trace."""

import json
import os
import subprocess
import sys
from pathlib import Path

import bigmem
from bigmem.exporters.page import Page, Sampler
from bigmem.profile.held import Held

MIB = 1 << 20


def test_changes_are_kept_and_nothing_else():
    file = os.memfd_create("page")
    sampler = Sampler(Page(file))
    held = Held(file)
    held.sample()  # nothing has been written yet
    before = bigmem.stats()
    arena = bigmem.ArenaAllocator()
    block = arena.allocate(MIB)
    for _ in range(3):
        sampler.sample()
        held.sample()
    assert [states["live"] for _, states in held.samples] == [before.live + MIB]
    del block
    sampler.sample()
    held.sample()
    assert held.samples[-1][1]["live"] == before.live
    assert held.samples[0][0] < held.samples[1][0]
    os.close(file)


def test_of_too_many_changes_every_second_goes():
    file = os.memfd_create("page")
    sampler = Sampler(Page(file))
    held = Held(file, most=8)
    arena = bigmem.ArenaAllocator()
    kept = []
    for _ in range(20):
        kept.append(arena.allocate(MIB))
        sampler.sample()
        held.sample()
    assert 4 <= len(held.samples) < 8
    assert held.samples[-1][1]["live"] == bigmem.stats().live
    os.close(file)


PROGRAM = """
import os, sys, time
import numpy as np
first = np.ones(4 << 20)
del first
second = np.ones(1 << 20)
time.sleep(0.5)
child = os.fork()
if child == 0:
    third = np.ones(8 << 20)  # a child's are not this process's
    time.sleep(0.2)
    sys.exit()
os.waitpid(child, 0)
del second
"""


def test_a_profile_has_them_in_its_trace(tmp_path: Path):
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "bigmem", "profile", "--allocator", "recycle", "-o", "t.json",
         "program.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    states = {
        state: [e["args"]["bytes"] for e in events if e["name"] == f"allocators: {state} bytes"]
        for state in ("live", "pending", "warm", "resident")
    }
    assert 8 * MIB in states["live"]
    assert max(states["live"]) <= 32 * MIB
    assert 24 * MIB in states["warm"]
    assert max(states["resident"]) <= 40 * MIB
