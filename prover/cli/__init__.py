"""The command line of the prover.

A verb is one module of this package: its docstring's first line is its summary, and it defines
``configure(parser)`` and ``run(arguments) -> exit code``. Verbs import what is heavy in ``run``.
"""

import argparse
import contextlib
import importlib
import io
import os
import pkgutil
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from types import FrameType, ModuleType
from typing import Any, NoReturn, TextIO

from prover.errors import ProverError


class _Stopped(BaseException):
    """SIGTERM or SIGHUP has come: unwinds like an interrupt, so that temporary files go."""


class _Parser(argparse.ArgumentParser):
    """Like every other failure, a wrong command line is told in one line."""

    def __init__(self, **options: Any) -> None:
        # Whoever means --insecure-dev-key must say all of it.
        super().__init__(**options, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {one_line(message)} (see {self.prog} --help)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code.

    Parameters
    ----------
    argv
        The words after the command's name; None for the process's own.

    Returns
    -------
    0 for success, 1 where a verb has a "no" (``verify``), 2 for unusable input or output, 128 and
    the number of the signal that stopped it, as shells have it.
    """
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        # A file's name may hold what the terminal's encoding lacks.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with _unwinding_when_stopped():
            arguments = _parser().parse_args(argv)
            code = int(arguments.run(arguments))
            if sys.stdout is not None:
                sys.stdout.flush()
            return code
    except ProverError as error:
        return _fail(str(error), error.exit_code)
    except MemoryError as error:
        return _fail(str(error) or "not enough memory", 2)
    except KeyboardInterrupt:
        return _fail("interrupted", 128 + signal.SIGINT)
    except _Stopped as stopped:
        return _fail("stopped", 128 + int(stopped.args[0]))
    except OSError as error:
        # Files have errors of their own: this is the standard output, a closed pipe or a full disk.
        _abandon(sys.stdout)
        return _fail(f"the output was cut off: {(error.strerror or str(error)).lower()}", 2)
    except Exception:
        # A defect of ours. The interpreter's own exit code for it, 1, would be verify's "false".
        tell(traceback.format_exc())
        return 2


def warn(message: str) -> None:
    """Print one line that does not change the exit code."""
    tell(f"prover: warning: {one_line(message)}\n")


def tell(text: str) -> None:
    """Write to the standard error, if anyone can be told there: the exit code stands anyway."""
    if sys.stderr is None:
        return
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        _abandon(sys.stderr)


def _abandon(stream: TextIO) -> None:
    """Let what a stream still holds go nowhere: the interpreter must not try to flush it again."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _fail(message: str, exit_code: int) -> int:
    tell(f"prover: {one_line(message)}\n")
    return exit_code


@contextlib.contextmanager
def _unwinding_when_stopped() -> Iterator[None]:
    def stop(number: int, _: FrameType | None) -> NoReturn:
        raise _Stopped(number)

    # Python allows handlers in the main thread only; a signal that is ignored stays so (nohup).
    ours = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if threading.current_thread() is threading.main_thread()
        and signal.getsignal(number) is signal.SIG_DFL
    ]
    for number in ours:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def one_line(message: str) -> str:
    """The message with whatever is not printable, such as a name's newline, escaped."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="prover", description="Groth16 proofs of snarkjs files, checked.")
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    for name, module in _verbs():
        summary = (module.__doc__ or "").splitlines()[0]
        verb = verbs.add_parser(name, help=summary, description=summary)
        module.configure(verb)
        verb.set_defaults(run=module.run)
    return parser


def _verbs() -> list[tuple[str, ModuleType]]:
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return [
        (name.replace("_", "-"), importlib.import_module(f"{__name__}.{name}"))
        for name in names
        if not name.startswith("_")
    ]
