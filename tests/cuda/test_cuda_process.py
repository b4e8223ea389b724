"""Imports, forks and exits."""

from collections.abc import Callable


def test_importing_touches_no_library(run: Callable[..., str]) -> None:
    run(
        """
        import sys
        import bigmem
        loaded = set(sys.modules)
        assert not {name for name in loaded if name.startswith(("bigmem.cuda", "cuda", "cupy"))}
        import bigmem.cuda
        loaded = {name.split(".")[0] for name in sys.modules}
        assert not loaded & {"cuda", "cupy", "torch"}
        """,
        prelude="",
    )


def test_a_child_has_no_pinned_memory_and_no_driver(run: Callable[..., str]) -> None:
    run(
        """
        allocator = PinnedAllocator()
        kept = bigmem.full(1 << 20, 7, np.uint8, allocator=allocator)
        warm = allocator.allocate(20 << 20)
        pending = bigmem.full(1 << 20, 8, np.uint8, allocator=allocator)
        fake.submit()
        warm.release()
        del pending
        stream = fake.stream()
        fake.submit(stream)
        event = driver.loaded().fences.record(stream)

        def child(action):
            sys.stdout.flush()
            pid = os.fork()
            if pid:
                return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            try:
                action()
            except BaseException as error:
                print(error)
                os._exit(1)
            return sys.exit(0)

        def touch():
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            kept[0] = 1

        def live_on():
            global kept
            calls = fake.calls()
            array = bigmem.full(1 << 22, 3, np.uint8)
            assert array.sum() == 3 << 22
            for action in (lambda: allocator.allocate(100), PinnedAllocator,
                           lambda: record(array, stream), lambda: allocator.prefault(100),
                           lambda: bigmem.cuda.install_cupy(allocator),
                           lambda: bigmem.cuda.upload([array], [(1 << 20, array.nbytes)], stream)):
                try:
                    action()
                except bigmem.BigmemError as error:
                    assert "forked" in str(error), error
                else:
                    raise AssertionError
            with capturing():
                pass
            assert event.done
            del kept
            gc.collect()
            assert allocator.flush(5)
            allocator.trim()
            assert bigmem.flush(5)
            assert allocator.stalls == 0
            assert fake.calls() == calls

        import resource
        assert child(touch) == -signal.SIGSEGV
        assert child(live_on) == 0
        assert (kept == 7).all()
        # Over once more, with nothing released in the child: it exits by itself.
        assert child(lambda: None) == 0
        fake.finish()
        assert allocator.flush(10)
        assert (kept == 7).all()
        """
    )


def test_a_child_gives_up_idle_pinned_memory_without_the_driver(run: Callable[..., str]) -> None:
    """Whoever was told of forks first: here an ordinary allocator, which gives up its own."""
    run(
        """
        import time
        array = bigmem.empty(4 << 20, np.uint8)
        del array
        allocator = PinnedAllocator()
        allocator.allocate(8 << 20).release()
        assert allocator.flush(10)
        kept = allocator.allocate(2 << 20)  # of the same chunk, whose rest is warm
        calls = fake.calls()
        pid = os.fork()
        if pid == 0:
            os._exit(0 if fake.calls() == calls else 2)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        """
    )


def test_a_child_may_be_the_first_to_use_it(run: Callable[..., str]) -> None:
    run(
        """
        pid = os.fork()
        if pid:
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        block = PinnedAllocator().allocate(1 << 22)
        memoryview(block)[0] = 1
        """
    )


def test_exit_with_work_under_way_is_quick_and_quiet(run: Callable[..., str]) -> None:
    run(
        """
        import atexit
        begin = time.monotonic()
        stream = fake.stream()
        fake.submit(stream)
        for mechanism in ("vmm", "register", "alloc"):
            allocator = PinnedAllocator(mechanism=mechanism)
            kept = allocator.allocate("8MiB")
            array = bigmem.ones(1 << 20, allocator=allocator)
            record(array, stream)
            del array
            allocator.allocate("3MiB").release()
        keep = PinnedAllocator()
        last = keep.allocate("1MiB")
        record(last, stream)
        atexit.register(lambda: None if time.monotonic() - begin < 20 else os._exit(9))
        """
    )


# An upload that never ends, on a GPU that does what it is told at once.
ENDLESS = """
import itertools
from bigmem.cuda import upload

host = np.ones(32 << 20, np.uint8)
target = np.zeros(32 << 20, np.uint8)
target_pair = target.ctypes.data, target.nbytes
stream = fake.stream(blocking=False)

def work():
    while True:
        fake.finish(stream, 1)
        time.sleep(0.0005)

def copy():
    upload(itertools.repeat(host), itertools.repeat(target_pair), stream, chunk=1 << 20)

for body in (work, copy):
    threading.Thread(target=body, daemon=True).start()
wait_for(lambda: fake.calls("cuMemcpyHtoDAsync") > 50)
"""


def test_exit_in_the_midst_of_an_upload_is_quiet(run: Callable[..., str]) -> None:
    run(ENDLESS)


def test_no_upload_goes_on_while_the_process_ends(run: Callable[..., str]) -> None:
    """The driver may be unmapping by then what its threads would write to."""
    run(
        ENDLESS
        + """
_core.end_workers()
calls = fake.calls("cuMemcpyHtoDAsync")
time.sleep(0.1)
assert fake.calls("cuMemcpyHtoDAsync") == calls
target[:] = 0
upload([host], [target_pair], fake.stream(), depth=32)  # one that begins later is made
fake.finish()
assert target.all()
"""
    )


def test_a_handler_that_forks_leaves_no_child_waiting_for_threads(run: Callable[..., str]) -> None:
    """The child has not got the threads of the upload in which the signal arrived."""
    run(
        ENDLESS
        + """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # that there are threads is the point
children = []

def fork(*_):
    children.append(os.fork())
    if children[0]:
        raise KeyboardInterrupt
    children.append(fake.own_calls())  # which takes no lock

signal.signal(signal.SIGUSR1, fork)
threading.Timer(0.2, lambda: signal.raise_signal(signal.SIGUSR1)).start()
try:
    upload([host] * 9, [target_pair] * 9, fake.stream())
except KeyboardInterrupt:
    pass
except bigmem.BigmemError as error:
    os._exit(0 if "forked" in str(error) and fake.own_calls() == children[1] else 1)
end = time.monotonic() + 20
while not (ended := os.waitpid(children[0], os.WNOHANG))[0]:
    if time.monotonic() > end:
        os.kill(children[0], signal.SIGKILL)
    time.sleep(0.01)
assert os.waitstatus_to_exitcode(ended[1]) == 0, ended
"""
    )
