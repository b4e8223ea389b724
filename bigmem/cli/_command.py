"""What the commands of this project have in common: verbs, errors in one line, exit codes.

A verb is one module of a command's package: its docstring's first line is its summary, and it
defines ``configure(parser)`` and ``run(arguments) -> exit code``. Verbs import what is heavy in
``run``.
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
from dataclasses import dataclass
from types import FrameType, ModuleType
from typing import Any, NoReturn, TextIO

from bigmem.terminal import one_line

UNUSABLE = 2
"""The exit code of what cannot be used, and of a defect."""


class _Stopped(BaseException):
    """SIGTERM or SIGHUP has come: unwinds like an interrupt, so that temporary files go."""


class Parser(argparse.ArgumentParser):
    """Like every other failure, a wrong command line is told in one line.

    Attributes
    ----------
    takes_program
        The verb's options, each of which takes a value, end where a program's words begin: those
        become ``arguments.program``, untouched.
    """

    takes_program = False

    def __init__(self, **options: Any) -> None:
        # Whoever means --insecure-dev-key must say all of it.
        super().__init__(**options, allow_abbrev=False)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's, which cannot stop at ``-m`` by itself."""
        if not self.takes_program:
            return super().parse_known_args(args, namespace)
        options, program = _split(args)
        parsed, unknown = super().parse_known_args(options, namespace)
        parsed.program = program
        if unknown:
            hint = "Python's own go before -m, as in python -X dev -m bigmem"
            self.error(f"there is no option {unknown[0]}; {hint}")
        if not parsed.program:
            self.error("a program is missing: SCRIPT, -m MODULE, -c CODE or -")
        return parsed, unknown

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and exit."""
        self.exit(UNUSABLE, f"{self.prog}: {one_line(message)} (see {self.prog} --help)\n")


@dataclass(frozen=True)
class Command:
    """A command: a name, and a package of verbs.

    Parameters
    ----------
    name
        As the user types it.
    description
        What it is for, in a line.
    package
        The package of its verbs.
    refusal
        The error that is the input's or the machine's, and is told in one line.
    """

    name: str
    description: str
    package: str
    refusal: type[Exception]

    def main(self, argv: Sequence[str] | None = None) -> int:
        """Run one verb and return its exit code.

        Parameters
        ----------
        argv
            The words after the command's name; None for the process's own.

        Returns
        -------
        What the verb returns, 0 for success; 2 for unusable input or output, 128 and the number
        of the signal that stopped it, as shells have it.
        """
        if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
            # A file's name may hold what the terminal's encoding lacks.
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            with _unwinding_when_stopped():
                arguments = self._parser().parse_args(argv)
                code = int(arguments.run(arguments))
                if sys.stdout is not None:
                    sys.stdout.flush()
                return code
        except self.refusal as error:
            return self._fail(str(error), getattr(error, "exit_code", UNUSABLE))
        except MemoryError as error:
            return self._fail(str(error) or "not enough memory", UNUSABLE)
        except KeyboardInterrupt:
            return self._fail("interrupted", 128 + signal.SIGINT)
        except _Stopped as stopped:
            return self._fail("stopped", 128 + int(stopped.args[0]))
        except OSError as error:
            # Files have errors of their own: this is the standard output, a closed pipe or a full
            # disk.
            _abandon(sys.stdout)
            reason = (error.strerror or str(error)).lower()
            return self._fail(f"the output was cut off: {reason}", UNUSABLE)
        except Exception:
            # A defect of ours. The interpreter's own exit code for it, 1, may be a verb's "no".
            tell(traceback.format_exc())
            return UNUSABLE

    def warn(self, message: str) -> None:
        """Print one line that does not change the exit code."""
        tell(f"{self.name}: warning: {one_line(message)}\n")

    def _fail(self, message: str, exit_code: int) -> int:
        tell(f"{self.name}: {one_line(message)}\n")
        return exit_code

    def _parser(self) -> Parser:
        parser = Parser(prog=self.name, description=self.description)
        verbs = parser.add_subparsers(metavar="VERB", required=True)
        for name, module in self._verbs():
            summary = (module.__doc__ or "").partition("\n")[0]  # none under python -OO
            verb = verbs.add_parser(name, help=summary, description=summary)
            module.configure(verb)
            verb.set_defaults(run=module.run)
        return parser

    def _verbs(self) -> list[tuple[str, ModuleType]]:
        package = importlib.import_module(self.package)
        names = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
        return [
            (name.replace("_", "-"), importlib.import_module(f"{self.package}.{name}"))
            for name in names
            if not name.startswith("_")
        ]


def tell(text: str) -> None:
    """Write to the standard error, if anyone can be told there: the exit code stands anyway."""
    if sys.stderr is None:
        return
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        _abandon(sys.stderr)


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """A verb's options, each with its value, and the program's words."""
    index = 0
    while index < len(words):
        word = words[index]
        if word == "--":
            program = words[index + 1 :]
            # Python must not take a script's name for an option of its own.
            named_as_option = bool(program) and not _begins_program(program[0])
            return words[:index], words[index:] if named_as_option else program
        if _begins_program(word):
            break
        holds_value = "=" in word if word.startswith("--") else len(word) > len("-o")
        index += 1 if holds_value or word in ("-h", "--help") else 2
    return words[:index], words[index:]


def _begins_program(word: str) -> bool:
    return not word.startswith("-") or word == "-" or word.startswith(("-m", "-c"))


def _abandon(stream: TextIO) -> None:
    """Let what a stream still holds go nowhere: the interpreter must not try to flush it again."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


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
