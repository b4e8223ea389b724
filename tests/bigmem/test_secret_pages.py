"""Contents that nobody may find: wiped, kept from children and from core dumps."""

import ctypes
import errno
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel import (
    HUGE,
    LIBC,
    MIB,
    NUMBERS,
    ORDINARY,
    PAGE,
    SECRET,
    SMALL,
    Range,
    areas,
    resident,
)

from bigmem import _core, osmem

Run = Callable[..., str]
MakeRange = Callable[..., Range]

needs_huge_pages = pytest.mark.skipif(
    osmem.transparent_huge_pages() == "never", reason="this system has no transparent huge pages"
)
needs_numbers = pytest.mark.skipif(not NUMBERS, reason="system calls of this machine unknown here")
both_kinds = pytest.mark.parametrize("strict", [False, True])


@both_kinds
@given(touched=st.lists(st.booleans(), min_size=1, max_size=40), locked=st.booleans())
def test_wiping_overwrites_what_is_resident_and_touches_nothing_else(
    touched: list[bool], locked: bool, strict: bool
) -> None:
    table = _core.ProbedPages(strict, _core.AnonymousPages(*SECRET))
    r = Range(table, len(touched) * PAGE)
    if locked and NUMBERS:  # MLOCK_ONFAULT: advice is refused where nothing is resident, too
        LIBC.syscall(NUMBERS["mlock2"], ctypes.c_void_p(r.address), ctypes.c_size_t(PAGE), 1)
    for i, touch in enumerate(touched):
        if touch:
            r.bytes[i * PAGE : (i + 1) * PAGE] = 0xA5
    assert resident(r.address, r.nbytes) == touched
    assert table.wipe(r.address, r.nbytes) == 0
    assert resident(r.address, r.nbytes) == touched
    assert not r.bytes.any()
    assert table.unreserve(r.address, r.nbytes) == 0


def test_wiping_goes_on_over_ranges_of_any_size(make_range: MakeRange) -> None:
    r = make_range(64 * MIB, options=ORDINARY)
    places = [0, 16 * MIB - 1, 16 * MIB, 33 * MIB, 64 * MIB - 1]
    r.bytes[places] = 1
    before = resident(r.address, r.nbytes)
    assert sum(before) == 5
    assert r.table.wipe(r.address, r.nbytes) == 0
    assert resident(r.address, r.nbytes) == before
    assert not r.bytes[places].any()


@needs_huge_pages
def test_wiping_keeps_huge_pages(make_range: MakeRange) -> None:
    r = make_range(8 * MIB, HUGE, options=ORDINARY)
    r.bytes[: 4 * MIB] = 1
    huge = areas(r.address, r.nbytes)[0]["AnonHugePages"]
    assert r.table.wipe(r.address, r.nbytes) == 0
    assert areas(r.address, r.nbytes)[0]["AnonHugePages"] == huge
    assert not r.bytes.any()


@pytest.mark.parametrize("page", [SMALL, HUGE])
def test_wiping_takes_no_memory_for_what_was_only_read(make_range: MakeRange, page: int) -> None:
    r = make_range(64 * MIB, page, options=ORDINARY)
    assert not r.bytes[::PAGE].any()
    assert any(resident(r.address, r.nbytes))
    assert r.table.wipe(r.address, r.nbytes) == 0
    assert areas(r.address, r.nbytes)[0]["Rss"] < MIB


def test_wiping_says_what_went_wrong(make_range: MakeRange) -> None:
    r = make_range(8 * PAGE, options=ORDINARY)
    assert LIBC.munmap(ctypes.c_void_p(r.address + PAGE), PAGE) == 0
    assert r.table.wipe(r.address, r.nbytes) == errno.ENOMEM


# --- forks and core dumps ---

CHILD = """
def child_finds(address):
    read, write = os.pipe()
    if os.fork() == 0:
        os.write(write, bytes_at(address, 1).tobytes())
        os._exit(0)
    os.wait()
    return os.read(read, 1)[0]
"""


def test_a_child_finds_zeros_where_it_is_told_to(run: Run) -> None:
    run(
        CHILD
        + """
for strict in (False, True):
    table = _core.ProbedPages(strict)
    address = table.reserve(4 * MIB, 2 * MIB, SMALL)
    assert table.commit(address, 4 * MIB, SMALL) == 0
    memory = bytes_at(address, 4 * MIB)
    memory[:] = 7
    assert table.set_wiped_on_fork(address, 2 * MIB, True) == 0
    assert (child_finds(address), child_finds(address + 2 * MIB)) == (0, 7)
    assert memory.min() == 7
    assert table.set_wiped_on_fork(address, 2 * MIB, False) == 0
    assert child_finds(address) == 7
    assert len(areas(address, 4 * MIB)) == 1
"""
    )


def test_a_child_never_finds_what_is_secret(run: Run) -> None:
    run(
        CHILD
        + """
for strict in (False, True):
    table = _core.ProbedPages(strict, _core.AnonymousPages(UNSET, 0, True))
    address = table.reserve(4 * MIB, 2 * MIB, SMALL)
    for wiped in (True, False):
        assert table.commit(address, 4 * MIB, SMALL) == 0
        assert table.set_wiped_on_fork(address, 4 * MIB, wiped) == 0
        bytes_at(address, 4 * MIB)[:] = 7
        assert child_finds(address) == 0
        assert table.decommit(address, 4 * MIB, SMALL, DONTNEED) == (0, False)
"""
    )


@needs_numbers
@pytest.mark.parametrize("advice", [16, 18])  # MADV_DONTDUMP, MADV_WIPEONFORK
def test_where_secrecy_is_refused_there_is_no_memory(run: Run, advice: int) -> None:
    run(
        """
        refuse(NUMBERS["madvise"], errno.EINVAL, int(sys.argv[1]))
        secret = _core.AnonymousPages(UNSET, 0, True)
        try:
            _core.ProbedPages(False, secret).reserve(MIB, PAGE, SMALL)
        except OSError as refusal:
            assert refusal.errno == errno.EINVAL
        else:
            raise AssertionError("reserved")
        table = _core.ProbedPages(True, secret)
        assert table.commit(table.reserve(MIB, PAGE, SMALL), MIB, SMALL) == errno.EINVAL
        _core.ProbedPages().reserve(MIB, PAGE, SMALL)
        """,
        str(advice),
    )


def test_a_core_dump_holds_nothing_secret(tmp_path: Path) -> None:
    pattern = Path("/proc/sys/kernel/core_pattern").read_text().strip()
    if pattern.startswith(("|", "/")):
        pytest.skip(f"core dumps of this system go elsewhere: {pattern}")
    program = """
import os, resource, sys
from bigmem import _core
sys.path.insert(0, sys.argv[2])
from kernel import *
most = resource.getrlimit(resource.RLIMIT_CORE)[1]
resource.setrlimit(resource.RLIMIT_CORE, (most, most))
os.chdir(sys.argv[1])
for secret, value in ((False, 0x5B), (True, 0xA7)):
    table = _core.ProbedPages(False, _core.AnonymousPages(UNSET, 0, secret))
    bytes_at(table.reserve(MIB, PAGE, SMALL), MIB)[:] = value
os.abort()
"""
    command = [sys.executable, "-c", program, str(tmp_path), str(Path(__file__).parent)]
    done = subprocess.run(command, check=False)
    assert done.returncode == -signal.SIGABRT
    cores = list(tmp_path.iterdir())
    if not cores:
        pytest.skip("the kernel writes no core dumps here (RLIMIT_CORE)")
    dump = cores[0].read_bytes()
    assert dump.count(b"\x5b" * MIB) == 1
    assert b"\xa7" * PAGE not in dump
