"""Guards, canaries and the quarantine."""

import ctypes
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import bigmem
from bigmem.wrappers import Guarded

Run = Callable[..., str]

UPSTREAMS: dict[str, Callable[[], bigmem.Allocator]] = {
    "system": bigmem.SystemAllocator,
    "recycle": bigmem.ArenaAllocator,
    "mapped": bigmem.MappedAllocator,
}

PRELUDE = """
import ctypes, faulthandler, os, signal, sys, threading
import numpy as np
import bigmem

def write(address, value=1):
    ctypes.memset(address, value, 1)

def read(address):
    return ctypes.string_at(address, 1)
"""


class Crash:
    """Runs a program that must die of a signal; says where its marked lines are."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "program.py"

    def __call__(self, program: str, number: int = signal.SIGSEGV, *options: str) -> str:
        self.text = PRELUDE + textwrap.dedent(program)
        self.file.write_text(self.text)
        done = subprocess.run(
            [sys.executable, *options, self.file],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == -number, (done.returncode, done.stderr)
        assert "survived" not in done.stdout
        return done.stderr

    def line(self, mark: str) -> str:
        """A traceback's line for the code that the comment marks."""
        numbers = [n for n, text in enumerate(self.text.splitlines(), 1) if f"# {mark}" in text]
        assert len(numbers) == 1
        return f'  File "{self.file}", line {numbers[0]}, in '


@pytest.fixture
def crash(tmp_path: Path) -> Crash:
    return Crash(tmp_path)


@pytest.mark.parametrize("upstream", ["SystemAllocator", "ArenaAllocator", "MappedAllocator"])
@pytest.mark.parametrize("tracing", ["0", "3"])
def test_a_write_past_the_end_dies_with_a_report(crash: Crash, upstream: str, tracing: str) -> None:
    program = """
        guarded = bigmem.Guarded(bigmem.UPSTREAM(), name="watchdog")
        def make(nbytes):
            return bigmem.zeros(nbytes, np.uint8, allocator=guarded)  # made
        others = [make(100) for _ in range(3)]
        array = make(128_000)
        write(array.ctypes.data + 127_999)
        write(array.ctypes.data + 128_000)
        print("survived")
        """.replace("UPSTREAM", upstream)
    report = crash(program, signal.SIGSEGV, "-X", f"tracemalloc={tracing}")
    assert report.startswith("bigmem: write past the end of a block, at 0x")
    assert "offset 128000 of 128000 bytes at 0x" in report
    assert "from watchdog\n" in report
    assert "allocated at:\n" + crash.line("made") + "make\n" in report
    assert "released at" not in report
    assert "bigmem/arrays.py" not in report


def test_a_read_before_the_beginning(crash: Crash) -> None:
    report = crash(
        """
        guarded = bigmem.Guarded(bigmem.ArenaAllocator())
        block = guarded.allocate(8192)  # made
        read(block.address)
        read(block.address - 3)
        print("survived")
        """
    )
    assert report.startswith("bigmem: read before the beginning of a block, at 0x")
    assert "offset -3 of 8192 bytes" in report
    assert crash.line("made") + "<module>\n" in report


@pytest.mark.parametrize("upstream", ["SystemAllocator", "ArenaAllocator", "MappedAllocator"])
@pytest.mark.parametrize("access", ["read", "write"])
def test_a_use_after_release_names_both_ends_of_the_life(
    crash: Crash, upstream: str, access: str
) -> None:
    report = crash(
        f"""
        guarded = bigmem.Guarded(bigmem.{upstream}())
        def make():
            return guarded.allocate(5000)  # made
        def drop(block):
            block.release()  # dropped
        block = make()
        address = block.address
        {access}(address + 100)
        drop(block)
        others = [make() for _ in range(10)]
        {access}(address + 100)
        print("survived")
        """
    )
    assert report.startswith(f"bigmem: {access} after the release of a block, at 0x")
    assert "offset 100 of 5000 bytes" in report
    made, dropped = report.split("allocated at:\n")[1].split("released at:\n")
    assert made.startswith(crash.line("made") + "make\n")
    assert dropped.startswith(crash.line("dropped") + "drop\n")


def test_arrays_die_at_their_del(crash: Crash) -> None:
    report = crash(
        """
        guarded = bigmem.Guarded(bigmem.ArenaAllocator())
        def work():
            array = bigmem.ones(1000, allocator=guarded)
            address = array.ctypes.data
            del array  # dropped
            return address
        read(work())
        print("survived")
        """
    )
    assert "read after the release" in report
    assert "released at:\n" + crash.line("dropped") + "work\n" in report


@pytest.mark.parametrize("order", ["before", "after"])
def test_faulthandler_still_speaks(crash: Crash, order: str) -> None:
    report = crash(
        f"""
        if "{order}" == "before":
            faulthandler.enable()
        guarded = bigmem.Guarded(bigmem.ArenaAllocator())
        first = guarded.allocate(10)
        if "{order}" == "after":
            faulthandler.enable()
        block = guarded.allocate(4096)
        write(block.address + 4096)  # fault
        print("survived")
        """
    )
    assert report.startswith("bigmem: write past the end")
    assert report.count("bigmem: ") == 1
    assert "Fatal Python error: Segmentation fault" in report
    assert "Current thread" in report


@pytest.mark.parametrize("fault", ["read(8)", "os.kill(os.getpid(), signal.SIGSEGV)"])
@pytest.mark.parametrize("enabled", [False, True])
def test_other_faults_end_the_process_as_before(crash: Crash, fault: str, enabled: bool) -> None:
    report = crash(
        f"""
        if {enabled}:
            faulthandler.enable()
        guarded = bigmem.Guarded(bigmem.ArenaAllocator())
        block = guarded.allocate(4096)
        {fault}
        print("survived")
        """
    )
    assert "bigmem: " not in report
    assert ("Fatal Python error: Segmentation fault" in report) is enabled


def test_a_fault_in_a_thread_and_one_in_a_child(crash: Crash) -> None:
    report = crash(
        """
        guarded = bigmem.Guarded(bigmem.ArenaAllocator())
        block = guarded.allocate(4096)
        if os.fork() == 0:
            write(block.address + 4097)
            os._exit(0)
        pid, status = os.wait()
        assert os.WTERMSIG(status) == signal.SIGSEGV
        write(block.address)
        threads = [threading.Thread(target=write, args=(block.address + 5000 + k,))
                   for k in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        print("survived")
        """
    )
    assert "offset 4097 of 4096" in report
    # Of threads that fault at once, only one is reported.
    assert report.count("bigmem: write past the end") == 2


@pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 4095, 4096, 4097, 100_000])
@pytest.mark.parametrize("alignment", [1, 64, 4096, 1 << 16])
def test_blocks_end_at_the_upper_guard(nbytes: int, alignment: int) -> None:
    block = Guarded(bigmem.SystemAllocator()).allocate(nbytes, alignment=alignment)
    assert block.address % alignment == 0
    slack = -(block.address + block.nbytes) % 4096
    assert slack < min(alignment, 4096)
    if alignment <= 64 and nbytes % alignment == 0:
        assert slack == 0


@pytest.mark.parametrize("upstream", list(UPSTREAMS))
@pytest.mark.parametrize("nbytes", [100, 5000, 1 << 20])
def test_memory_comes_filled(upstream: str, nbytes: int) -> None:
    guarded = Guarded(UPSTREAMS[upstream](), quarantine=0)
    for _ in range(3):
        array = bigmem.empty(nbytes, np.uint8, allocator=guarded)
        assert (array == 0xCB).all()
        array[:] = 1
        del array
        array = bigmem.zeros(nbytes, np.uint8, allocator=guarded)
        assert (array == 0).all()
        array[:] = 1
        del array


@pytest.mark.parametrize(
    ("offset", "message"),
    [
        (100, "past the end of a block of 100 bytes"),
        (127, "past the end of a block of 100 bytes"),
        (-1, "before a block of 100 bytes"),
        (-3000, "before a block of 100 bytes"),
    ],
)
def test_damage_next_to_a_block_is_found_at_its_release(offset: int, message: str) -> None:
    system = bigmem.SystemAllocator()
    guarded = Guarded(system, name="watchdog")
    line = sys._getframe().f_lineno + 1
    block = guarded.allocate(100)
    heard = []
    hook, sys.unraisablehook = sys.unraisablehook, lambda args: heard.append(args.exc_value)
    try:
        ctypes.memset(block.address + offset, 0, 1)
        block.release()
        fine = guarded.allocate(100)
        fine.release()
    finally:
        sys.unraisablehook = hook
    assert [type(error) for error in heard] == [bigmem.BigmemError]
    assert f"wrote {message}" in str(heard[0])
    assert f"offset {offset} is changed" in str(heard[0])
    assert "from watchdog" in str(heard[0])
    assert f'  File "{__file__}", line {line}, in ' in str(heard[0])
    # It is quarantined and goes back like any other.
    assert guarded.quarantined == 2 * 12288
    guarded.trim()
    assert system.stats().live == 0


def test_the_quarantine_is_first_in_first_out_and_bounded() -> None:
    system = bigmem.SystemAllocator()
    guarded = Guarded(system, quarantine="64KiB")
    blocks = [guarded.allocate(4096) for _ in range(20)]
    each = system.stats().live // 20
    assert each == 3 * 4096
    returned = []
    while blocks:
        del blocks[0]
        assert guarded.quarantined <= 64 << 10
        returned.append(system.stats().releases)
    assert returned == [0] * 5 + list(range(1, 16))
    assert system.stats().live == guarded.quarantined == 5 * each
    assert guarded.flush(10)  # what waits here is not pending
    assert guarded.quarantined == 5 * each
    guarded.trim()
    assert system.stats().live == guarded.quarantined == 0


def test_closing_empties_the_quarantine_and_later_releases_pass_it_by() -> None:
    system = bigmem.SystemAllocator()
    guarded = Guarded(system)
    blocks = [guarded.allocate(1000) for _ in range(4)]
    del blocks[:2]
    guarded.close()
    assert guarded.quarantined == 0
    assert (system.stats().releases, system.stats().allocations) == (2, 4)
    del blocks
    assert system.stats().live == 0


def test_a_guarded_that_is_gone_has_given_everything_back() -> None:
    system = bigmem.SystemAllocator()
    guarded = Guarded(system)
    kept = guarded.allocate(1000)
    guarded.allocate(1000).release()
    assert (system.stats().allocations, system.stats().releases) == (2, 0)
    del guarded
    assert kept.nbytes == 1000
    del kept
    assert system.stats().live == 0


@pytest.mark.parametrize("upstream", list(UPSTREAMS))
def test_memory_that_went_back_is_as_good_as_any(upstream: str) -> None:
    below = UPSTREAMS[upstream]()
    guarded = Guarded(below, quarantine="1MiB")
    for step in range(300):
        array = bigmem.full(1000 + 37 * step, step % 251, np.uint8, allocator=guarded)
        assert (array == step % 251).all()
        # Whole pages of the upstream, used without guards.
        plain = bigmem.full(20_000, 7, np.uint8, allocator=below)
        assert (plain == 7).all()


def test_the_quarantine_makes_room_before_an_allocation_fails() -> None:
    guarded = Guarded(bigmem.Limited(bigmem.SystemAllocator(), "1MiB"), quarantine="1GiB")
    for _ in range(50):
        assert guarded.allocate(100_000).nbytes == 100_000
    blocks = [guarded.allocate(400_000) for _ in range(2)]
    with pytest.raises(bigmem.OutOfMemory, match="limit of 1 MiB"):
        guarded.allocate(400_000)
    assert len(blocks) == 2


def test_too_many_mappings_are_out_of_memory(run_python: Run) -> None:
    limit = int(Path("/proc/sys/vm/max_map_count").read_text())
    if limit > 200_000:
        pytest.skip(f"vm.max_map_count is {limit}: reaching it takes too much memory")
    run_python(
        """
        import sys
        import bigmem
        arena = bigmem.ArenaAllocator()
        guarded = bigmem.Guarded(arena, name="watchdog")
        blocks = [None] * int(sys.argv[1])
        try:
            for i in range(len(blocks)):
                blocks[i] = guarded.allocate(4096, zeroed=True)
        except bigmem.OutOfMemory as error:
            message = str(error)
        assert "watchdog cannot protect" in message and "vm.max_map_count" in message, message
        assert i > int(sys.argv[1]) // 4
        for k in range(0, i, 2):
            blocks[k] = None  # into the quarantine, in between the others
        for k in range(1, 100):
            blocks[0] = guarded.allocate(4096)
        blocks.clear()
        guarded.close()
        assert guarded.quarantined == arena.stats().live == 0
        """,
        str(limit),
    )


def test_an_upstream_without_whole_pages_is_refused() -> None:
    class Stubborn(bigmem.Allocator):
        def allocate(
            self, nbytes: "int | str", *, alignment: int = 64, zeroed: bool = False
        ) -> bigmem.Block:
            below = bigmem.SystemAllocator().allocate(int(nbytes) + 64, alignment=alignment)
            return bigmem.Block(memoryview(below)[64:], allocator=self)

    with pytest.raises(bigmem.BigmemError, match="gave no whole pages"):
        Guarded(Stubborn()).allocate(100)


def test_exit_with_a_full_quarantine_is_quiet(run_python: Run) -> None:
    run_python(
        """
        import bigmem, numpy as np
        guarded = bigmem.Guarded(bigmem.ArenaAllocator())
        bigmem.set_allocator(bigmem.Guarded(bigmem.SystemAllocator()))
        for _ in range(2000):
            bigmem.ones(1000, allocator=guarded)
            bigmem.ones(1000)
        assert guarded.quarantined > 20 << 20
        """
    )


def test_a_child_is_not_told_of_canaries_that_the_fork_has_wiped(run_python: Run) -> None:
    run_python(
        """
        import os
        import bigmem
        for make in (bigmem.ArenaAllocator, bigmem.MappedAllocator):
            guarded = bigmem.Guarded(make(wipe=True, release=bigmem.Deferred()))
            blocks = [guarded.allocate(1000) for _ in range(3)]
            child = os.fork()
            if child == 0:
                blocks.clear()
                guarded.trim()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        """
    )
