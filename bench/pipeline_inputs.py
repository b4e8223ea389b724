"""What one size of the pipeline needs on disk, and the judgement of the proofs that come of it."""

from __future__ import annotations

import mmap
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.synthetic import Synthetic
from prover.curves import CURVES, SCALAR_BYTES
from prover.formats.proof_json import read_proof, read_public
from prover.formats.wtns import Witness
from prover.verify import VerificationKey, verify


class PipelineError(Exception):
    """The comparison cannot go on; the message is the line to show."""


@dataclass(frozen=True)
class Inputs:
    """The key and the witnesses of one size.

    Attributes
    ----------
    folder
        Where they are, or will be.
    """

    folder: Path
    curve: str
    log2: int
    circuits: int

    @property
    def key(self) -> Path:
        """The zkey file."""
        return self.folder / f"synthetic{self.log2}.zkey"

    @property
    def witnesses(self) -> list[Path]:
        """A witness for each circuit."""
        stem = self.folder / f"synthetic{self.log2}"
        return [stem.with_name(f"{stem.name}-{n:02d}.wtns") for n in range(self.circuits)]

    @property
    def _verification_key(self) -> Path:
        return self.key.with_suffix(".vk.json")

    def make(self, backend: str, tell: Callable[[str], None]) -> None:
        """Make what is not there; the key by the development setup, on the backend.

        Raises
        ------
        PipelineError
        """
        circuit = Synthetic(self.log2, CURVES[self.curve])
        self.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            parts = Path(name)  # so that what is there is whole
            for number, path in enumerate(self.witnesses):
                if not path.exists():
                    tell(f"2^{self.log2}: witness {number + 1} of {self.circuits}")
                    circuit.write_witness(parts, number).rename(path)
            if not self._verification_key.exists():  # the last that is made of a key
                tell(f"2^{self.log2}: a key by the development setup")
                r1cs = circuit.write_circuit(parts)
                _prover("setup", r1cs, "-o", self.key, "--insecure-dev-key", "--backend", backend)
                _prover("export-vk", self.key, self._verification_key)

    def least_ahead(self, mode: str) -> int:
        """The bytes of one assignment, and of the key's masks, in whole pages."""
        wires = Synthetic(self.log2, CURVES[self.curve]).wires
        vectors = [wires * SCALAR_BYTES, wires, wires]
        if mode == "seed":
            vectors += [SCALAR_BYTES << self.log2] * 3
        return sum(-(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE for nbytes in vectors)

    def judge(self, proofs: Sequence[tuple[Path, Path]]) -> str | None:
        """What is wrong with the proofs of all circuits, in order; None if they are right.

        Each must verify, from its files, and be about its own circuit's public signal.

        Parameters
        ----------
        proofs
            proof.json and public.json of each.
        """
        key = VerificationKey.from_json(self._verification_key)
        if len(proofs) != self.circuits:
            return f"there are {len(proofs)} proofs of {self.circuits} circuits"
        for witness, (proof, public) in zip(self.witnesses, proofs, strict=True):
            signals = read_public(public, key.curve)
            row = np.asarray(Witness.open(witness).values[1])
            if signals != [int.from_bytes(row.tobytes(), "little")]:
                return f"{public.name} is not about {witness.name}"
            if not verify(key, signals, read_proof(proof, key.curve)):
                return f"{proof.name} does not verify"
        return None


def _prover(*words: str | Path) -> None:
    command = [sys.executable, "-m", "prover", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise PipelineError(f"`prover {words[0]}` exited with {done.returncode}: {last}")
