"""Many proofs of one circuit in one process: files in, files out, measured."""

import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import bigmem
from prover import groth16
from prover.backends.base import PHASES, Backend
from prover.formats import proof_json
from prover.formats.wtns import Witness
from prover.formats.zkey import ProvingKey
from prover.outputs import whole_files
from prover.pipeline import single
from prover.pipeline.engine import Engine, Mode
from prover.pipeline.report import LayerReport
from prover.pipeline.timers import Timers
from prover.pipeline.usage import Meter, process_seconds


@dataclass(frozen=True)
class Made:
    """One proof of a batch: the files it became, and seconds in all and by stage."""

    witness: str
    proof: str
    public: str
    wall_s: float
    stages: dict[str, float]


@dataclass(frozen=True)
class Outputs:
    """Where the proofs of all witnesses go, ``repeat`` times over.

    Attributes
    ----------
    folder
        Where ``NUMBER-WITNESS.proof.json`` and ``NUMBER-WITNESS.public.json`` go.
    """

    folder: Path
    witnesses: Sequence[str]
    repeat: int

    def __len__(self) -> int:
        return len(self.witnesses) * self.repeat

    def witness(self, number: int) -> str:
        """The file that the proof of this number, from 1, is about."""
        return self.witnesses[(number - 1) % len(self.witnesses)]

    def files(self, number: int) -> tuple[Path, Path]:
        """Of a proof and its public signals."""
        stem = f"{number:0{len(str(len(self)))}d}-{Path(self.witness(number)).stem}"
        return self.folder / f"{stem}.proof.json", self.folder / f"{stem}.public.json"

    def __contains__(self, path: Path) -> bool:
        """Whether it is one of the files."""
        number = path.name.partition("-")[0]
        if not (number.isascii() and number.isdecimal() and 1 <= int(number) <= len(self)):
            return False
        return path.resolve() in {file.resolve() for file in self.files(int(number))}


def matched_inputs(key: ProvingKey, witnesses: Sequence[str]) -> frozenset[Path]:
    """The files of a batch that no output may replace, links resolved.

    Raises
    ------
    ProverError
        If a witness is unusable, or belongs to another circuit.
    """
    # Not kept open: each would hold a file descriptor, of which a process has few.
    for path in witnesses:
        groth16.match(key, Witness.open(path))
    return frozenset(Path(path).resolve() for path in (key.path, *witnesses))


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
    vectors, assignments, mode, ahead, threads
        As in `Engine`.
    timed
        Whether `run` makes a report; for that it reads clocks at every layer, which takes a
        millisecond or so a proof.

    Attributes
    ----------
    inputs
        The files that no output may replace, links resolved.
    outputs
        The files that are made.
    backends
        As given.
    report
        Of the latest run, if timed.

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
        vectors: bigmem.Allocator,
        assignments: bigmem.Allocator,
        repeat: int,
        folder: Path,
        mode: Mode = "normal",
        ahead: int | None = None,
        threads: int = 0,
        timed: bool = False,
    ) -> None:
        start = time.perf_counter()
        self.inputs = matched_inputs(key, witnesses)
        self._engine = Engine(
            key,
            backends=backends,
            vectors=vectors,
            assignments=assignments,
            mode=mode,
            ahead=ahead,
            threads=threads,
        )
        self._key_check_s = time.perf_counter() - start
        self._key = key
        self.outputs = Outputs(folder, witnesses, repeat)
        self.backends = backends
        self._allocators = {"vectors": vectors, "assignments": assignments}
        self._timed = timed
        self.report: LayerReport | None = None

    def __len__(self) -> int:
        return len(self.outputs)

    def run(self, advance: Callable[[Made], None]) -> dict[str, object]:
        """Make all proofs; ``advance`` is told of each, of one at a time, in the order they end.

        Returns
        -------
        The figures as a JSON object: `prover.pipeline.usage.Usage`, the tree of
        `bigmem.layers` and the seconds of its stages by name, the statistics of the allocators,
        the report if timed, and the `Made` of each proof.

        Raises
        ------
        ProverError
            At the first witness that does not satisfy the circuit or file that cannot be written;
            proofs that others have begun are finished.
        """
        made: dict[int, Made] = {}

        def tell(number: int, layer: bigmem.LayerTimes) -> None:
            proof, public = map(str, self.outputs.files(number))
            made[number] = Made(
                self.outputs.witness(number), proof, public, layer.wall_s, stages((layer,))
            )
            advance(made[number])

        meter = Meter(*self._allocators.values())
        with bigmem.record_layers() as recorded, bigmem.layer("batch"), self._timers():
            self._engine.run(
                len(self),
                lambda number: Witness.open(self.outputs.witness(number)),
                self._write,
                tell,
            )
        (layer,) = recorded().layers
        return {
            "curve": self._key.curve.name,
            "constraints": self._key.constraints,
            "domain": self._key.domain,
            "public": self._key.public,
            "backend": self.backends[0].name,
            "workers": len(self.backends),
            "proofs": len(made),
            "process_s": process_seconds(),
            "key_check_s": self._key_check_s,
            **asdict(meter.stop()),
            "stages": _total([one.stages for one in made.values()]),
            "layers": [asdict(layer)],
            "allocator_stats": asdict(meter.stats()),
            "owners": {name: asdict(one.stats()) for name, one in self._allocators.items()},
            "report": None if self.report is None else self.report.as_json(),
            "each": [asdict(made[number]) for number in sorted(made)],
        }

    def _write(self, number: int, proved: single.Statement) -> None:
        with bigmem.layer("write"):  # naming the files takes a tenth of it
            write(proved, *self.outputs.files(number), self.inputs)

    @contextmanager
    def _timers(self) -> Iterator[None]:
        self.report = None
        if not self._timed:
            yield
            return
        before = self._device_seconds()
        with Timers(*self._allocators.values()) as timers:
            yield
        after = self._device_seconds()
        spent = {name: seconds - before.get(name, 0.0) for name, seconds in after.items()}
        self.report = LayerReport.of(timers, spent)

    def _device_seconds(self) -> dict[str, float]:
        return _total(backend.device_seconds() for backend in self.backends)


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


def stages(layers: Sequence[bigmem.LayerTimes]) -> dict[str, float]:
    """Seconds of the innermost layers by name, the phases of a sum taken together."""
    parts = []
    for layer in layers:
        inside = [one for one in layer.layers if one.name not in PHASES]
        parts.append(stages(inside) if inside else {layer.name: layer.wall_s})
    return _total(parts)


def _total(parts: Iterable[dict[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for part in parts:
        for name, seconds in part.items():
            total[name] = total.get(name, 0.0) + seconds
    return total
