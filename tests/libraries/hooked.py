"""A pytest plugin: the whole run with bigmem's hook on, and in the end what the hook has served.

    pytest -p hooked --bigmem-allocator recycle --bigmem-min-bytes 1 --pyargs numpy.ma

Without an allocator's name it leaves NumPy to what `bigmem run` has installed.
"""

import pytest

import bigmem


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--bigmem-allocator")
    parser.addoption("--bigmem-min-bytes", default="1MiB")


def pytest_configure(config: pytest.Config) -> None:
    if name := config.getoption("bigmem_allocator"):
        # The process default, so that it stays open.
        bigmem.set_allocator(bigmem.make(name))
        bigmem.install(min_bytes=config.getoption("bigmem_min_bytes"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    stats = bigmem.stats()
    terminalreporter.write_line(f"hooked: {stats.allocations} allocations, {stats.live} bytes live")
