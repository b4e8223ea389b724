"""The proving engine: the same proofs in every mode, bounds, order of releases, failures."""

import os
import signal
import threading
import time

import pytest

import bigmem
from prover.backends import get_backend
from prover.backends.cpu.backend import CpuBackend
from prover.errors import UnreadableFile, UnsatisfiedCircuit, UsageError
from prover.formats.wtns import Witness
from prover.formats.zkey import ProvingKey
from prover.groth16 import prove
from prover.pipeline import engine as engine_module
from prover.pipeline.engine import Engine

MODES = ("normal", "seed")
RELEASES = ("early", "explicit", "return")
OWNERS = (("mapped", "recycle"), ("recycle", "mapped"), ("system", "dontneed"))
CASES = [
    *((mode, release, *OWNERS[0]) for mode in MODES for release in RELEASES),
    *((mode, "early", *owners) for mode in MODES for owners in OWNERS[1:]),
]


def bytes_of(proof):
    return proof.a.tobytes() + proof.b.tobytes() + proof.c.tobytes()


@pytest.fixture
def opened(circuit):
    return ProvingKey.open(circuit.key), Witness.open(circuit.witness)


@pytest.fixture
def many(multiplier):
    """The fixture with most signals of each curve."""
    folder = multiplier.folder.parent / "manypub"
    return ProvingKey.open(folder / "circuit.zkey"), folder / "witness.wtns"


@pytest.fixture
def proved():
    return {}


@pytest.fixture
def finish(proved):
    return lambda number, statement: proved.__setitem__(number, statement)


def synthesis_threads():
    return [one for one in threading.enumerate() if one.name == "prover synthesis"]


def wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_every_mode_makes_the_same_proofs(opened, proved, finish):
    key, witness = opened

    def blinding(number):
        return number, key.curve.r - number

    expected = {}
    for number in (1, 2, 3):
        r, s = blinding(number)
        proof = prove(key, witness, backend=get_backend("cpu"), r=r, s=s)
        expected[number] = bytes_of(proof)
    for mode, release, vectors, assignments in CASES:
        engine = Engine(
            key,
            backends=[get_backend("cpu")],
            vectors=bigmem.make(vectors),
            assignments=bigmem.make(assignments),
            mode=mode,
            release=release,
        )
        proved.clear()
        engine.run(3, lambda _: witness, finish, blinding=blinding)
        found = {number: bytes_of(one.proof) for number, one in proved.items()}
        assert found == expected, (mode, release, vectors, assignments)


def test_proofs_differ_without_given_blinding(many, proved, finish):
    key, path = many
    Engine(key, backends=[CpuBackend()]).run(3, lambda _: Witness.open(path), finish)
    assert len({bytes_of(one.proof) for one in proved.values()}) == 3


def test_owners_keep_apart(many, finish):
    key, path = many
    vectors, assignments = bigmem.make("mapped"), bigmem.make("mapped")
    engine = Engine(
        key, backends=[CpuBackend()], vectors=vectors, assignments=assignments, mode="seed"
    )
    engine.run(2, lambda _: Witness.open(path), finish)
    assert vectors.stats().allocations == 2 * 6  # h and the workspaces of five sums
    assert assignments.stats().allocations == 2 * 4 + 2  # w, a, b, c; masks of A and B
    assert vectors.stats().live == 0


def test_the_synthesis_runs_ahead_within_its_budget(many, finish):
    key, path = many
    assignments = bigmem.make("mapped")
    sizes = Engine(key, backends=[], mode="seed")
    each, masks = sizes.circuit_bytes, sizes.mask_bytes
    limit = masks + 3 * each + 100
    made = []

    class Slow(CpuBackend):
        def sums_of(self, key, operands, allocator=None):
            # As many as the budget holds, or as there are left
            wanted = min(3, 8 - len(made))
            wait_until(lambda: assignments.stats().live >= masks + wanted * each)
            made.append(assignments.stats().live)
            return super().sums_of(key, operands, allocator)

    engine = Engine(
        key,
        backends=[Slow(1)],
        assignments=assignments,
        mode="seed",
        release="explicit",
        ahead=limit,
    )
    engine.run(8, lambda _: Witness.open(path), finish)
    assert assignments.stats().peak_live == masks + 3 * each <= limit
    assert made[:6] == [masks + 3 * each] * 6


class Late:
    """A fence that is done some while after it was asked first, when the block was released."""

    def __init__(self, nbytes):
        self.nbytes = nbytes
        self.is_over = False
        self.asked = None

    def done(self):
        self.asked = self.asked or time.monotonic()
        self.is_over = time.monotonic() - self.asked > 0.05
        return self.is_over


@pytest.mark.parametrize("release", RELEASES)
def test_what_is_not_given_back_yet_counts_in_the_budget(many, finish, proved, release):
    key, path = many
    fences, held = [], []

    class Sluggish(bigmem.MappedAllocator):
        def allocate(self, nbytes, **options):
            block = super().allocate(nbytes, **options)
            block.fence(fence := Late(-(-block.nbytes // 4096) * 4096))
            fences.append(fence)
            held.append(sum(one.nbytes for one in fences if not one.is_over))
            return block

    engine = Engine(
        key,
        backends=[CpuBackend(1)],
        assignments=Sluggish(),
        mode="seed",
        release=release,
    )
    engine.run(6, lambda _: Witness.open(path), finish)
    assert sorted(proved) == list(range(1, 7))
    assert max(held) == engine.assignment_bytes + engine.mask_bytes


def test_an_engine_without_a_backend_proves_nothing(circuit):
    engine = Engine(ProvingKey.open(circuit.key), backends=[])
    with pytest.raises(UsageError, match="there is no backend to prove with"):
        engine.run(1, lambda _: Witness.open(circuit.witness), lambda number, statement: None)


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_room_for_one_circuit_suffices(many, finish, proved, workers):
    key, path = many
    one = Engine(key, backends=[], mode="seed")
    limit = one.circuit_bytes + one.mask_bytes
    backends = [CpuBackend(1) for _ in range(workers)]
    Engine(key, backends=backends, mode="seed", ahead=limit).run(
        7, lambda _: Witness.open(path), finish
    )
    assert sorted(proved) == list(range(1, 8))


def test_less_room_than_for_one_circuit_is_refused(many):
    key, _ = many
    with pytest.raises(UsageError, match=r"2 KiB hold no circuit: .* takes 40 KiB"):
        Engine(key, backends=[CpuBackend()], mode="seed", ahead=2048)


def events_of(key, path, finish, *, release, workers=1):
    """The log of the assignments' owner, with all layers, and when their vectors went."""
    assignments = bigmem.Traced(bigmem.make("mapped"))
    engine = Engine(
        key,
        backends=[CpuBackend(1)] * workers,
        vectors=bigmem.make("mapped"),
        assignments=assignments,
        mode="seed",
        release=release,
    )
    engine.run(1, lambda _: Witness.open(path), finish)
    events = [one for one in assignments.events() if one["ph"] == "X"]
    size = key.domain * 32
    gone = [
        one["ts"] for one in events if one["name"] == "release" and one["cat"] != "layer"
        and one["args"]["nbytes"] == size
    ]  # fmt: skip
    layers = {one["name"]: one for one in events if one["cat"] == "layer"}
    return layers, gone


def begin(layer):
    return layer["ts"]


def end(layer):
    return layer["ts"] + layer["dur"]


def test_vectors_go_as_soon_as_the_transforms_have_read_them(many, finish):
    layers, gone = events_of(*many, finish, release="early")
    assert len(gone) == 3
    assert all(end(layers["ntt"]) <= at <= begin(layers["msm H"]) for at in gone)


@pytest.mark.parametrize("release", ["explicit", "return"])
def test_vectors_stay_to_the_end_if_asked(many, finish, release):
    layers, gone = events_of(*many, finish, release=release)
    assert len(gone) == 3
    assert all(end(layers["before release"]) <= at <= end(layers["circuit"]) for at in gone)
    if release == "explicit":
        assert all(begin(layers["release"]) <= at <= end(layers["release"]) for at in gone)
    else:
        assert "release" not in layers


# Failures: what is finished stays, nobody hangs, and no thread is left.


@pytest.fixture
def run(many, proved, finish):
    """A batch of ten, whose third witness comes from ``third``."""
    key, path = many

    def go(third=None, backends=1, finish=finish, **owners):
        def witness_of(number):
            return third() if third is not None and number == 3 else Witness.open(path)

        engine = Engine(key, backends=[CpuBackend(1) for _ in range(backends)], **owners)
        try:
            engine.run(10, witness_of, finish)
        finally:
            assert synthesis_threads() == []

    return go


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backends", [1, 2])
def test_a_failing_synthesis(run, proved, mode, backends):
    def fail():
        raise UnreadableFile("x.wtns", "has gone")

    with pytest.raises(UnreadableFile, match=r"x\.wtns: has gone"):
        run(fail, backends, mode=mode)
    assert sorted(proved) == [1, 2]


def test_a_defect_in_the_synthesis_is_raised(run, proved):
    with pytest.raises(ZeroDivisionError):
        run(lambda: 1 // 0)
    assert sorted(proved) == [1, 2]


@pytest.mark.parametrize("mode", MODES)
def test_a_bad_witness(run, proved, many, sections, tmp_path, mode):
    raw = sections.read(many[1])
    raw[2][-32] ^= 1
    bad = tmp_path / "bad.wtns"
    bad.write_bytes(raw.encode())
    assignments = bigmem.make("mapped")
    with pytest.raises(UnsatisfiedCircuit, match=r"bad\.wtns"):
        run(lambda: Witness.open(bad), mode=mode, assignments=assignments)
    assert sorted(proved) == [1, 2]


def test_assignments_without_memory(run, proved):
    short = bigmem.wrappers.Limited(bigmem.make("mapped"), "17KiB")
    with pytest.raises(bigmem.OutOfMemory, match="Limited"):
        run(mode="seed", assignments=short)
    assert proved == {}


def test_vectors_without_memory(run, proved):
    short = bigmem.wrappers.Limited(bigmem.make("mapped"), "17KiB")
    assignments = bigmem.make("mapped")
    with pytest.raises(bigmem.OutOfMemory, match="Limited"):
        run(mode="seed", vectors=short, assignments=assignments)
    assert proved == {}


def test_a_proof_that_cannot_be_written(run, proved, finish, many):
    key, path = many

    def full(number, statement):
        if number == 3:
            raise OSError
        finish(number, statement)

    engine = Engine(key, backends=[CpuBackend(1)], mode="seed")
    with pytest.raises(OSError):
        engine.run(10, lambda _: Witness.open(path), full)
    assert sorted(proved) == [1, 2]
    assert synthesis_threads() == []


@pytest.mark.parametrize("backends", [1, 2])
def test_an_allocator_that_cannot_say_what_is_pending(run, proved, backends):
    class Mute(bigmem.MappedAllocator):
        def flush(self, timeout=None):
            if len(proved) >= 2:
                raise ZeroDivisionError
            return super().flush(timeout)

    with pytest.raises(ZeroDivisionError):
        run(backends=backends, assignments=Mute())
    assert {1, 2} <= set(proved)
    assert 10 not in proved


def test_what_others_never_give_back_keeps_nobody_waiting(run, proved, monkeypatch):
    asked = []

    class Shared(bigmem.MappedAllocator):
        def flush(self, timeout=None):
            asked.append(timeout)

    assignments = Shared()
    run(assignments=assignments)
    assert sorted(proved) == list(range(1, 11))
    assert asked == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2] * 10


def test_what_keeps_a_worker_from_beginning_is_raised(run, proved, monkeypatch):
    copy = engine_module.copy_context
    contexts = iter([copy, ZeroDivisionError])  # of the first worker, of the second

    def copy_context():
        found = next(contexts)
        if found is ZeroDivisionError:
            raise found
        return found()

    monkeypatch.setattr(engine_module, "copy_context", copy_context)
    with pytest.raises(ZeroDivisionError):
        run(backends=3)
    assert 10 not in proved


def test_the_first_error_of_any_thread_is_raised(run, proved, finish, monkeypatch):
    """A worker's on a thread of the pool, before that of the calling thread."""
    caller, noted, stop = threading.current_thread(), threading.Event(), engine_module.Ahead.stop

    def stopped(self):  # which a worker does when it has noted its error
        stop(self)
        if proved:
            noted.set()

    def fail(number, statement):
        if threading.current_thread() is caller:
            assert noted.wait(60)
            raise OSError
        finish(number, statement)
        raise ZeroDivisionError

    monkeypatch.setattr(engine_module.Ahead, "stop", stopped)
    with pytest.raises(ZeroDivisionError):
        run(backends=2, finish=fail)
    assert len(proved) == 1


def test_a_failure_while_the_synthesis_waits_for_memory(run, proved, finish):
    """That never comes back."""
    waiting = threading.Event()

    class Stuck(bigmem.MappedAllocator):
        def flush(self, timeout=None):
            if not proved:
                return super().flush(timeout)
            waiting.set()
            time.sleep(min(timeout, 0.01))
            return False

    def fail_the_second(number, statement):
        finish(number, statement)
        if number == 2:
            assert waiting.wait(60)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(assignments=Stuck(), finish=fail_the_second)
    assert sorted(proved) == [1, 2]


def test_an_interrupt_while_the_proofs_wait_for_the_synthesis(run, proved):
    interrupted = threading.Event()

    def slow():
        wait_until(lambda: len(proved) == 2)
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupted.wait(60)

    def end_of_wait():
        # The interrupt is on its way out of the engine, which waits for this thread.
        wait_until(lambda: len(proved) == 2)
        time.sleep(0.05)
        interrupted.set()

    helper = threading.Thread(target=end_of_wait)
    helper.start()
    with pytest.raises(KeyboardInterrupt):
        run(slow)
    helper.join()
    assert sorted(proved) == [1, 2]


def test_a_system_without_threads(run, proved, monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(MemoryError, match="no thread for the synthesis"):
        run()
    assert proved == {}


def test_an_interrupt_as_the_synthesis_begins(run, proved, monkeypatch):
    start = threading.Thread.start

    def interrupted(self):
        start(self)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run()  # and looks whether the thread has ended
    assert proved == {}


@pytest.mark.parametrize(
    ("refusal", "raised"),
    [
        (RuntimeError("can't start new thread"), MemoryError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_a_worker_that_cannot_begin_stops_those_that_have(
    run, proved, many, monkeypatch, refusal, raised
):
    start, begun, refused = threading.Thread.start, [], threading.Event()

    def refuse_the_third(self):
        begun.append(self)
        if len(begun) == 3:  # after the synthesis and a worker
            refused.set()
            raise refusal
        start(self)

    def third():
        assert refused.wait(60)
        return Witness.open(many[1])

    monkeypatch.setattr(threading.Thread, "start", refuse_the_third)
    with pytest.raises(raised):
        run(third, backends=3)
    assert 10 not in proved
