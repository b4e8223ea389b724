"""The command line of bigmem: one module a verb (see `bigmem.cli._command`)."""

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code (see `bigmem.cli._command.Command.main`)."""
    # Not imported with the package: every program under `bigmem run` imports that.
    from bigmem import BigmemError
    from bigmem.cli._command import Command

    summary = "Any NumPy program, unchanged, on allocators for huge arrays."
    return Command("bigmem", summary, __name__, BigmemError).main(argv)
