"""The command line of the prover.

A verb is one module of this package: its docstring's first line is its summary, and it defines
``configure(parser)`` and ``run(arguments) -> exit code``. Verbs import what is heavy in ``run``.
"""

import argparse
import importlib
import os
import pkgutil
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn

from prover.errors import ProverError

_INTERRUPTED = 130
"""128 + SIGINT, as shells have it."""


class _Parser(argparse.ArgumentParser):
    """Like every other failure, a wrong command line is told in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {_one_line(message)} (see {self.prog} --help)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code.

    Parameters
    ----------
    argv
        The words after the command's name; None for the process's own.

    Returns
    -------
    0 for success, 1 where a verb has a "no" (``verify``), 2 for unusable input or output.
    """
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except ProverError as error:
        return _fail(str(error), error.exit_code)
    except MemoryError as error:
        return _fail(str(error) or "not enough memory", 2)
    except KeyboardInterrupt:
        return _fail("interrupted; nothing was written", _INTERRUPTED)
    except BrokenPipeError:
        # Who read our output has gone; the interpreter must not try to flush it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _fail("the output was cut off", 2)


def warn(message: str) -> None:
    """Print one line that does not change the exit code."""
    print(f"prover: warning: {_one_line(message)}", file=sys.stderr)


def _fail(message: str, exit_code: int) -> int:
    print(f"prover: {_one_line(message)}", file=sys.stderr)
    return exit_code


def _one_line(message: str) -> str:
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
