"""Many proofs of one circuit in one process, on one allocator, measured."""

import json
import time
from collections.abc import Callable, Collection, Sequence
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
        backend: Backend,
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
        self._backend = backend
        self._allocator = allocator
        self._folder = folder

    def __len__(self) -> int:
        return len(self._witnesses) * self._repeat

    def run(self, advance: Callable[[Made], None]) -> dict[str, object]:
        """Make all proofs; ``advance`` is told of each.

        Returns
        -------
        The figures as a JSON object: `prover.pipeline.usage.Usage`, the tree of
        `bigmem.layers` and the seconds of its innermost ones by name, the allocator's statistics,
        and the `Made` of each proof.

        Raises
        ------
        ProverError
            At the first witness that does not satisfy the circuit or file that cannot be written.
        """
        meter = Meter(self._allocator)
        made: list[Made] = []
        with bigmem.record_layers() as recorded:
            for number in range(1, len(self) + 1):
                witness = self._witnesses[(number - 1) % len(self._witnesses)]
                made.append(self._make(number, witness))
                advance(made[-1])
        layers = recorded().layers
        return {
            "curve": self._key.curve.name,
            "constraints": self._key.constraints,
            "domain": self._key.domain,
            "public": self._key.public,
            "backend": self._backend.name,
            "proofs": len(made),
            "key_check_s": self._key_check_s,
            **asdict(meter.stop()),
            "stages": _stages(layers),
            "layers": [asdict(one) for one in layers],
            "allocator_stats": asdict(self._allocator.stats()),
            "each": [asdict(one) for one in made],
        }

    def _make(self, number: int, path: str) -> Made:
        stem = f"{number:0{len(str(len(self)))}d}-{Path(path).stem}"
        proof = self._folder / f"{stem}.proof.json"
        public = self._folder / f"{stem}.public.json"
        with bigmem.record_layers() as recorded, bigmem.layer("proof"):
            statement = single.prove(
                self._key, Witness.open(path), backend=self._backend, allocator=self._allocator
            )
            write(statement, proof, public, self.inputs)
        (layer,) = recorded().layers
        return Made(path, str(proof), str(public), layer.wall_s, _stages(layer.layers))


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
