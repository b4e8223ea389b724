"""The handler's functions themselves, called as NumPy calls them, and as it had better not."""

import ctypes
import threading
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bigmem
from bigmem import _core, numpy_hook

pytestmark = pytest.mark.usefixtures("uninstalled")

MIN_BYTES = 5000
SIZES = st.one_of(st.integers(1, 2 * MIN_BYTES), st.integers(1, 8 << 20))
Prototype = Callable[..., type["ctypes._CFuncPtr"]]


class Functions:
    """malloc, calloc, realloc and free of a handler, with the GIL or without it."""

    def __init__(self, address: int, prototype: Prototype) -> None:
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        slots = (ctypes.c_void_p * 5).from_address(address)
        self.context = slots[0]
        self._malloc = prototype(pointer, pointer, size)(slots[1])
        self._calloc = prototype(pointer, pointer, size, size)(slots[2])
        self._realloc = prototype(pointer, pointer, pointer, size)(slots[3])
        self._free = prototype(None, pointer, pointer, size)(slots[4])

    def malloc(self, nbytes: int) -> int:
        return self._malloc(self.context, nbytes) or 0

    def calloc(self, count: int, nbytes: int) -> int:
        return self._calloc(self.context, count, nbytes) or 0

    def realloc(self, address: int | None, nbytes: int) -> int:
        return self._realloc(self.context, address, nbytes) or 0

    def free(self, address: int | None, nbytes: int) -> None:
        self._free(self.context, address, nbytes)


@pytest.fixture(params=["with the GIL", "without"])
def functions(request: pytest.FixtureRequest) -> Functions:
    """Those in NumPy's default handler."""
    assert numpy_hook.mechanism() == "default handler"
    prototype = ctypes.PYFUNCTYPE if request.param == "with the GIL" else ctypes.CFUNCTYPE
    return Functions(_core.numpy_default()[2], prototype)


def write(address: int, text: bytes) -> None:
    ctypes.memmove(address, text, len(text))


def read(address: int, nbytes: int) -> bytes:
    return ctypes.string_at(address, nbytes)


def test_free_of_nothing_and_of_wrong_sizes(functions: Functions) -> None:
    allocator = bigmem.make("recycle")
    bigmem.install(allocator, min_bytes=MIN_BYTES)
    functions.free(None, 0)
    functions.free(None, 1 << 20)
    for hint in (0, 1, MIN_BYTES - 1, 1 << 40):
        functions.free(functions.malloc(1 << 20), hint)
        functions.free(functions.malloc(8), hint)
    assert allocator.stats().allocations == allocator.stats().releases == 4


def test_requests_that_overflow_are_refused(functions_pair: tuple[Functions, Functions]) -> None:
    bigmem.install(min_bytes=1)
    assert functions_pair[0].calloc(1 << 40, 1 << 40) == 0


def test_realloc_of_nothing_allocates(functions: Functions) -> None:
    allocator = bigmem.make("system")
    bigmem.install(allocator, min_bytes=MIN_BYTES)
    address = functions.realloc(None, MIN_BYTES)
    assert allocator.stats().live == MIN_BYTES
    functions.free(address, 0)


def test_what_was_handed_out_comes_back_after_uninstall(functions: Functions) -> None:
    allocator = bigmem.make("deferred")
    bigmem.install(allocator, min_bytes=MIN_BYTES)
    addresses = [functions.malloc(size) for size in (8, MIN_BYTES, 1 << 20)]
    write(addresses[2], b"text")
    bigmem.uninstall()
    addresses[2] = functions.realloc(addresses[2], 2 << 20)
    assert read(addresses[2], 4) == b"text"
    for address in addresses:
        functions.free(address, 1)
    assert allocator.stats().allocations == allocator.stats().releases == 2


class Ranges:
    """What the functions have handed out, marked at both ends."""

    def __init__(self) -> None:
        self.marks: dict[tuple[int, int], bytes] = {}

    def add(self, address: int, nbytes: int) -> None:
        assert address
        assert address % 16 == 0
        assert all(address + nbytes <= a or a + n <= address for a, n in self.marks)
        mark = bytes([len(self.marks) % 251 + 1]) * min(nbytes, 64)
        write(address, mark)
        write(address + nbytes - len(mark), mark)
        self.marks[address, nbytes] = mark

    def take(self, number: int) -> tuple[int, int, bytes]:
        address, nbytes = list(self.marks)[number]
        mark = self.marks.pop((address, nbytes))
        assert read(address, len(mark)) == read(address + nbytes - len(mark), len(mark)) == mark
        return address, nbytes, mark


@pytest.mark.parametrize("name", ["system", "mapped", "dontneed", "deferred", "recycle"])
@settings(max_examples=50)
@given(data=st.data())
def test_any_order_of_calls_keeps_contents_and_loses_nothing(
    functions_pair: tuple[Functions, Functions], name: str, data: st.DataObject
) -> None:
    allocator = bigmem.make(name)
    ranges = Ranges()
    try:
        for _ in range(data.draw(st.integers(1, 30))):
            functions = data.draw(st.sampled_from(functions_pair))
            step = data.draw(st.sampled_from(["malloc", "calloc", "realloc", "free", "switch"]))
            nbytes = data.draw(SIZES)
            if step == "switch":
                bigmem.install(allocator, data.draw(st.sampled_from([1, MIN_BYTES, 1 << 20])))
            elif step == "malloc":
                ranges.add(functions.malloc(nbytes), nbytes)
            elif step == "calloc":
                address = functions_pair[0].calloc(nbytes, 1)  # NumPy's own gives the GIL up
                assert not any(read(address, nbytes))
                ranges.add(address, nbytes)
            elif not ranges.marks:
                bigmem.uninstall()
            else:
                number = data.draw(st.integers(0, len(ranges.marks) - 1))
                wrong = data.draw(st.sampled_from([None, 0, 1]))
                # No draw from here on, for that may end the example: nobody would free it.
                address, before, mark = ranges.take(number)
                if step == "free":
                    functions.free(address, before if wrong is None else wrong)
                else:
                    address = functions.realloc(address, nbytes)
                    assert read(address, min(len(mark), nbytes)) == mark[:nbytes]
                    ranges.add(address, nbytes)
    finally:
        for address, nbytes in ranges.marks:
            functions_pair[1].free(address, nbytes)
        bigmem.uninstall()
    assert allocator.stats().allocations == allocator.stats().releases
    assert _core.numpy_ranges() == 0
    allocator.close()


@pytest.fixture(scope="module")
def functions_pair() -> tuple[Functions, Functions]:
    assert numpy_hook.mechanism() == "default handler"
    address = _core.numpy_default()[2]
    return Functions(address, ctypes.PYFUNCTYPE), Functions(address, ctypes.CFUNCTYPE)


def test_many_threads_without_the_gil(functions_pair: tuple[Functions, Functions]) -> None:
    allocator = bigmem.make("recycle")
    bigmem.install(allocator, min_bytes=MIN_BYTES)
    failures: list[str] = []

    def work(number: int) -> None:
        mark = bytes([number]) * 16
        for turn in range(200):
            functions = functions_pair[turn % 2]
            nbytes = 2000 + turn * 700  # NumPy's own keep a cache of smaller ones, under the GIL
            address = functions.malloc(nbytes)
            write(address, mark)
            address = functions.realloc(address, nbytes * 3)
            if read(address, 16) != mark:
                failures.append(f"thread {number}, turn {turn}")
            functions.free(address, nbytes)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert allocator.stats().allocations == allocator.stats().releases > 0


def test_the_address_that_a_moving_block_leaves_is_anybodys(run_python: Callable[..., str]) -> None:
    run_python(
        """
        import ctypes, random, sys, threading
        import bigmem
        from bigmem import _core
        from test_numpy_handler import Functions, read, write

        sys.setswitchinterval(1e-5)
        allocator = bigmem.make("mapped")
        bigmem.install(allocator, min_bytes=4096)
        functions = Functions(_core.numpy_default()[2], ctypes.CFUNCTYPE)
        failures = []

        def work(number):
            rng = random.Random(number)
            mark = bytes([number]) * 64
            for _ in range(30):
                address = functions.malloc(1 << 20)
                write(address, mark)
                for _ in range(10):
                    address = functions.realloc(address, rng.randrange(1 << 20, 8 << 20))
                    if read(address, 64) != mark:
                        failures.append(number)
                functions.free(address, 0)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 7)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        assert allocator.stats().allocations == allocator.stats().releases > 0
        """
    )
