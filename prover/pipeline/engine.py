"""The proving engine: many circuits of one key, synthesised ahead of the proofs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Literal

import bigmem
from bigmem.sizes import format_size
from prover import groth16
from prover.backends.base import Backend
from prover.errors import UsageError
from prover.formats.wtns import Witness
from prover.formats.zkey import ProvingKey
from prover.pipeline import single
from prover.pipeline.ahead import Ahead
from prover.pipeline.assignment import Assignment, Synthesis
from prover.pipeline.single import Statement

Mode = Literal["normal", "seed"]
"""Who makes a, b and c: the backend inside the proof, or the synthesis, in host memory."""

Release = Literal["early", "explicit", "return"]
"""When an assignment is released: a, b and c as soon as the transforms have read them; all of it at
the end of its proof, in a layer ``release``; or after that, in no layer, as by destructors when
a function returns."""

WitnessOf = Callable[[int], Witness]
Finish = Callable[[int, Statement], None]
Advance = Callable[[int, bigmem.LayerTimes], None]
Blinding = Callable[[int], tuple[int, int]]


class Engine:
    """Proves circuits of one key, which it has checked.

    There are two owners of memory. What a backend allocates in host memory comes from ``vectors``;
    the witness of each circuit and, in seed mode, its a, b and c, and the masks of the key, from
    ``assignments``.

    Parameters
    ----------
    backends
        One for each proof that is to be made at the same time, by a thread of its own.
    vectors, assignments
        The allocators of the two owners; None for the process default.
    mode, release
        See `Mode` and `Release`.
    ahead
        Bytes that assignments may take, those in proof, those released but not given back yet, and
        the masks included. (The synthesis waits, some seconds at most, until nothing of the
        allocator is pending, others' blocks included.) By default, one assignment for each backend
        and one more.
    threads
        For the synthesis; 0 for every core.

    Attributes
    ----------
    vector_bytes, circuit_bytes, mask_bytes
        What each vector of an assignment takes of ``assignments``, what they take together, and
        what the masks take.
    assignment_bytes
        What all assignments take together at most.

    Raises
    ------
    MalformedFile
        If the key is bad.
    UsageError
        If ``ahead`` is too little for one circuit.
    """

    def __init__(
        self,
        key: ProvingKey,
        *,
        backends: Sequence[Backend],
        vectors: bigmem.Allocator | None = None,
        assignments: bigmem.Allocator | None = None,
        mode: Mode = "normal",
        release: Release = "early",
        ahead: int | None = None,
        threads: int = 0,
    ) -> None:
        key.check(threads=threads)
        self._key = key
        self._backends = backends
        self._vectors = vectors
        self._assignments = bigmem.get_allocator() if assignments is None else assignments
        self._release = release
        self._synthesis = Synthesis(
            key,
            vectors=mode == "seed",
            early=release == "early",
            allocator=self._assignments,
            threads=threads,
        )
        self.vector_bytes = self._synthesis.vector_bytes
        self.circuit_bytes = each = self._synthesis.nbytes
        self.mask_bytes = self._synthesis.mask_bytes
        self.assignment_bytes = (
            (len(backends) + 1) * each if ahead is None else ahead - self.mask_bytes
        )
        if self.assignment_bytes < each:
            raise UsageError(
                f"{format_size(ahead or 0)} hold no circuit: the assignment of one of {key.path} "
                f"takes {format_size(each + self.mask_bytes)}"
            )

    def run(
        self,
        count: int,
        witness_of: WitnessOf,
        finish: Finish,
        advance: Advance = lambda number, layer: None,
        blinding: Blinding | None = None,
    ) -> None:
        """Make, check and finish proofs 1 to ``count``.

        The layers are ``ahead`` (the thread of the synthesis) and ``worker`` (one for each backend)
        with ``circuit`` in it, and in that ``proof`` and ``release``.

        Parameters
        ----------
        witness_of
            Opens the witness of a number; called in order, on the thread of the synthesis.
        finish
            Takes each proof that was checked, on the thread that has made it.
        advance
            Told of each circuit when all is done, with its layer; of one at a time.
        blinding
            For tests: r and s of a number. By default from the operating system.

        Raises
        ------
        ProverError, MemoryError
            The first error of any thread, when the proofs that others have begun are finished.
        UsageError
            If there is no backend.
        """
        if not self._backends:
            raise UsageError("there is no backend to prove with")

        def make(number: int, returned: Callable[[int], None]) -> Assignment:
            with bigmem.layer("open"):
                witness = witness_of(number)
            return self._synthesis.make(witness, returned)

        with Ahead(
            make,
            self._assignments.flush,
            count,
            each=self.circuit_bytes,
            limit=self.assignment_bytes,
        ) as ahead:
            _Workers(self, ahead, finish, advance, blinding).run(self._backends)

    def prove(
        self,
        number: int,
        assignment: Assignment,
        backend: Backend,
        finish: Finish,
        blinding: Blinding | None,
    ) -> None:
        """Prove one assignment, and release it whatever happens."""
        try:
            with bigmem.layer("proof"):
                self._prove(number, assignment, backend, finish, blinding)
            with bigmem.layer("before release"):
                pass
            if self._release != "return":
                with bigmem.layer("release"):
                    assignment.release()
        finally:
            assignment.release()

    def _prove(
        self,
        number: int,
        assignment: Assignment,
        backend: Backend,
        finish: Finish,
        blinding: Blinding | None,
    ) -> None:
        r, s = (None, None) if blinding is None else blinding(number)
        key = self._key
        proof = groth16.prove_operands(
            key, assignment, backend=backend, allocator=self._vectors, r=r, s=s
        )
        with bigmem.layer("epilogue"):
            single.check_proof(key, proof, assignment.public, assignment.path)
            with bigmem.layer("finish"):
                finish(number, Statement(proof, assignment.public))


class _Workers:
    """One thread a backend; each takes the next assignment when it has made a proof.

    Threads, not processes: the native code and CUDA work without the interpreter's lock, and the
    key is mapped once.
    """

    def __init__(
        self,
        engine: Engine,
        ahead: Ahead,
        finish: Finish,
        advance: Advance,
        blinding: Blinding | None,
    ) -> None:
        self._engine = engine
        self._ahead = ahead
        self._finish = finish
        self._advance = advance
        self._blinding = blinding
        self._telling = threading.Lock()
        self._errors: list[BaseException] = []

    def run(self, backends: Sequence[Backend]) -> None:
        first, *others = backends
        try:
            with ThreadPoolExecutor(max(1, len(others)), "prover worker") as pool:
                try:
                    for backend in others:
                        self._begin(pool, backend)
                    self._work(first)  # on this thread, which Ctrl-C interrupts
                finally:
                    self._ahead.stop()  # nothing is left, or those that have begun must not go on
        except Exception as error:
            self._errors.append(error)  # the last of all threads, unless it is the only one
        if self._errors:
            try:
                raise self._errors[0]
            finally:
                self._errors.clear()  # else it would hold, by its frames, itself

    def _begin(self, pool: ThreadPoolExecutor, backend: Backend) -> None:
        try:
            # A copy of the context: the layers of all threads belong to this run.
            pool.submit(copy_context().run, self._work, backend)
        except RuntimeError as error:
            raise MemoryError(f"no thread for a worker: {error}") from None

    def _work(self, backend: Backend) -> None:
        try:
            with bigmem.layer("worker"):
                while self._circuit(backend):
                    pass
        except BaseException as error:
            self._errors.append(error)
            self._ahead.stop()
            raise

    def _circuit(self, backend: Backend) -> bool:
        with bigmem.layer("wait"):
            found = self._ahead.next()
        if found is None:
            return False
        number, assignment = found
        del found
        with bigmem.record_layers() as recorded, bigmem.layer("circuit"):
            self._engine.prove(number, assignment, backend, self._finish, self._blinding)
        with bigmem.layer("advance"), self._telling:
            (layer,) = recorded().layers
            self._advance(number, layer)
        return True
