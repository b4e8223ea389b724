"""Programs under the profiler, in a process of their own, and made-up accounts of some."""

import os
import subprocess
import tempfile
import textwrap
from collections.abc import Mapping
from pathlib import Path

from hypothesis import strategies as st

from bench import machine
from bigmem.cli import _launch
from bigmem.profile.prices import PagePrices, Prices
from bigmem.profile.record import LineRecord, Record, read

KIB, MIB = 1 << 10, 1 << 20
PRICES = Prices(PagePrices(2e-6, 1e-7, 2e-7), PagePrices(2e-4, 5e-6, 1e-5), True)


def profiled(
    program: str,
    *words: str,
    folder: Path | None = None,
    python: Path | None = None,
    huge: bool = False,
    events: int = 0,
    code: int = 0,
    env: Mapping[str, str] | None = None,
    **config: object,
) -> tuple[Record, list[str]]:
    """The record of a program given as text, and the lines that it printed.

    It must end with this exit code, or minus a signal's number, and write nothing to its standard
    error. Without `words` it is passed with ``-c``, else these name it in its folder.
    """
    with tempfile.NamedTemporaryFile() as ledger:
        settings = {"path": ledger.name, "parent": os.getpid(), "events": events}
        argv, environment = _launch.command(
            words or ["-c", textwrap.dedent(program)], {"profile": settings, **config}
        )
        done = subprocess.run(
            [python or argv[0], *argv[1:]],
            env={**environment, "NUMPY_MADVISE_HUGEPAGE": str(int(huge)), **(env or {})},
            cwd=folder,
            preexec_fn=None if huge else machine.forbid_huge_pages,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert (done.returncode, done.stderr) == (code, ""), done.stderr
        record = read(ledger.name)
    assert record is not None
    return record, done.stdout.splitlines()


def made_up_line(**fields: object) -> LineRecord:
    counts = dict.fromkeys(LineRecord.__dataclass_fields__, 0)
    return LineRecord(**{**counts, "file": "program.py", "line": 1, **fields})  # type: ignore[arg-type]


def made_up(*lines: LineRecord, **fields: object) -> Record:
    """The record of a program that ended well."""
    nothing = {
        "ended": True,
        "tells_huge": True,
        "begin": 10.0,
        "end": 20.0,
        "faults_at_begin": 0,
        "minor_faults": 0,
        "peak": 0,
        "fresh": 0,
        "events": (),
        "events_left_out": 0,
        "stalls": (),
        "threads": {},
        "layers": None,
    }
    return Record(**{**nothing, "lines": lines, **fields})  # type: ignore[arg-type]


_COUNTS = st.integers(0, 1 << 40)
_PAGES = st.floats(0, 1e9)
_SECONDS = st.floats(0, 1e6)


def records() -> st.SearchStrategy[Record]:
    lines = st.builds(
        LineRecord,
        file=st.text(),
        line=st.integers(0, 1 << 20),
        calls=_COUNTS,
        bytes=_COUNTS,
        alloc_s=_SECONDS,
        free_s=_SECONDS,
        gil_free_s=_SECONDS,
        faulted_small=_PAGES,
        faulted_huge=_PAGES,
        touched_small=_PAGES,
        touched_huge=_PAGES,
    )
    return st.builds(
        lambda lines, **fields: made_up(*lines, **fields),
        st.lists(lines, max_size=5),
        tells_huge=st.booleans(),
        peak=_COUNTS,
        fresh=_COUNTS,
    )
