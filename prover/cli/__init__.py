"""The command line of the prover: one module a verb (see `bigmem.cli._command`)."""

from bigmem.cli._command import Command, tell
from bigmem.terminal import one_line
from prover.errors import ProverError

__all__ = ["main", "one_line", "tell", "warn"]

_COMMAND = Command("prover", "Groth16 proofs of snarkjs files, checked.", __name__, ProverError)
main = _COMMAND.main
warn = _COMMAND.warn
