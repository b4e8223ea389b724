"""The hook beside threads at work: without the GIL, in other interpreters, at a first install."""

from collections.abc import Callable

RunPython = Callable[..., str]


def test_text_is_parsed_once_there_has_been_another_interpreter(run_prepared: RunPython) -> None:
    # Python has stopped telling who holds the GIL by then, and NumPy grows the array without it.
    run_prepared(
        """
        import interpreters
        interpreters.destroy(interpreters.create())
        bigmem.install()
        text = "1 " * 600_000
        assert np.fromstring(text, sep=" ").sum() == 600_000
        with bigmem.use(bigmem.make("mapped"), 4096):
            assert np.fromstring(text, sep=" ").sum() == 600_000
        """
    )


THREADS_WITHOUT_GIL = """
import ctypes, interpreters
from test_numpy_handler import Functions, read, write

allocator = bigmem.make("recycle")
bigmem.install(allocator, min_bytes=5000)
functions = Functions(_core.numpy_default()[2], ctypes.CFUNCTYPE)
failures = []

def work(number):
    mark = bytes([number]) * 16
    for turn in range(300):
        nbytes = 2000 + turn * 1000
        address = functions.malloc(nbytes)
        write(address, mark)
        address = functions.realloc(address, nbytes * 3)
        if read(address, 16) != mark:
            failures.append((number, turn))
        functions.free(address, nbytes)

threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 7)]
sys.setswitchinterval(1e-5)
interpreter = interpreters.create()
{meanwhile}
for thread in threads:
    thread.join()
assert not failures, failures
assert allocator.stats().allocations == allocator.stats().releases > 0
"""


def test_threads_allocate_without_the_gil_once_there_has_been_another_interpreter(
    run_prepared: RunPython,
) -> None:
    meanwhile = """
interpreters.destroy(interpreter)
for thread in threads:
    thread.start()
"""
    run_prepared(THREADS_WITHOUT_GIL.format(meanwhile=meanwhile))


def test_threads_allocate_without_the_gil_while_another_interpreter_runs(
    run_prepared: RunPython,
) -> None:
    meanwhile = """
for thread in threads:
    thread.start()
program = "import time; end = time.monotonic() + 0.5\\nwhile time.monotonic() < end: pass"
interpreters.run(interpreter, program)
interpreters.destroy(interpreter)
"""
    run_prepared(THREADS_WITHOUT_GIL.format(meanwhile=meanwhile))


def test_a_first_install_beside_threads_that_allocate(run_prepared: RunPython) -> None:
    # What they get meanwhile must go back where it came from.
    run_prepared(
        """
        from bigmem.numpy_hook import default_handler
        stop = threading.Event()

        def work():
            kept = []
            while not stop.is_set():
                kept.append(np.ones(20_000))
                if len(kept) == 20:
                    kept.clear()

        threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        sys.setswitchinterval(1e-6)
        for _ in range(5):
            default_handler.edited.cache_clear()  # the next one is a first one again
            sys.setprofile(lambda *_: time.sleep(1e-6))  # the others' turn at each call
            bigmem.install(min_bytes="64KiB")
            sys.setprofile(None)
            assert default_handler.edited()
            bigmem.uninstall()
        stop.set()
        for thread in threads:
            thread.join()
        """
    )


def test_two_threads_install_first_at_once(run_prepared: RunPython) -> None:
    # What the one has installed stays while the other finds out how.
    run_prepared(
        """
        from bigmem.numpy_hook import default_handler
        allocator = bigmem.make("system")
        together = threading.Barrier(2)
        not_served = []

        def work():
            for number in range(20):
                if together.wait() == 0:
                    bigmem.uninstall()
                    default_handler.edited.cache_clear()
                together.wait()
                sys.setprofile(lambda *_: time.sleep(1e-6))  # the other one's turn at each call
                bigmem.install(allocator, 4096)
                sys.setprofile(None)
                array = np.empty(5000)
                if _core.block_at(array.ctypes.data) is None:
                    not_served.append(number)

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not not_served, not_served
        """
    )


def test_a_numpy_that_does_not_use_its_default_handler_is_left_as_it_was(
    run_prepared: RunPython,
) -> None:
    run_prepared(
        """
        import ctypes
        from bigmem import numpy_hook

        _core.numpy_default()  # bigmem knows this handler, and NumPy uses another from here on
        capsule, name = ctypes.py_object(_core.numpy_set(None)), b"mem_handler"
        pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
        pointer_of.restype = ctypes.c_void_p
        known, nbytes = pointer_of(capsule, name), 128 + 5 * 8
        before = ctypes.string_at(known, nbytes)
        other = ctypes.create_string_buffer(before, nbytes)
        ctypes.pythonapi.PyCapsule_SetPointer(capsule, ctypes.byref(other))

        assert numpy_hook.mechanism() == "new threads"
        assert ctypes.string_at(known, nbytes) == before
        allocator = bigmem.make("system")
        bigmem.install(allocator)
        array = np.empty(1 << 20)
        assert allocator.stats().allocations == 1
        """
    )
