"""The hook covers all threads and all Python children of a program."""

import re

import pytest

WORKERS = """
import multiprocessing, sys
from concurrent.futures import ProcessPoolExecutor

def work(_):
    return count()

def in_a_process(connection):
    connection.send(count())

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    if "first" in sys.argv:
        print(count())
    with context.Pool(1) as pool:
        print(pool.map(work, range(2)))
    with ProcessPoolExecutor(1, context) as pool:
        print(list(pool.map(work, range(2))))
    mine, other = context.Pipe()
    process = context.Process(target=in_a_process, args=(other,))
    process.start()
    print(mine.recv())
    process.join()
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes(programs, method):
    assert programs.output(WORKERS, method) == "[1, 1]\n[1, 1]\n1\n"


def test_processes_forked_under_the_hook(programs):
    assert programs.output(WORKERS, "fork", "first") == "1\n[1, 1]\n[1, 1]\n1\n"


def test_a_fork_is_not_warned_of(programs):
    # Python 3.12 and later warn of forks in a process that has threads, after they have run what
    # modules such as logging register.
    program = """
    import concurrent.futures.thread, logging, os, random, sys, time

    def workers():
        tasks = os.listdir("/proc/self/task")
        names = [open(f"/proc/self/task/{task}/comm").read() for task in tasks]
        return names.count("bigmem-reclaim\\n")

    def wait_for_workers():
        end = time.monotonic() + 20
        while not workers():
            assert time.monotonic() < end, "waited in vain"
            time.sleep(0.005)

    os.register_at_fork(after_in_parent=lambda: None)
    import numpy
    kept = numpy.ones(1 << 20)
    for _ in range(10):
        wait_for_workers()
        child = os.fork()
        if child == 0:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    wait_for_workers()
    """
    assert programs.output(program) == ""


def test_a_python_as_a_child_and_its_child(programs):
    program = """
    import subprocess, sys
    print(count(), flush=True)
    if len(sys.argv) < 4:
        subprocess.run([sys.executable, *sys.argv, "more"], check=True)
    """
    assert programs.output(program, "one") == "1\n1\n1\n"


def test_an_isolated_child_is_left_alone(programs):
    program = """
    import subprocess, sys
    print(count(), flush=True)
    if len(sys.argv) < 2:
        subprocess.run([sys.executable, "-I", *sys.argv, "more"], check=True)
    """
    assert programs.output(program) == "1\n0\n"


def test_threads(programs):
    program = """
    import asyncio, threading
    from concurrent.futures import ThreadPoolExecutor

    before, go = [], threading.Event()
    thread = threading.Thread(target=lambda: go.wait() and before.append(count()))
    thread.start()
    print(count())
    go.set()
    thread.join()
    with ThreadPoolExecutor(1) as pool:
        print(before, pool.submit(count).result(), asyncio.run(asyncio.to_thread(count)))
    """
    assert programs.output(program) == "1\n[1] 1 1\n"


def test_threads_that_import_numpy_at_once(programs):
    program = """
    import importlib.util, sys, threading, warnings  # or an editable installation may hang
    barrier, made = threading.Barrier(8), []

    def work(module):
        barrier.wait()
        __import__(module)
        import numpy
        made.append(numpy.ones(1 << 20))

    threads = [threading.Thread(target=work, args=(name,)) for name in sys.argv[1:] * 4]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    import bigmem
    print(len(made), bigmem.stats().allocations, count())
    """
    assert programs.output(program, "numpy", "numpy.linalg") == "8 8 1\n"
    # Where bigmem waits for NumPy in one thread, NumPy in another does not wait for bigmem.
    for modules in (("numpy", "bigmem"), ("bigmem", "numpy")):
        assert re.fullmatch(r"8 \d 1\n", programs.output(program, *modules))
