"""The worker process: it holds the keys, the allocator and the backend, and makes the proofs.

It reads requests, JSON with a file descriptor at most, from the socket that is its standard input,
and writes answers, JSON with its length before it, to what was its standard output. When the
socket ends it ends: then nobody is left who wants an answer.
"""

import contextlib
import json
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

import bigmem
from bigmem import osmem
from bigmem.layers import Span, observe
from prover.backends import GPU_DOMAIN, GPU_WORK, get_backend
from prover.backends.base import Backend
from prover.backends.cuda.announce import notify
from prover.errors import FileError, ProverError, UnreadableFile, UsageError, reason_of
from prover.formats import proof_json
from prover.formats.zkey import ProvingKey
from prover.pipeline import single
from prover.service.keys import SUFFIX, KeyFacts, locate
from prover.service.protocol import (
    LARGEST_REQUEST,
    Message,
    WorkerSettings,
    refusal,
    write_answer,
)
from prover.service.secret import mapped_witness


class ChangedKey(FileError):
    """A key's file is not the one that was checked when the server started."""


class Worker:
    """Opens keys and makes proofs, one at a time, in the order of the requests."""

    def __init__(
        self, settings: WorkerSettings, requests: socket.socket, answers: BinaryIO
    ) -> None:
        self._settings = settings
        self._requests = requests
        self._answers = answers
        self._lock = threading.Lock()
        self._tasks: queue.SimpleQueue[tuple[Message, list[int]]] = queue.SimpleQueue()
        self._keys: dict[str, ProvingKey] = {}
        self._allocator = make_allocator(settings.allocator, settings.budget)
        self._small = self._backend(1)
        self._large: Backend | None = None
        self._ended_layers: list[str] = []
        observe(self._note)

    def _backend_for(self, key: ProvingKey) -> Backend:
        if self._settings.backend != "auto" or key.domain < GPU_DOMAIN:
            return self._small  # "cuda" too: of two devices on one GPU each wants all its memory
        if self._large is None:
            self._large = self._backend(GPU_DOMAIN)
        return self._large

    def _backend(self, domain: int) -> Backend:
        # Of a service no one knows how many proofs it will make: a GPU's start pays off.
        return get_backend(
            self._settings.backend,
            threads=self._settings.threads,
            domain=domain,
            proofs=GPU_WORK,
            device_memory=self._settings.device_memory,
            notify=notify,
        )

    def run(self) -> None:
        """Serve until the socket ends, which ends the process."""
        self._tell({"started": True, "pid": os.getpid()})
        threading.Thread(target=self._listen, name="requests", daemon=True).start()
        while True:
            request, descriptors = self._tasks.get()
            self._tell(self._answer(request, descriptors))
            # Or the next proof would take fresh memory, while this one's is being overwritten.
            self._allocator.flush()

    def _listen(self) -> None:
        while True:
            message, descriptors, _, _ = socket.recv_fds(self._requests, LARGEST_REQUEST, 1)
            if not message:
                os._exit(0)
            request = json.loads(message)
            if request["do"] == "look":
                # Not behind the proof under way: what it holds is what people want to see.
                self._tell({"look": self._look()})
            else:
                self._tasks.put((request, descriptors))

    def _tell(self, message: Message) -> None:
        with self._lock:
            write_answer(self._answers, message)

    def _note(self, span: Span) -> None:
        self._ended_layers.append(span.name)

    def _look(self) -> Message:
        return {
            "memory": asdict(self._allocator.stats()),
            "resident": osmem.resident_bytes(),
            "layers": list(self._ended_layers),
        }

    # What can be asked

    def _answer(self, request: Message, descriptors: list[int]) -> Message:
        try:
            if request["do"] == "open":
                return self._open(request["key"])
            return self._prove(request["key"], request["file"], *descriptors)
        except (ProverError, MemoryError) as error:
            # The names of these errors are part of the API.
            return refusal(type(error).__name__, str(error) or "not enough memory")
        except Exception as error:
            # A defect. Its message might quote a witness; where it happened is told, no more.
            stack = "".join(traceback.format_tb(error.__traceback__))
            print(f"{stack}{type(error).__name__}", file=sys.stderr, flush=True)
            reason = f"a defect of the prover ({type(error).__name__}); its log says where"
            return refusal("Defect", reason)
        finally:
            self._ended_layers.clear()
            for descriptor in descriptors:
                os.close(descriptor)

    def _open(self, name: str) -> Message:
        place = locate(Path.cwd(), name)
        # Before it is opened: one that is exchanged meanwhile is then one that has changed.
        file = _identity(place)
        self._keys[name] = key = ProvingKey.open(place)
        key.check(threads=self._settings.threads)
        self._backend_for(key)  # a GPU starts now, and not in the first proof
        return {"key": asdict(KeyFacts.of(key)), "file": file}

    def _key(self, name: str, file: list[int]) -> ProvingKey:
        """The key that was checked; a worker that takes another's place opens it again.

        Raises
        ------
        ChangedKey
        """
        if name not in self._keys:
            place = locate(Path.cwd(), name)
            key = ProvingKey.open(place)
            if _identity(place) != file:  # after it was opened, for the same reason
                raise ChangedKey(name + SUFFIX, "the key has changed since the server started")
            self._keys[name] = key
        return self._keys[name]

    def _prove(self, name: str, file: list[int], descriptor: int) -> Message:
        start = time.perf_counter()
        with bigmem.record_layers() as recorded, bigmem.layer("proof"):
            key = self._key(name, file)
            statement = single.prove(
                key,
                mapped_witness(descriptor),
                backend=self._backend_for(key),
                allocator=self._allocator,
            )
        proof, public = BytesIO(), BytesIO()
        proof_json.write_proof(proof, statement.proof)
        proof_json.write_public(public, statement.public)
        return {
            "proof": proof.getvalue().decode(),
            "public": public.getvalue().decode(),
            "seconds": time.perf_counter() - start,
            "layers": [asdict(layer) for layer in recorded().layers],
        }


def make_allocator(name: str, budget: int | None) -> bigmem.Allocator:
    """The allocator of all proofs; ours overwrite what was in them before they hand it out again.

    Raises
    ------
    UsageError
        There is none of this name, its plug-in fails, or the budget makes no sense.
    """
    policies: Mapping[str, bigmem.Inline | bigmem.Deferred | bigmem.Recycle] = {
        "dontneed": bigmem.Inline(),
        "deferred": bigmem.Deferred(),
        "recycle": bigmem.Recycle(),
    }
    try:
        limit = None if budget is None else bigmem.Budget(budget)
        if name in policies:
            return bigmem.ArenaAllocator(release=policies[name], budget=limit, wipe=True, name=name)
        if name == "mapped":
            return bigmem.MappedAllocator(budget=limit, wipe=True, name=name)
        made = bigmem.make(name)
        return made if budget is None else bigmem.Limited(made, budget, name=name)
    except Exception as error:  # a plug-in may raise anything
        raise UsageError(f"--allocator {name}: {str(error) or type(error).__name__}") from error


def _identity(path: Path) -> list[int]:
    """What tells a file from one that takes its place.

    Raises
    ------
    UnreadableFile
    """
    try:
        status = path.stat()
    except OSError as error:
        raise UnreadableFile(path, f"cannot be read: {reason_of(error)}") from None
    return [status.st_ino, status.st_size, status.st_mtime_ns]


def _settle() -> tuple[socket.socket, BinaryIO]:
    """Make this process one that only its server ends; its two ends of the conversation."""
    # Whoever stops the server's group or unit stops the server, which lets the proof end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # When memory runs out the kernel should take the process whose job can be done again.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not get among the answers
    return socket.socket(fileno=os.dup(0)), answers


def _enter(folder: str) -> None:
    try:
        os.chdir(folder)
    except OSError as error:  # one may be allowed to list a directory, and not to use it
        raise UnreadableFile(folder, f"cannot be entered: {reason_of(error)}") from None


def main() -> None:
    """Take the settings from the first request, and serve."""
    requests, answers = _settle()
    first = requests.recv(LARGEST_REQUEST)
    if not first:  # the server has given this process up
        return
    settings = WorkerSettings(**json.loads(first))
    try:
        _enter(settings.folder)
        worker = Worker(settings, requests, answers)
    except ProverError as error:
        write_answer(answers, refusal(type(error).__name__, str(error)))
        return
    worker.run()


if __name__ == "__main__":
    main()
