"""What a worker does: one proof, on the worker's own key, CPU or GPU, and allocator."""

import os
import threading
import time
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from distributed import get_worker

import bigmem
from prover.backends import get_backend
from prover.backends.base import Backend
from prover.backends.cuda.announce import notify
from prover.cluster.identity import KeyIdentity
from prover.errors import MalformedFile, ProverError, UnsatisfiedCircuit
from prover.formats.container import Container
from prover.formats.wtns import Witness
from prover.formats.zkey import ProvingKey
from prover.pipeline import single
from prover.secrecy import keep_out_of_core_dumps


@dataclass(frozen=True)
class Settings:
    """How proofs are made, as the options of ``prover batch`` of these names say."""

    backend: str = "auto"
    threads: int = 0
    device_memory: int | None = None
    allocator: str | None = None
    key_folder: str | None = None


@dataclass(frozen=True)
class Order:
    """One proof that is to be made.

    Its ``repr`` says nothing of the witness: Dask logs tasks that fail.
    """

    key: KeyIdentity
    witness: str
    content: bytes = field(repr=False)
    settings: Settings


@dataclass(frozen=True)
class Answer:
    """A proof as bytes (see `prover.groth16.Proof`), who made it, and in how many seconds."""

    worker: str
    wall_s: float
    a: bytes
    b: bytes
    c: bytes


@dataclass(frozen=True)
class Refusal:
    """Why there is no proof; ``about_input`` if it would be the same on every worker."""

    worker: str
    message: str
    about_input: bool


def prove(order: Order) -> Answer | Refusal:
    """Make one proof, and check it.

    What is wrong with the input or the worker is an answer, not an exception: Dask would log that
    with the arguments.
    """
    worker = get_worker().address
    keep_out_of_core_dumps()
    start = time.perf_counter()
    try:
        key = _key(order.key, order.settings.key_folder)
        proof = single.prove(
            key,
            _witness(order),
            backend=_backend(key, order.settings),
            allocator=_allocator(order.settings.allocator),
        ).proof
    except (UnsatisfiedCircuit, MalformedFile) as error:
        return Refusal(worker, str(error), about_input=True)
    except (ProverError, bigmem.BigmemError, MemoryError, OSError) as error:
        return Refusal(worker, str(error) or "not enough memory", about_input=False)
    wall = time.perf_counter() - start
    return Answer(worker, wall, proof.a.tobytes(), proof.b.tobytes(), proof.c.tobytes())


_opening = threading.Lock()
_of_thread = threading.local()


def _key(identity: KeyIdentity, folder: str | None) -> ProvingKey:
    path = identity.find(folder)
    with _opening:  # so that it is checked once
        key = _opened(path, identity)
        key.check()
    return key


@lru_cache(maxsize=4)
def _opened(path: Path, identity: KeyIdentity) -> ProvingKey:
    container = Container.open(path)
    # The content is that of the client's file, and so is whatever is wrong with it.
    container.path = identity.name
    return ProvingKey(container)


def _witness(order: Order) -> Witness:
    """The witness in a file without a name, since a reader maps files: it is on no disk."""
    descriptor = os.memfd_create("witness")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(order.content)
        container = Container.open(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
    container.path = order.witness
    return Witness(container)


def _backend(key: ProvingKey, settings: Settings) -> Backend:
    """One for each thread, kept: a GPU's holds the key."""
    if getattr(_of_thread, "made_for", None) != (key, settings):
        _of_thread.backend = None  # first, so that a GPU's memory is free again
        _of_thread.backend = get_backend(
            settings.backend,
            threads=settings.threads or _share_of_cores(),
            domain=key.domain,
            proofs=1 << 20,  # nobody knows here how many will come
            device_memory=settings.device_memory,
            sharers=get_worker().state.nthreads,  # each thread may prove at the same time
            notify=notify,
        )
        _of_thread.made_for = (key, settings)
    backend: Backend = _of_thread.backend
    return backend


def _share_of_cores() -> int:
    """CPU threads of a proof: as many proofs at a time as the worker has threads fill its cores."""
    return max(1, len(os.sched_getaffinity(0)) // get_worker().state.nthreads)


def _allocator(name: str | None) -> bigmem.Allocator:
    return bigmem.get_allocator() if name is None else _made(name)


@lru_cache
def _made(name: str) -> bigmem.Allocator:
    return bigmem.make(name)
