"""Work on several threads, where threads can be had."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def side_by_side(
    work: Callable[[Item], Result], items: Sequence[Item], threads: int
) -> list[Result]:
    """The results for all items, in their order.

    If the system refuses a thread, all is done on this one; of some items, again.
    """
    try:
        with ThreadPoolExecutor(threads) as pool:
            started = [pool.submit(work, item) for item in items]
    except RuntimeError:  # no more threads can be started
        return [work(item) for item in items]
    return [one.result() for one in started]
