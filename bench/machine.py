"""Which machine a figure comes from, and getting it ready to be measured."""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from bigmem import osmem

MIB = 1 << 20
GIB = 1 << 30
REGIMES = ("4 KiB", "huge")
"""The page regimes that everything is measured in."""

_PR_SET_PDEATHSIG = 1
_PR_SET_THP_DISABLE = 41
_SOURCES = {".py", ".cpp", ".hpp", ".cu", ".cuh"}


def describe() -> dict[str, str | int]:
    """What a reader needs to place the figures: processor, memory, kernel, page settings."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / GIB),
        "kernel": platform.release().partition("-")[0],
        "virtual": _is_virtual(),
        "transparent_hugepage": osmem.transparent_huge_pages(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def summary() -> str:
    """Describe the machine in one line, for the head of a table."""
    m = describe()
    return (
        f"{m['processor']}, {m['cores']} cores, {m['memory_gib']} GiB, Linux {m['kernel']}"
        f"{' (virtual machine)' if m['virtual'] else ''}, THP={m['transparent_hugepage']}, "
        f"Python {m['python']}, NumPy {m['numpy']}"
    )


def warm_up(nbytes: int, threads: int = 1) -> None:
    """Touch `nbytes` of fresh memory once, on so many threads, and give it back.

    A virtual machine pays its host several times a page's usual price the first time a page is
    touched at all; without this the first run measured would pay it for the others.
    """
    step = 256 * MIB
    with ThreadPoolExecutor(threads) as pool:
        # All of it at once, or the same memory would be touched again and again.
        list(pool.map(lambda _: np.ones(step, dtype=np.uint8), range(nbytes // step)))


def warm_up_beside(nbytes: int) -> None:
    """`warm_up` on every core, in another process: what this one has held counts, to Linux, in the
    peaks of those that it starts.
    """
    command = [sys.executable, "-m", "bench.machine", str(nbytes)]
    root = Path(__file__).resolve().parent.parent
    subprocess.run(command, env=regime_environment("4 KiB"), cwd=root, check=True)


def forget_peak() -> None:
    """Begin the record of the highest resident set anew, where the kernel lets us."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def sources(*folders: Path) -> str:
    """Short digest of all source files in some folders: of what version figures are."""
    digest = hashlib.sha256()
    for path in sorted(path for folder in folders for path in folder.rglob("*")):
        if path.suffix in _SOURCES:
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def end_with_parent() -> None:
    """Be killed when the thread that has started this process ends, however it does."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def regime_environment(regime: str) -> dict[str, str]:
    """Return the environment that puts NumPy and bigmem into one of `REGIMES`."""
    return {**os.environ, "NUMPY_MADVISE_HUGEPAGE": "0" if regime == "4 KiB" else "1"}


def forbid_huge_pages() -> None:
    """Have this process get none from now on, whoever asks, and where all memory gets them."""
    ctypes.CDLL(None).prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0)


def keep_to_regime() -> None:
    """Have mallocs, too, use small pages in the regime of these: where all memory gets huge ones,
    `regime_environment` spares only NumPy's and bigmem's.
    """
    if not huge_regime():
        forbid_huge_pages()


def huge_regime() -> bool:
    """Whether this process was started in the regime of huge pages."""
    return os.environ.get("NUMPY_MADVISE_HUGEPAGE") != "0"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _is_virtual() -> bool:
    return " hypervisor " in Path("/proc/cpuinfo").read_text().replace("\n", " ")


def markdown_table(rows: Sequence[Sequence[str]], names: int = 1) -> list[str]:
    """Lines of a table; the first row is its head, the first `names` columns are text."""
    heads, *body = rows
    if any(len(row) != len(heads) for row in body):
        raise ValueError(f"a row is longer or shorter than {heads}")
    rule = "|" + "---|" * names + "---:|" * (len(heads) - names)
    return [f"| {' | '.join(heads)} |", rule, *(f"| {' | '.join(row)} |" for row in body)]


def markdown_page(tables: Mapping[str, Sequence[Sequence[str]]], *more: str) -> str:
    """Tables, by title, and the machine's description, with more lines after it."""
    lines = []
    for title, rows in tables.items():
        lines += [f"**{title}**", "", *markdown_table(rows), ""]
    return "\n".join([*lines, f"Machine: {summary()}.", *more, ""])


def in_regime(regime: str, module: str, *words: str) -> Any:
    """What a module prints as JSON in a fresh process of one of `REGIMES`.

    NumPy and bigmem both need a fresh process to change theirs.
    """
    done = subprocess.run(
        [sys.executable, "-m", module, *words],
        env=regime_environment(regime),
        stdout=subprocess.PIPE,
        check=False,
    )
    if done.returncode:  # it has told why
        raise SystemExit(f"{module} ended with {done.returncode}, on {regime} pages")
    return json.loads(done.stdout)


def main() -> None:
    """Have the host give us memory."""
    from bench.command_line import memory  # which imports this module

    parser = argparse.ArgumentParser(description="Touch fresh memory once, on every core.")
    parser.add_argument("nbytes", type=memory, help="how much, such as 4GiB")
    warm_up(parser.parse_args().nbytes, len(os.sched_getaffinity(0)))


if __name__ == "__main__":
    main()
