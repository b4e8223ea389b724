"""What the server and its worker process say to each other."""

import json
from dataclasses import dataclass
from typing import Any, BinaryIO

LENGTH_BYTES = 8
"""Of the length before an answer, little-endian."""
LARGEST_REQUEST = 1 << 16
Message = dict[str, Any]


@dataclass(frozen=True)
class WorkerSettings:
    """What the worker is started with; sizes in bytes.

    Attributes
    ----------
    folder
        The key directory.
    allocator
        A name that `bigmem.make` knows.
    budget
        What all proofs may hold at a time, warm memory included; None for no limit.
    backend, device_memory, threads
        As `prover.backends.get_backend` takes them.
    """

    folder: str
    allocator: str = "recycle"
    budget: int | None = None
    backend: str = "auto"
    device_memory: int | None = None
    threads: int = 0


def write_answer(file: BinaryIO, message: Message) -> None:
    """Write an answer with its length before it."""
    data = json.dumps(message).encode()
    file.write(len(data).to_bytes(LENGTH_BYTES, "little") + data)
    file.flush()


def refusal(kind: str, reason: str) -> Message:
    """The answer to what cannot be done."""
    return {"refused": kind, "reason": reason}
