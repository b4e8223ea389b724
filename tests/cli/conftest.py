"""Programs run twice: by Python itself, and as `bigmem run` starts them."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import pytest

from bigmem.cli import main

# How many allocations of bigmem's serve an array of NumPy's: 1 under the hook, else 0.
COUNT = """
def count():
    import numpy
    import bigmem  # by itself it changes nothing
    before = bigmem.stats().allocations
    numpy.ones(1 << 20)
    return bigmem.stats().allocations - before
"""


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


class _Started(BaseException):
    """Instead of replacing the process of the tests."""


@dataclass
class Programs:
    """Runs programs in a folder of their own.

    The second way is what `bigmem run` passes to `execve`, to spare its own start-up: that it does
    so is tested apart.
    """

    folder: Path
    monkeypatch: pytest.MonkeyPatch
    counting: ClassVar[str] = COUNT

    def write(self, name: str, text: str) -> str:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return name

    def started(
        self, *words: str, env: Mapping[str, str] | None = None
    ) -> tuple[list[str], dict[str, str]]:
        """The words and the environment that ``bigmem run WORDS`` goes on with."""
        seen: list[tuple[list[str], dict[str, str]]] = []

        def execve(_: str, arguments: list[str], environment: dict[str, str]) -> None:
            seen.append((arguments, environment))
            raise _Started

        with self.monkeypatch.context() as patch:
            patch.setattr(os, "execve", execve)
            for name, value in (env or {}).items():
                patch.setenv(name, value)
            with pytest.raises(_Started):
                main(["run", *words])
        return seen[0]

    def start(
        self, words: Sequence[str], env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            words,
            cwd=self.folder,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(self, process: subprocess.Popen[str], stdin: str = "") -> Outcome:
        with process:
            try:
                out, err = process.communicate(stdin, timeout=120)
            finally:
                process.kill()
        return Outcome(process.returncode, out, err)

    def hooked(self, *words: str, env: Mapping[str, str] | None = None) -> Outcome:
        return self.finish(self.start(*self.started(*words, env=env)))

    def same(
        self,
        *words: str,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
        python: str = sys.executable,
    ) -> Outcome:
        """Run a program both ways; what it leaves must not differ."""
        ours, environment = self.started(*words, env=env)
        both = [
            self.start([python, *words], os.environ | (env or {})),
            self.start([python, *ours[1:]], environment),
        ]
        plain, hooked = [self.finish(process, stdin) for process in both]
        assert hooked == plain
        return plain

    def output(self, program: str, *words: str, env: Mapping[str, str] | None = None) -> str:
        """What a program prints under `bigmem run`; it must end well and complain of nothing."""
        script = self.write("program.py", self.counting + textwrap.dedent(program))
        done = self.hooked(script, *words, env=env)
        assert (done.code, done.err) == (0, ""), done.err + done.out
        return done.out


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    # As most people run it: what a user's environment adds is set by the test.
    for name in ("BIGMEM_ALLOCATOR", "BIGMEM_STARTUP", "PYTHONPATH", "PYTHONUNBUFFERED"):
        monkeypatch.delenv(name, raising=False)
    return Programs(tmp_path, monkeypatch)


@pytest.fixture
def refused(capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run `bigmem` with words that it refuses; its one line."""

    def refused(*words: str) -> str:
        try:
            code = main(words)
        except SystemExit as stopped:  # of argparse
            code = int(str(stopped.code))
        out, err = capfd.readouterr()
        assert (code, out) == (2, "")
        assert len(err.splitlines()) == 1, err
        return err

    return refused
