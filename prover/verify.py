"""The check of a Groth16 proof: e(A, B) = e(alpha, beta) e(X, gamma) e(C, delta).

X = IC_0 + sum of public signal i times IC_i. All four pairings share one final exponentiation.
Inputs that are no statement and proof at all (out of range, off the curve, outside the subgroup,
the wrong number) are errors, not false: other verifiers accept several of them.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from prover.backends.cpu import _cpu
from prover.curves import SCALAR_BYTES, Curve
from prover.errors import MalformedFile, MismatchedFiles, ProverError
from prover.formats.container import Bytes
from prover.formats.proof_json import (
    PROTOCOL,
    Document,
    decode_coordinates,
    named_curve,
    point_to_json,
    shown,
)
from prover.formats.scan import off_curve, outside_subgroup
from prover.formats.zkey import ProvingKey
from prover.groth16 import Proof


class Unverifiable(ProverError):
    """A proof or public signals that cannot be checked: something is out of its range."""


@dataclass(frozen=True)
class VerificationKey:
    """What a verifier needs of a key; every point has been checked as far as its subgroup.

    Attributes
    ----------
    curve
        The curve of all points.
    alpha1, beta2, gamma2, delta2
        Affine points in Montgomery form, shape (1, bytes of a point).
    ic
        The points of the constant and of each public signal, shape (public + 1, ...).
    """

    curve: Curve
    alpha1: Bytes
    beta2: Bytes
    gamma2: Bytes
    delta2: Bytes
    ic: Bytes

    @classmethod
    def from_zkey(cls, key: ProvingKey) -> Self:
        """The verification key inside a proving key, copied out of the mapped file."""
        points = (key.alpha1, key.beta2, key.gamma2, key.delta2, key.ic)
        return cls(key.curve, *(point.copy() for point in points))

    @classmethod
    def from_json(cls, path: str | os.PathLike[str]) -> Self:
        """Read a verification key that snarkjs or `to_json` wrote.

        Raises
        ------
        UnreadableFile, MalformedFile, UnsupportedFile
        """
        document = Document(path)
        document.expect_protocol()
        curve = named_curve(document)
        listed = document.items(document.field("IC"), None, "IC")
        public = document.field("nPublic")
        if type(public) is not int or public < 0 or len(listed) != public + 1:
            document.refuse(
                f"its nPublic is {shown(public)}, which does not fit its {len(listed)} IC points"
            )
        alpha1 = document.point(document.field("vk_alpha_1"), curve, 1, "vk_alpha_1")
        beta2, gamma2, delta2 = (
            document.point(document.field(name), curve, 2, name)
            for name in ("vk_beta_2", "vk_gamma_2", "vk_delta_2")
        )
        ic = [document.point(point, curve, 1, f"IC[{i}]") for i, point in enumerate(listed)]
        key = cls(curve, alpha1, beta2, gamma2, delta2, np.concatenate(ic))
        key._check(document.path)
        return key

    @property
    def public(self) -> int:
        """Number of public signals."""
        return len(self.ic) - 1

    def to_json(self) -> dict[str, Any]:
        """The key as snarkjs writes it; `prover.formats.proof_json.write_json` makes the file.

        ``vk_alphabeta_12``, which no verifier reads, is e(alpha, beta) in the tower
        Fp12 = Fp6[w] / (w^2 - v), Fp6 = Fp2[v] / (v^3 - xi).
        """
        return {
            "protocol": PROTOCOL,
            "curve": self.curve.name,
            "nPublic": self.public,
            "vk_alpha_1": point_to_json(self.curve, self.alpha1),
            "vk_beta_2": point_to_json(self.curve, self.beta2),
            "vk_gamma_2": point_to_json(self.curve, self.gamma2),
            "vk_delta_2": point_to_json(self.curve, self.delta2),
            "vk_alphabeta_12": self._alpha_beta(),
            "IC": [point_to_json(self.curve, point) for point in self.ic],
        }

    def _alpha_beta(self) -> list[list[list[str]]]:
        value = _cpu.pairing_product(self.curve.name, self.alpha1, self.beta2)
        c = [str(x) for x in decode_coordinates(self.curve, value)]
        return [[c[i : i + 2] for i in range(half, half + 6, 2)] for half in (0, 6)]

    def _check(self, path: str) -> None:
        for name, group, points in (
            ("vk_alpha_1", 1, self.alpha1),
            ("vk_beta_2", 2, self.beta2),
            ("vk_gamma_2", 2, self.gamma2),
            ("vk_delta_2", 2, self.delta2),
            ("IC", 1, self.ic),
        ):
            problem = (
                "is infinity" if not points.any(axis=1).all() else _fault(self.curve, group, points)
            )
            if problem:
                raise MalformedFile(path, f"{name} {problem}")


def verify(key: VerificationKey, public: Sequence[int], proof: Proof) -> bool:
    """Whether the proof proves the statement that the key and the public signals make.

    Parameters
    ----------
    public
        The public signals in the order of public.json.

    Raises
    ------
    MismatchedFiles
        If the number of signals or the curve is not the key's.
    Unverifiable
        If a signal is not below r, or a point is not in its group.
    """
    curve = key.curve
    if proof.curve != curve:
        raise MismatchedFiles(f"the proof is over {proof.curve.name}, the key over {curve.name}")
    if len(public) != key.public:
        raise MismatchedFiles(
            f"the key is for {key.public} public signals, but {len(public)} are given"
        )
    for i, signal in enumerate(public):
        if not 0 <= signal < curve.r:
            raise Unverifiable(f"public signal {i} is not from 0 to r - 1")
    for name, group, point in (("pi_a", 1, proof.a), ("pi_b", 2, proof.b), ("pi_c", 1, proof.c)):
        problem = _fault(curve, group, point)
        if problem:
            raise Unverifiable(f"{name} {problem}")
    x = _weighted_sum(curve, key.ic, public)
    g1 = [_row(_cpu.negate(curve.name, 1, proof.a)), key.alpha1, x, proof.c]
    g2 = [proof.b, key.beta2, key.gamma2, key.delta2]
    return _cpu.pairing_product_is_one(curve.name, np.concatenate(g1), np.concatenate(g2))


def _fault(curve: Curve, group: int, points: Bytes) -> str | None:
    if _cpu.find_off_curve(curve.name, group, points, 1) >= 0:
        return off_curve(curve, group)
    if _cpu.find_outside_subgroup(curve.name, group, points, 1) >= 0:
        return outside_subgroup(curve, group)
    return None


def _weighted_sum(curve: Curve, ic: Bytes, public: Sequence[int]) -> Bytes:
    scalars = b"".join(signal.to_bytes(SCALAR_BYTES, "little") for signal in (1, *public))
    rows = np.frombuffer(scalars, np.uint8).reshape(-1, SCALAR_BYTES)
    workspace = np.empty(_cpu.msm_workspace(curve.name, 1, len(ic), 1), np.uint8)
    return _row(_cpu.msm(curve.name, 1, ic, rows, workspace, 1))


def _row(point: Bytes) -> Bytes:
    return point.reshape(1, -1)
