"""Tells how many code blocks of the pages are not run here, and what they lack."""

from collections import Counter

import pytest
from code_blocks import DATA, SHELL, collect


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    code = [block for block in collect()[0] if block.language in ("python", *SHELL, *DATA)]
    lacking = Counter(", ".join(sorted(block.needs)) for block in code if block.needs)
    listed = ", ".join(f"{count} need {what}" for what, count in sorted(lacking.items()))
    terminalreporter.write_line(
        f"code blocks of the pages: {len(code)}, of which {lacking.total()} are not run by "
        f"tests/docs: {listed or 'none'}"
    )
