"""Reports of what the core's native threads could not do, each kind once a process."""

import os

_MESSAGES = {
    "reclaim_refused": "the system refused to take memory back ({}); it stays warm for reuse, and "
    "AllocatorStats.reclaim_failures counts further cases",
    "reclaim_fell_back": "the system refused advice on memory, perhaps because it was locked; it "
    "was unlocked, or mapped anew, instead",
    "unmap_refused": "the system refused to unmap an address range ({}); it stays reserved",
    "worker_replaced": "a reclaim worker ended unexpectedly and was replaced; "
    "ReclaimPool.replaced counts further cases",
}


def report(kind: str, errno: int) -> None:
    """Log a warning of the core; see `_core.report_incidents_to`."""
    import logging  # milliseconds of start-up, and seldom needed

    logging.getLogger("bigmem").warning(_MESSAGES[kind].format(os.strerror(errno)))
