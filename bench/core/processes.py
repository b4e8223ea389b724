"""What fork and exit cost a process that holds memory."""

import os
import subprocess
import sys
import time
import warnings
from functools import partial
from statistics import median

import numpy as np

from bench.core.contenders import DEFERRED, NUMPY, OUT, RECYCLE, Contender
from bench.core.figure import Figure, Found, Results
from bench.core.scale import Scale
from bench.core.steps import WARM_UP, adder, loop, page_faults
from bench.machine import MIB
from bench.timing import milliseconds, timed
from bigmem import osmem

STEPS = 8


def measure_fork(contender: Contender, scale: Scale) -> Found:
    """The fork itself, and the parent's step loop before and after it, while the child sleeps."""
    # Later Pythons warn of forks in any process with threads.
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    # Two results are in use at a time, so that twice this is warm.
    count = scale.forked // 2 // 8
    a, b = np.full(count, 1.0), np.full(count, 2.0)
    step = adder(contender, a, b)
    again = partial(np.add, a, b)
    loop(step, again, WARM_UP)
    before = loop(step, again, STEPS)
    huge = osmem.huge_page_bytes()
    to_parent, to_child = os.pipe()
    start = time.perf_counter()
    child = os.fork()
    if child == 0:
        os.close(to_child)
        os.read(to_parent, 1)  # until the parent closes its end
        os._exit(0)
    forked = time.perf_counter() - start
    faults = page_faults()
    first = timed(step)
    first_faults = page_faults() - faults
    after = loop(step, again, STEPS)
    found = {
        "fork_s": forked,
        "before_s": before["step_s"],
        "first_s": first,
        "after_s": after["step_s"],
        "first_faults": first_faults,
        "after_faults": after["faults"],
        "huge_before_bytes": huge,
        "huge_after_bytes": osmem.huge_page_bytes(),
    }
    os.close(to_child)
    os.waitpid(child, 0)
    os.close(to_parent)
    return found


def fork_cells(found: Found, _: Results) -> list[str]:
    """Times against the loop before the fork."""
    before = found["before_s"]
    return [
        milliseconds(found["fork_s"]),
        milliseconds(before),
        f"{found['first_s'] / before:.2f}",
        f"{found['after_s'] / before:.2f}",
        f"{found['first_faults']:,}",
        f"{found['after_faults']:,.0f}",
        f"{found['huge_before_bytes'] / MIB:.0f} / {found['huge_after_bytes'] / MIB:.0f}",
    ]


# The last line that each program runs says what time it is.
_ENDING = """
import sys, time
import numpy as np
import bigmem
from bench.timing import make_array, touch
nbytes = int(sys.argv[1])
{holding}
print(time.monotonic(), flush=True)
"""
_HOLDING = {
    Contender("numpy, nothing"): "",
    Contender("numpy, live"): "array = touch(make_array(None, nbytes))",
    Contender("deferred, live"): """
array = touch(make_array(bigmem.make("deferred"), nbytes))""",
    Contender("deferred, pending"): """
allocator = bigmem.make("deferred")
array = touch(make_array(allocator, nbytes))
del array""",
    Contender("recycle, live"): """
array = touch(make_array(bigmem.make("recycle"), nbytes))""",
    Contender("recycle, warm"): """
allocator = bigmem.make("recycle")
array = touch(make_array(allocator, nbytes))
del array""",
}


def measure_exit(contender: Contender, scale: Scale) -> Found:
    """Seconds from a program's last statement until its process is gone."""
    program = _ENDING.format(holding=_HOLDING[contender])
    seconds = []
    for _ in range(scale.repeats):
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(scale.exited)], stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        last = float(process.stdout.read())
        if process.wait() != 0:
            raise RuntimeError(f"{contender.name} exited with {process.returncode}")
        seconds.append(time.monotonic() - last)
        process.stdout.close()
    return {"exit_s": median(seconds), "held_bytes": scale.exited}


def exit_cells(found: Found, results: Results) -> list[str]:
    """The time against that of NumPy with as much memory."""
    numpy = results["numpy, live"]["exit_s"]
    return [milliseconds(found["exit_s"]), f"{found['exit_s'] / numpy:.2f}"]


FORK = Figure(
    name="fork",
    title="Fork with 1 GiB warm",
    reading="Time of os.fork, then the loop c = a + b with results of 512 MiB in the parent, while "
    "the child sleeps: its median before the fork, and against that its first iteration after it "
    "and the median of those that follow; page faults of the first and of one that follows; "
    "AnonHugePages of the parent before / after.",
    contenders=(OUT, NUMPY, DEFERRED, RECYCLE),
    measure=measure_fork,
    heads=lambda _: ["fork ms", "step before ms", "first after", "later", "faults first",
                     "faults later", "huge MiB"],
    cells=fork_cells,
    memory=lambda scale: 2 * scale.forked,
)  # fmt: skip
EXIT = Figure(
    name="exit",
    title="Exit with 2 GiB",
    reading="Time from the last statement of a program until its process is gone. A tenth more or "
    "less is noise.",
    contenders=tuple(_HOLDING),
    measure=measure_exit,
    heads=lambda _: ["ms", "against numpy"],
    cells=exit_cells,
    memory=lambda scale: scale.exited,
)
