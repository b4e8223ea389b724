"""The files of a verification, ready to be spoilt."""

import json
from pathlib import Path
from typing import Any

import pytest

from prover.curves import CURVES, Curve
from prover.formats.proof_json import read_proof, read_public
from prover.verify import VerificationKey, verify

JSON_FILES = ("verification_key", "public", "proof")


class Files:
    """The three files of a verification, to be changed one at a time."""

    def __init__(self, source: Path, target: Path) -> None:
        self.target = target
        self.content: dict[str, Any] = {
            name: json.loads((source / f"{name}.json").read_text()) for name in JSON_FILES
        }

    def paths(self) -> list[Path]:
        for name, value in self.content.items():
            (self.target / f"{name}.json").write_text(json.dumps(value))
        return [self.target / f"{name}.json" for name in JSON_FILES]

    @property
    def curve(self) -> Curve:
        return CURVES[self.content["verification_key"]["curve"]]

    def verdict(self) -> bool:
        vk, public, proof = self.paths()
        key = VerificationKey.from_json(vk)
        return verify(key, read_public(public, key.curve), read_proof(proof, key.curve))


@pytest.fixture
def files(circuit, tmp_path: Path) -> Files:
    return Files(circuit.folder, tmp_path)


@pytest.fixture
def small(multiplier, tmp_path: Path) -> Files:
    return Files(multiplier.folder, tmp_path)
