"""Other interpreters in this process, by whatever name this Python has for them."""

import sys
from typing import Any

if sys.version_info >= (3, 13):
    import _interpreters as _module  # type: ignore[import-not-found]
else:
    import _xxsubinterpreters as _module


def create() -> Any:
    """One that shares the GIL, as those must that use NumPy."""
    return (
        _module.create("legacy") if sys.version_info >= (3, 13) else _module.create(isolated=False)
    )


def destroy(interpreter: Any) -> None:
    _module.destroy(interpreter)


def run(interpreter: Any, program: str) -> None:
    _module.run_string(interpreter, program)
