"""What the ledger counts in a program, against what the program and the kernel know."""

import os
from pathlib import Path

import pytest
from profiled import KIB, MIB, PRICES, profiled

from bigmem.errors import BigmemError
from bigmem.profile.account import account
from bigmem.profile.record import ALLOCATION, LAYER, RELEASE, RESIZE, LineRecord, Record, read
from bigmem.profile.savings import savings


def line_of(record: Record, number: int) -> LineRecord:
    return next(line for line in record.lines if line.line == number)


def test_calls_and_bytes_by_line():
    record, _ = profiled(
        """\
        import numpy as np
        small = np.ones(1000)
        for _ in range(7):
            a = np.empty(1 << 20)
        b = [np.zeros((1 << 18, 3), np.int32) for _ in range(3)]
        c = b[0] + b[1]
        """
    )
    found = {line.line: (line.calls, line.bytes) for line in record.lines}
    assert found == {4: (7, 56 * MIB), 5: (3, 9 * MIB), 6: (1, 3 * MIB)}
    assert {line.file for line in record.lines} == {"<string>"}
    assert record.ended
    assert record.end > record.begin


def test_peak_and_growth_beyond_it():
    record, _ = profiled(
        """
        import numpy as np
        a = np.empty(8 << 20, np.uint8)
        b = np.empty(4 << 20, np.uint8)  # 12 in use
        del a
        c = np.empty(6 << 20, np.uint8)  # 10
        d = np.empty(4 << 20, np.uint8)  # 14, two more than ever
        del b, c, d
        e = np.empty(14 << 20, np.uint8)
        """
    )
    assert (record.peak, record.fresh) == (14 * MIB, 14 * MIB)


@pytest.mark.parametrize("huge", [False, True])
def test_pages_that_fault_are_those_touched(huge):
    record, printed = profiled(
        """\
        import numpy as np, resource
        def faults():
            return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(5):
            before = faults()
            a = np.empty(64 << 20, np.uint8)
            a[: 32 << 20] = 1
            print(faults() - before)
            del a
        """,
        huge=huge,
    )
    true = sum(int(word) for word in printed)
    (line,) = record.lines
    # The interpreter has a few of its own.
    assert line.faulted_small + line.faulted_huge == pytest.approx(true, rel=0.05, abs=20)
    assert line.touched_small * 4 * KIB + line.touched_huge * 2 * MIB == pytest.approx(
        5 * 32 * MIB, rel=0.02
    )
    assert record.minor_faults >= true


def test_memory_that_the_c_library_reuses_faults_once():
    record, printed = profiled(
        """\
        import numpy as np, resource
        def faults():
            return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        a = np.empty(8 << 20, np.uint8)
        del a  # from here on blocks of this size are the heap's
        top = [np.empty(1 << 20, np.uint8) for _ in range(2)]
        del top[0]  # below another: it stays with the heap
        before = faults()
        for _ in range(50):
            b = np.ones(1 << 20, np.uint8)
            del b
        print(faults() - before)
        """
    )
    line = line_of(record, 10)
    assert line.calls == 50
    assert int(printed[0]) < 2 * 256, "the C library did not reuse its memory"
    # Not every block was looked at; the first two were.
    assert line.faulted_small <= 50 * 256 / 2


def test_blocks_in_use_at_the_end_are_looked_at():
    record, _ = profiled(
        """
        import numpy as np, sys
        held = sys.modules["held"] = np.empty(32 << 20, np.uint8)
        held[: 16 << 20] = 1
        class Leak: pass
        leak = Leak(); leak.self = leak; leak.array = np.ones(1 << 20)
        """
    )
    assert sum(line.faulted_small for line in record.lines) == pytest.approx(24 * 256, rel=0.01)


def test_a_program_that_is_cut_off_leaves_its_record():
    record, _ = profiled(
        "import numpy as np, os\nfor _ in range(2): a = np.ones(1 << 20)\nos._exit(7)", code=7
    )
    assert not record.ended
    (line,) = record.lines
    assert (line.calls, line.bytes) == (2, 16 * MIB)
    assert line.faulted_small == pytest.approx(2048, rel=0.01)  # of the one that was released


ALLOCATORS = pytest.mark.parametrize(
    "config", [{}, *({"allocator": name} for name in ("recycle", "mapped"))], ids=str
)


@ALLOCATORS
def test_a_moved_block_counts_once_and_stays_with_its_line(config):
    record, _ = profiled(
        """\
        import numpy as np
        a = np.empty(1 << 20)
        a.resize(4 << 20, refcheck=False)
        a.resize(10, refcheck=False)
        del a
        b = np.empty(5 << 20)
        """,
        **config,
    )
    found = {line.line: (line.calls, line.bytes) for line in record.lines}
    assert found == {2: (1, 32 * MIB), 6: (1, 40 * MIB)}
    assert (record.peak, record.fresh) == (40 * MIB, 40 * MIB)  # nothing was left of `a`
    # It was all zeroed, and is counted also where it was cut off again.
    (a, _) = record.lines
    assert a.touched_small * 4 * KIB + a.touched_huge * 2 * MIB == pytest.approx(24 * MIB, rel=0.02)


GROWING = {
    "fromstring": "np.fromstring(text, sep=' ')",
    "fromiter": "np.fromiter((7.0 for _ in range(1_000_000)), float)",
    "loadtxt": "np.loadtxt(io.StringIO(text.replace(' ', chr(10))))",
}


@ALLOCATORS
@pytest.mark.parametrize("made", GROWING.values(), ids=GROWING)
def test_an_array_that_grows_step_by_step_stays_one(made, config):
    record, printed = profiled(
        f"""\
        import io, resource, time
        import numpy as np
        def faults():
            return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        text = "7 " * 1_000_000
        before = faults()
        array = {made}
        print(faults() - before)
        assert array.nbytes == 8_000_000
        """,
        events=10_000,
        **config,
    )
    (line,) = record.lines
    assert (line.line, line.calls) == (7, 1)
    # It grows by up to a half, and what is too much is cut off in the end.
    assert 8_000_000 <= line.bytes <= 1.6 * 8_000_000
    assert record.peak == record.fresh == line.bytes
    touched = line.touched_small * 4 * KIB + line.touched_huge * 2 * MIB
    assert 0.95 * 8_000_000 <= touched <= line.bytes
    true = int(printed[0])
    assert line.faulted_small + line.faulted_huge <= 1.02 * true
    events = [event.kind for event in record.events]
    assert events.count(RESIZE) > 3
    assert events.count(ALLOCATION) <= 1
    if not config:
        found = account(record, PRICES, record.end - record.begin, record.minor_faults)
        cost = PRICES.faults(2000, 0)
        for saving in savings(found):
            assert abs(saving.saved_s) < 2 * cost + line.free_s


def test_copying_an_array_elsewhere_is_put_down_to_its_line():
    record, printed = profiled(
        """\
        import numpy as np, resource
        def faults():
            return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        before = faults()
        a = np.ones(2 << 20, np.uint8)
        print(faults() - before)
        above = np.ones(1 << 20, np.uint8)
        before = faults()
        a.resize(8 << 20, refcheck=False)
        print(faults() - before)
        """,
        env={"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=1073741824"},
    )
    first, second = map(int, printed)
    assert second > 2000, "the C library did not copy"
    line = line_of(record, 5)
    assert (line.calls, line.bytes) == (1, 8 * MIB)
    assert line.faulted_small == pytest.approx(first + second, rel=0.05)
    assert line.touched_small == pytest.approx(2048, rel=0.02)


def test_blocks_of_an_allocator_count_too():
    record, _ = profiled(
        """\
        import numpy as np, bigmem
        with bigmem.use(bigmem.make("recycle")):
            for _ in range(3):
                a = np.ones(1 << 20)
        bigmem.install(bigmem.make("deferred"))
        for _ in range(2):
            a = np.ones(1 << 20)
        bigmem.uninstall()
        a = np.ones(1 << 20)
        """
    )
    assert {line.line: line.calls for line in record.lines} == {4: 3, 7: 2, 9: 1}
    warm = line_of(record, 4)
    # The second takes its memory while the first still has its own; the third finds it warm.
    assert warm.faulted_small * 4 * KIB + warm.faulted_huge * 2 * MIB <= 2.1 * 8 * MIB


def test_an_allocator_for_the_whole_program():
    record, printed = profiled(
        """
        import numpy as np, bigmem
        for _ in range(5):
            a = np.ones(1 << 20)
            del a
        print(bigmem.stats().allocations)
        """,
        allocator="recycle",
    )
    assert printed == ["5"]
    (line,) = record.lines
    assert line.calls == 5
    assert line.gil_free_s == 0
    assert line.free_s > 0


def test_children_leave_the_record_alone():
    record, _ = profiled(
        """\
        import numpy as np, os, subprocess, sys
        a = np.ones(1 << 20)
        if os.fork() == 0:
            b = np.ones(1 << 20)
            del a
            sys.exit(0)
        os.wait()
        code = "import numpy as np; a = np.ones(1 << 20)"
        subprocess.run([sys.executable, "-c", code], check=True)
        c = np.ones(1 << 20)
        """
    )
    assert {line.line: line.calls for line in record.lines} == {2: 1, 10: 1}
    assert record.peak == 16 * MIB


def test_layers_of_a_child_leave_the_events_alone():
    record, _ = profiled(
        """
        import numpy as np, bigmem, os, sys
        with bigmem.layer("parent"):
            if os.fork() == 0:
                with bigmem.layer("child"):
                    pass
                sys.exit(0)
            os.wait()
        """,
        events=100,
    )
    assert [event.name for event in record.events] == ["parent"]


def test_a_program_that_replaces_itself_begins_anew():
    record, _ = profiled(
        """
        import numpy as np, os, sys
        a = np.ones(1 << 20)
        code = "import numpy as np; a = [np.ones(1 << 18) for _ in range(3)]"
        os.execv(sys.executable, [sys.executable, "-c", code])
        """
    )
    assert [(line.line, line.calls) for line in record.lines] == [(1, 3)]


def test_a_program_that_closes_all_files_is_counted_on():
    record, _ = profiled(
        """
        import numpy as np, os
        os.closerange(3, 4096)
        taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(600)]
        a = np.ones(1 << 20)
        """,
        huge=True,
    )
    (line,) = record.lines
    assert line.faulted_small + 512 * line.faulted_huge == pytest.approx(2048, rel=0.01)
    assert record.tells_huge == (line.faulted_huge > 0)


def test_threads_layers_and_events():
    record, _ = profiled(
        """
        import numpy as np, threading, asyncio, bigmem
        def work():
            with bigmem.layer("inner"):
                np.ones(1 << 20)
        with bigmem.layer("outer"):
            work()
        thread = threading.Thread(target=work, name="the worker")
        thread.start()
        thread.join()
        async def task():
            with bigmem.layer("task"):
                await asyncio.sleep(0)
        asyncio.run(task())
        with bigmem.layer("\\ud800"):
            pass
        """,
        events=100,
    )
    names = sorted(record.threads.values())
    assert names == ["MainThread", "the worker"]
    memory = [event for event in record.events if event.kind != LAYER]
    assert [event.kind for event in memory] == [ALLOCATION, RELEASE] * 2
    assert [event.live for event in memory] == [8 * MIB, 0] * 2
    assert [record.threads[event.thread] for event in memory[::2]] == names
    layers = {event.name: event for event in record.events if event.kind == LAYER}
    assert set(layers) == {"outer", "inner", "task", "?"}
    assert (layers["task"].task != 0, layers["outer"].task) == (True, 0)
    assert layers["outer"].begin <= memory[0].begin
    assert record.layers is not None
    assert [layer["name"] for layer in record.layers["layers"]][:2] == ["outer", "inner"]


def test_the_latest_events_are_kept():
    record, _ = profiled(
        """
        import numpy as np
        for i in range(50):
            a = np.empty((i + 1) << 20, np.uint8)
            del a
        """,
        events=8,
    )
    assert record.events_left_out == 92
    assert [event.nbytes // MIB for event in record.events] == [47, 47, 48, 48, 49, 49, 50, 50]
    assert record.lines[0].calls == 50


def test_arrays_that_the_picture_does_not_show_are_counted():
    record, _ = profiled(
        "import numpy as np\nfor _ in range(9): a = np.empty(256 << 10, np.uint8)", events=100
    )
    assert record.lines[0].calls == 9
    assert len(record.events) < 9


def test_no_ledger_and_no_such_file(tmp_path: Path):
    path = tmp_path / "ledger"
    path.touch()
    assert read(path) is None
    path.write_bytes(b"something else" * 100)
    with pytest.raises(BigmemError, match="is no ledger"):
        read(path)


def test_a_ledger_that_cannot_be_opened_leaves_the_program_alone(tmp_path: Path):
    import subprocess

    from bigmem.cli import _launch

    settings = {"path": str(tmp_path / "missing"), "parent": os.getpid(), "events": 0}
    program = "import numpy as np; print(np.ones(1 << 20).sum())"
    words, environment = _launch.command(["-c", program], {"profile": settings})
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "1048576.0\n"
    assert len(done.stderr.splitlines()) == 1
    assert "missing" in done.stderr
