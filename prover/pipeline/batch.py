"""Many proofs of one circuit in one process, on one allocator, measured."""

import json
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import asdict, dataclass
from pathlib import Path

import bigmem
from prover import groth16
from prover.backends.base import Backend
from prover.formats import proof_json
from prover.formats.wtns import Witness
from prover.formats.zkey import ProvingKey
from prover.outputs import whole_files
from prover.pipeline import single
from prover.pipeline.usage import Meter


@dataclass(frozen=True)
class Made:
    """One proof of a batch: the files it became, and seconds in all and by innermost layer."""

    witness: str
    proof: str
    public: str
    wall_s: float
    stages: dict[str, float]


class Batch:
    """Proofs of every witness, ``repeat`` times over, each checked and written.

    Parameters
    ----------
    witnesses
        Files; each is opened once to check it, and again for each of its proofs.
    backends
        One for each proof that is to be made at the same time, by a thread of its own.
    folder
        Where ``NUMBER-WITNESS.proof.json`` and ``NUMBER-WITNESS.public.json`` go; it must exist
        when `run` is called.
    allocator
        Every vector of every proof comes from it.
    threads
        For the check of the key; 0 for every core.

    Attributes
    ----------
    inputs
        The files that no output may replace, links resolved.
    backends
        As given.

    Raises
    ------
    ProverError
        From the constructor if a file is unusable or a witness belongs to another circuit, so
        that nothing is proved in vain.
    """

    def __init__(
        self,
        key: ProvingKey,
        witnesses: Sequence[str],
        *,
        backends: Sequence[Backend],
        allocator: bigmem.Allocator,
        repeat: int,
        folder: Path,
        threads: int = 0,
    ) -> None:
        start = time.perf_counter()
        # Not kept open: each would hold a file descriptor, of which a process has few.
        for path in witnesses:
            groth16.match(key, Witness.open(path))
        key.check(threads=threads)
        self._key_check_s = time.perf_counter() - start
        self._key = key
        self._witnesses = witnesses
        self._repeat = repeat
        self.inputs = frozenset(Path(path).resolve() for path in (key.path, *witnesses))
        self.backends = backends
        self._allocator = allocator
        self._folder = folder

    def __len__(self) -> int:
        return len(self._witnesses) * self._repeat

    def run(self, advance: Callable[[Made], None]) -> dict[str, object]:
        """Make all proofs; ``advance`` is told of each, of one at a time, in the order they end.

        Returns
        -------
        The figures as a JSON object: `prover.pipeline.usage.Usage`, the tree of
        `bigmem.layers` and the seconds of its innermost ones by name, the allocator's statistics,
        and the `Made` of each proof.

        Raises
        ------
        ProverError
            At the first witness that does not satisfy the circuit or file that cannot be written;
            proofs that others have begun are finished.
        """
        meter = Meter(self._allocator)
        with bigmem.record_layers() as recorded:
            made = _Workers(self, advance).run()
        layers = recorded().layers
        return {
            "curve": self._key.curve.name,
            "constraints": self._key.constraints,
            "domain": self._key.domain,
            "public": self._key.public,
            "backend": self.backends[0].name,
            "workers": len(self.backends),
            "proofs": len(made),
            "key_check_s": self._key_check_s,
            **asdict(meter.stop()),
            "stages": _stages(layers),
            "layers": [asdict(one) for one in layers],
            "allocator_stats": asdict(self._allocator.stats()),
            "each": [asdict(one) for one in made],
        }

    def make(self, number: int, backend: Backend) -> Made:
        """Make proof ``number``, from 1 to the length of the batch."""
        path = self._witnesses[(number - 1) % len(self._witnesses)]
        stem = f"{number:0{len(str(len(self)))}d}-{Path(path).stem}"
        proof = self._folder / f"{stem}.proof.json"
        public = self._folder / f"{stem}.public.json"
        with bigmem.record_layers() as recorded, bigmem.layer("proof"):
            statement = single.prove(
                self._key, Witness.open(path), backend=backend, allocator=self._allocator
            )
            write(statement, proof, public, self.inputs)
        (layer,) = recorded().layers
        return Made(path, str(proof), str(public), layer.wall_s, _stages(layer.layers))


class _Workers:
    """One thread a backend; each takes the next number when it has made a proof.

    Threads, not processes: the native code and CUDA work without the interpreter's lock, and the
    key is mapped once.
    """

    def __init__(self, batch: Batch, advance: Callable[[Made], None]) -> None:
        self._batch = batch
        self._advance = advance
        self._numbers = iter(range(1, len(batch) + 1))
        self._made: dict[int, Made] = {}
        self._lock = threading.Lock()
        self._stopped = False

    def run(self) -> list[Made]:
        """All proofs, in the order of their numbers."""
        first, *others = self._batch.backends
        with ThreadPoolExecutor(max(1, len(others)), "prover worker") as pool:
            # A copy of the context: the layers of all threads belong to this batch.
            tasks = [pool.submit(copy_context().run, self._work, backend) for backend in others]
            self._work(first)  # on this thread, which Ctrl-C interrupts
        for task in tasks:
            task.result()
        return [self._made[number] for number in sorted(self._made)]

    def _work(self, backend: Backend) -> None:
        try:
            while (number := self._next()) is not None:
                made = self._batch.make(number, backend)
                with self._lock:
                    self._made[number] = made
                    self._advance(made)
        finally:
            self._stopped = True

    def _next(self) -> int | None:
        with self._lock:
            return None if self._stopped else next(self._numbers, None)


@bigmem.layer("write")
def write(
    statement: single.Statement, proof: Path, public: Path, inputs: Collection[Path] = ()
) -> None:
    """Write proof.json and public.json as snarkjs does, both or neither.

    Raises
    ------
    UnwritableOutput, UsageError
    """
    with whole_files(proof, public, inputs=inputs) as (proof_file, public_file):
        proof_json.write_proof(proof_file, statement.proof)
        proof_json.write_public(public_file, statement.public)


def write_figures(figures: dict[str, object], path: Path, inputs: Collection[Path]) -> None:
    """Write a batch's figures as JSON.

    Raises
    ------
    UnwritableOutput, UsageError
    """
    with whole_files(path, inputs=inputs) as (file,):
        file.write((json.dumps(figures, indent=1) + "\n").encode())


def _stages(layers: Sequence[bigmem.LayerTimes]) -> dict[str, float]:
    seconds: dict[str, float] = {}
    for layer in layers:
        parts = _stages(layer.layers) if layer.layers else {layer.name: layer.wall_s}
        for name, part in parts.items():
            seconds[name] = seconds.get(name, 0.0) + part
    return seconds
