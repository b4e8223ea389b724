"""Clusters on this machine, of processes or of threads."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from distributed import Client, LocalCluster


@contextmanager
def cluster(**options: Any) -> Iterator[Client]:
    """A client of a fresh cluster that listens on this machine only."""
    options = {"threads_per_worker": 1, "dashboard_address": ":0", **options}
    with same_environment(), LocalCluster(**options) as made, Client(made) as client:
        yield client


@contextmanager
def same_environment() -> Iterator[None]:
    """Undo what nannies do to the environment of their own process: our other tests start some."""
    before = dict(os.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture(scope="module")
def process() -> Iterator[Client]:
    """One worker, in a process with a nanny."""
    with cluster(n_workers=1, threads_per_worker=2, memory_limit="1GiB") as client:
        yield client
