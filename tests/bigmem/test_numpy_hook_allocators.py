"""Allocators behind NumPy that are written in Python, and what can go wrong in any."""

import contextlib
import gc
import re
import signal
import threading
import tracemalloc
from collections.abc import Callable
from typing import Any, SupportsIndex

import numpy as np
import pytest
from numpy_memory import Counting, raised_unraisable

import bigmem

pytestmark = pytest.mark.usefixtures("uninstalled")

KIB, MIB = 1 << 10, 1 << 20


class Misbehaving(bigmem.Allocator):
    """Does what it is told instead of allocating."""

    def __init__(self, behaviour: Callable[[bigmem.Allocator, int], Any]) -> None:
        super().__init__(name="misbehaving")
        self.behaviour = behaviour

    def allocate(
        self, nbytes: SupportsIndex | str, *, alignment: int = 64, zeroed: bool = False
    ) -> bigmem.Block:
        return self.behaviour(self, int(nbytes))  # type: ignore[no-any-return]


def raise_value_error(allocator: bigmem.Allocator, nbytes: int) -> None:
    raise ValueError("no such thing")


def too_small(allocator: bigmem.Allocator, nbytes: int) -> bigmem.Block:
    return bigmem.Block(bytearray(nbytes - 1), allocator=allocator)


def released(allocator: bigmem.Allocator, nbytes: int) -> bigmem.Block:
    block = bigmem.Block(bytearray(nbytes), allocator=allocator)
    block.release()
    return block


def crooked(allocator: bigmem.Allocator, nbytes: int) -> bigmem.Block:
    memory = bytearray(nbytes + 16)
    first = 1 + (-bigmem.Block(memory, allocator=allocator).address) % 16
    return bigmem.Block(memoryview(memory)[first : first + nbytes], allocator=allocator)


@pytest.mark.parametrize(
    ("behaviour", "error", "text"),
    [
        (raise_value_error, ValueError, "no such thing"),
        (too_small, bigmem.BigmemError, "asked for 1048576 bytes, .* made a block of 1048575"),
        (released, BufferError, "released"),
        (crooked, bigmem.BigmemError, "no multiple of 16"),
        (lambda allocator, nbytes: None, TypeError, "NoneType, not a bigmem.Block"),
        (lambda allocator, nbytes: np.ones(3), TypeError, "ndarray, not a bigmem.Block"),
    ],
)
@pytest.mark.parametrize("how", ["use", "install"])
def test_what_goes_wrong_is_a_memory_error_and_its_cause_printed(
    behaviour: Callable[[bigmem.Allocator, int], Any],
    error: type[Exception],
    text: str,
    how: str,
) -> None:
    allocator = Misbehaving(behaviour)
    if how == "install":
        bigmem.install(allocator)
    with bigmem.use(allocator) if how == "use" else contextlib.nullcontext():
        for make in (np.empty, np.zeros):
            with raised_unraisable() as errors:
                with pytest.raises(MemoryError, match=r"1\.00 MiB"):
                    make(MIB, np.uint8)
                (cause,) = errors
                assert type(cause) is error
                assert re.search(text, str(cause))
                del cause
        small = np.ones(1000)
        with raised_unraisable() as errors:
            with pytest.raises(MemoryError):
                small.resize(1 << 20, refcheck=False)
            assert len(errors) == 1
        assert small.sum() == 1000


def test_a_block_is_not_handed_out_twice() -> None:
    blocks: list[bigmem.Block] = []

    def same(allocator: bigmem.Allocator, nbytes: int) -> bigmem.Block:
        blocks.append(blocks[0] if blocks else bigmem.Block(bytearray(nbytes), allocator=allocator))
        return blocks[0]

    with bigmem.use(Misbehaving(same)):
        array = np.ones(MIB, np.uint8)
        with raised_unraisable() as errors:
            with pytest.raises(MemoryError):
                np.zeros(MIB, np.uint8)
            assert "where NumPy has one" in str(errors[0])
        assert array.all()
        with pytest.raises(bigmem.InvalidRelease):
            blocks[0].release()
    blocks.clear()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_is_no_error_of_the_allocator_is_raised_as_it_is(error: type[BaseException]) -> None:
    def interrupted(allocator: bigmem.Allocator, nbytes: int) -> bigmem.Block:
        raise error("now")

    with bigmem.use(Misbehaving(interrupted)):
        with pytest.raises(error, match="now"):  # once NumPy has returned
            np.ones(MIB, np.uint8)


def test_an_error_of_a_signal_handler_is_not_the_allocators(allocator: bigmem.Allocator) -> None:
    class Alarm(Exception):
        pass

    def ring(*_: object) -> None:
        raise Alarm

    previous = signal.signal(signal.SIGALRM, ring)
    bigmem.install(allocator, min_bytes=KIB)
    rung = 0
    try:
        if allocator._quick() is not None:  # others run Python code, where handlers may run too
            for _ in range(50):
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.0005)
                    while True:
                        np.ones(2 * KIB, np.uint8)
                except Alarm:
                    rung += 1
            assert rung == 50
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def test_an_allocator_may_use_arrays_of_its_own() -> None:
    class Scribbling(Counting):
        def allocate(
            self, nbytes: SupportsIndex | str, *, alignment: int = 64, zeroed: bool = False
        ) -> bigmem.Block:
            np.ones(4 * MIB).sum()
            return super().allocate(nbytes, alignment=alignment, zeroed=zeroed)

    allocator = Scribbling()
    bigmem.install(allocator)
    np.ones(2 * MIB, np.uint8)
    assert allocator.sizes == [2 * MIB]


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("served", [False, True])
@pytest.mark.parametrize("how", ["use", "install"])
def test_an_array_is_not_resized_by_its_own_resizing(
    how: str, served: bool, elsewhere: bool
) -> None:
    arrays: list[np.ndarray[Any, Any]] = []
    refused: list[str] = []

    def resize_again() -> None:
        for nbytes in (8 * MIB, 100):
            try:
                arrays[0].resize(nbytes, refcheck=False)
            except MemoryError as error:
                refused.append(str(error))

    class Meddling(Counting):
        def allocate(
            self, nbytes: SupportsIndex | str, *, alignment: int = 64, zeroed: bool = False
        ) -> bigmem.Block:
            if nbytes == 4 * MIB and elsewhere:
                thread = threading.Thread(target=resize_again)
                thread.start()
                thread.join()
            elif nbytes == 4 * MIB:
                resize_again()
            return super().allocate(nbytes, alignment=alignment, zeroed=zeroed)

    if how == "install":
        bigmem.install(Meddling())
    with bigmem.use(Meddling()) if how == "use" else contextlib.nullcontext():
        before = 2 * MIB if served else 2 * KIB
        array = np.ones(before, np.uint8)
        arrays.append(array)
        array.resize(4 * MIB, refcheck=False)
    assert len(refused) == 2
    for nbytes in (4 * MIB, 3 * MIB):
        array.resize(nbytes, refcheck=False)
        assert array.nbytes == nbytes
        assert array[:before].all()
        assert not array[before:].any()
    arrays.clear()  # to which the allocator of the array refers


def test_text_is_not_copied_at_every_step_that_it_grows_by() -> None:
    numbers = 1 << 20
    allocator = Counting()
    with bigmem.use(allocator):
        array = np.fromstring("7 " * numbers, sep=" ")
    assert array.nbytes == 8 * numbers
    assert (array == 7).all()
    # From 1 MiB to 8 by a quarter each, and once more to what there is: not by 4096 numbers.
    assert 4 <= len(allocator.sizes) <= 16
    assert allocator.sizes[-1] == array.nbytes


def test_text_grows_to_the_last_byte_that_there_is() -> None:
    limit = 9 * MIB

    class Scarce(Counting):
        def allocate(
            self, nbytes: SupportsIndex | str, *, alignment: int = 64, zeroed: bool = False
        ) -> bigmem.Block:
            if int(nbytes) > limit:
                raise bigmem.OutOfMemory("no more")
            return super().allocate(nbytes, alignment=alignment, zeroed=zeroed)

    with bigmem.use(Scarce()), raised_unraisable() as errors:
        array = np.fromstring("7 " * (limit // 8 - 4096), sep=" ")
        assert (array == 7).all()
        assert not errors


def test_an_error_in_flight_survives_a_release() -> None:
    class Noisy(Counting):
        def allocate(
            self, nbytes: SupportsIndex | str, *, alignment: int = 64, zeroed: bool = False
        ) -> bigmem.Block:
            block = bytearray(int(nbytes))
            return bigmem.Block(block, allocator=self, on_release=lambda: int("none"))

    def drop() -> None:
        array = np.ones(MIB, np.uint8)
        array[0] = array[MIB]

    with bigmem.use(Noisy()), raised_unraisable() as errors:
        with pytest.raises(IndexError):
            drop()
        gc.collect()
        assert [type(error) for error in errors] == [ValueError]


def test_tracemalloc_accounts_for_numpys_memory(allocator: bigmem.Allocator) -> None:
    numpys_domain = 389047

    def traced() -> int:
        snapshot = tracemalloc.take_snapshot().filter_traces(
            [tracemalloc.DomainFilter(True, numpys_domain)]
        )
        return sum(trace.size for trace in snapshot.traces)

    tracemalloc.start()
    try:
        with bigmem.use(allocator):
            before = traced()
            array = np.ones(2 * MIB, np.uint8)
            assert traced() - before == 2 * MIB
            array.resize(3 * MIB, refcheck=False)
            assert traced() - before == 3 * MIB
            del array
            assert traced() - before == 0
    finally:
        tracemalloc.stop()


def test_arrays_are_in_the_leak_report() -> None:
    with bigmem.use(bigmem.make("recycle")):
        array = np.ones(3 * MIB, np.uint8)
    (block,) = (block for block in bigmem.live_blocks() if block.nbytes == 3 * MIB)
    assert (block.allocator, block.address) == ("recycle", array.ctypes.data)


@pytest.mark.parametrize("name", ["system", "mapped", "dontneed", "deferred", "recycle"])
def test_having_no_memory_is_no_more_than_a_memory_error(name: str) -> None:
    bigmem.install(bigmem.make(name))
    with raised_unraisable() as errors:
        with pytest.raises(MemoryError, match="Unable to allocate"):
            np.ones(1 << 45)
        assert not errors


def test_an_array_shrinks_where_there_is_no_room_for_another() -> None:
    allocator = bigmem.ArenaAllocator(
        pages=bigmem.AnonymousPages(huge="always"), budget=bigmem.Budget("4MiB", timeout=0)
    )
    bigmem.install(allocator)
    array = np.arange(4 * MIB // 8)
    array.resize(MIB // 8 + 1, refcheck=False)
    bigmem.uninstall()
    assert (array == np.arange(MIB // 8 + 1)).all()
