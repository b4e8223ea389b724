"""Waiting for what happens in the background."""

import time
from collections.abc import Callable


def wait_for(condition: Callable[[], bool], seconds: float = 20) -> None:
    """Return once the condition holds; fail if it does not in time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)
