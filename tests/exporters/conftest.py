"""Programs that publish what their allocators hold, and ways of watching them."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator

import pytest

# Two blocks of 4 MiB live, and one of 8 MiB warm, in an arena called recycle.
HOLDING = """
import os, sys
import bigmem
arena = bigmem.make("recycle")
kept = [arena.allocate("4MiB") for _ in range(2)]
bigmem.ones(1 << 20, allocator=arena)
"""
MIB = 1 << 20


@pytest.fixture
def start() -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Start a program that holds memory, prints a line and waits for its input to end.

    It is killed, if need be, and must have written nothing to its standard error.
    """
    started = []

    def begin(
        program: str = "", *, top: str = "1", flags: tuple[str, ...] = ()
    ) -> "subprocess.Popen[str]":
        code = (
            HOLDING + textwrap.dedent(program) + "\nprint('ready', flush=True)\nsys.stdin.read()\n"
        )
        child = subprocess.Popen(
            [sys.executable, *flags, "-c", code],
            env={**os.environ, "BIGMEM_TOP": top},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(child)
        assert child.stdout is not None
        for line in child.stdout:
            if line == "ready\n":
                break
            child.said = line  # type: ignore[attr-defined]
        return child

    yield begin
    for child in started:
        child.kill()
        _, told = child.communicate(timeout=60)
        assert told == ""
