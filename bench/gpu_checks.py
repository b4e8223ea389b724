"""The CUDA backend's transforms, products and proofs against the CPU's."""

from __future__ import annotations

import io
import random
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from bench.chain import write_chain
from bench.gpu_run import Run
from bench.gpu_stand_in import WITNESSES, random_scalars, stand_in, terms, witness_values
from prover import groth16
from prover.backends import get_backend
from prover.backends.base import Backend
from prover.backends.cpu import _cpu
from prover.backends.cuda.backend import CudaBackend
from prover.backends.cuda.device import Array, Bytes, Device
from prover.backends.cuda.fixed_base import CudaMultiples
from prover.backends.cuda.matrices import compress
from prover.backends.cuda.transform import TILE_LOG, Transform, montgomery
from prover.curves import CURVES, SCALAR_BYTES, Curve
from prover.formats.r1cs import R1cs
from prover.formats.wtns import Witness
from prover.formats.zkey import COEFFICIENT, ProvingKey
from prover.pipeline import single
from prover.setup import Multiples, Trapdoor, domain_size, write_key

FIXTURES = Path(__file__).parents[1] / "tests" / "fixtures"


def check_transforms(run: Run, largest: int) -> None:
    """Every length, one vector and three, against the CPU; and passes of other depths."""
    rng = np.random.default_rng(1)
    for curve in CURVES.values():
        wrong = []
        for log in range(largest + 1):
            for batch in (1, 3):
                if not _coset_equals(run.device, Transform(run.device, curve), log, batch, rng):
                    wrong.append((log, batch))
        run.check(f"transforms of {curve.title} to 2^{largest} {wrong or ''}", not wrong)
        wrong = [
            (most, log)
            for most in range(5, TILE_LOG + 1)
            for log in (10, 13, 16)
            if not _coset_equals(run.device, Transform(run.device, curve, most), log, 1, rng)
        ]
        run.check(f"passes of 5 to 10 stages of {curve.title} {wrong or ''}", not wrong)


def _coset_equals(
    device: Device, transform: Transform, log: int, batch: int, rng: np.random.Generator
) -> bool:
    x = random_scalars((batch, 1 << log), rng)
    out = device.array(x)
    transform.odd_coset(out)
    for vector in x:
        _cpu.odd_coset(transform.curve.name, vector)
    return np.array_equal(device.download(out), x)


def check_large_transforms(run: Run, log: int) -> None:
    """Transforms of a length that takes the CPU too long."""
    for curve in CURVES.values():
        name = f"transforms of {curve.title}, 2^{log}"
        if run.may_begin(f"check of {name}"):
            with run.within_memory(f"check of {name}"):
                wrong = wrong_transforms(run.device, curve, log)
                run.check(f"{name} {wrong or ''}", not wrong)
        run.device.free_unused()


def wrong_transforms(device: Device, curve: Curve, log: int, samples: int = 300) -> list[str]:
    """Which transforms of 2^log elements are wrong, by polynomials whose values are known.

    A few coefficients, or values, that are not zero give values everywhere, which Python computes
    in some places: at the ends, on both sides of the middle and at random. The way back from all
    these values must end in these few coefficients and zeros.
    """
    n, r, rng = 1 << log, curve.r, random.Random(log)
    root, half = curve.root_of_unity(n), curve.root_of_unity(2 * n)
    ends = (0, 1, n // 2 - 1, n // 2, n - 1)
    few = {place: rng.randrange(1, r) for place in (*ends, *(rng.randrange(n) for _ in range(4)))}
    places = sorted({*ends, *(rng.randrange(n) for _ in range(samples))})
    transform, x, wrong = Transform(device, curve), device.empty((n, SCALAR_BYTES)), []

    def value(place: int) -> int:
        """Of the polynomial whose coefficients, bit-reversed, are `few`, at a power of the root."""
        terms = (c * pow(root, _reversed(at, log) * place % n, r) for at, c in few.items())
        return sum(terms) % r

    def coset_value(place: int) -> int:
        """By Lagrange, of the polynomial with the values `few`, where the N-th power is -1."""
        at = pow(half, 2 * place + 1, r)
        powers = ((v, pow(root, j, r)) for j, v in few.items())
        return sum(-2 * v * p * pow(n * (at - p), -1, r) for v, p in powers) % r

    _fill(device, curve, x, few)
    transform.merge(x)
    if not _holds(device, x, places, montgomery(curve, [value(place) for place in places])):
        wrong.append("merge")
    transform.split(x)
    same = _holds(device, x, few, montgomery(curve, [n * c % r for c in few.values()]))
    for place in few:
        x[place] = 0
    if not same or bool(x.view(np.uint64).any()):
        wrong.append("split")
    _fill(device, curve, x, few)
    transform.odd_coset(x)
    if not _holds(device, x, places, montgomery(curve, [coset_value(place) for place in places])):
        wrong.append("coset")
    return wrong


def _reversed(place: int, bits: int) -> int:
    return int(f"{place:0{bits}b}"[::-1], 2)


def _fill(device: Device, curve: Curve, x: Array, few: dict[int, int]) -> None:
    x.view(np.uint64)[...] = 0
    for place, value in few.items():
        x[place] = device.array(montgomery(curve, [value]))[0]


def _holds(device: Device, x: Array, places: Iterable[int], rows: Bytes) -> bool:
    # One by one: all of a vector is gigabytes.
    return np.array_equal(np.stack([device.download(x[place]) for place in places]), rows)


def check_matrices(run: Run) -> None:
    """A product with rows of very unlike lengths against the CPU."""
    for curve in CURVES.values():
        rng = np.random.default_rng(2)
        coefficients = terms(1 << 14, 5000, rng)
        coefficients.view(COEFFICIENT)["constraint"][:3000] = 5
        w = witness_values("35/35/30", 5000, rng)
        out = run.device.empty((2, 1 << 14, 32))
        matrices = compress(coefficients, 1 << 14).to_device(run.device)
        matrices.multiply(run.device, curve, run.device.array(w), out)
        a, b = np.empty((2, 1 << 14, 32), np.uint8)
        _cpu.sparse_product(curve.name, coefficients, w, a, b)
        run.check(
            f"sparse products of {curve.title}", np.array_equal(run.device.download(out), [a, b])
        )


def check_proofs(run: Run, logs: list[int]) -> None:
    """Proofs of the fixtures are the CPU's and verify; so are those of larger stand-ins."""
    cpu = get_backend("cpu")
    for path in sorted(FIXTURES.glob("*/*/circuit.zkey")):
        key, witness = ProvingKey.open(path), Witness.open(path.with_name("witness.wtns"))
        name = f"proof of {path.parent.parent.name}/{path.parent.name}"
        with run.part(name):
            backend = CudaBackend(run.device)
            single.prove(key, witness, backend=backend)  # raises if the proof is invalid
            run.check(name, _proof(key, witness, backend) == _proof(key, witness, cpu))
    for curve in CURVES.values():
        for log in logs:
            for kind in WITNESSES:
                name = f"proof of a {kind} stand-in of {curve.title}, 2^{log}"
                with run.part(name):
                    key, witness = stand_in(curve, log, kind)
                    backend = CudaBackend(run.device)
                    run.check(name, _proof(key, witness, backend) == _proof(key, witness, cpu))


def check_limits(run: Run) -> None:
    """A proof under limits on device memory equals one without."""
    for curve in CURVES.values():
        key, witness = stand_in(curve, 18, "uniform")
        expected = _proof(key, witness, get_backend("cpu"))
        for limit in (1 << 30, 380 << 20, 290 << 20):
            name = f"proof of {curve.title}, 2^18, within {limit >> 20} MiB"
            with run.part(name):
                run.check(name, _proof(key, witness, CudaBackend(Device(limit))) == expected)


def _proof(key: ProvingKey, witness: Witness, backend: Backend) -> bytes:
    proof = groth16.prove(key, witness, backend=backend, r=3, s=5)
    return proof.a.tobytes() + proof.b.tobytes() + proof.c.tobytes()


def check_keys(run: Run, folder: Path) -> None:
    """Keys made on the GPU are the CPU's for the same secrets."""
    for curve in CURVES.values():
        path, _ = write_chain(folder, 12, curve)
        circuit = R1cs.open(path)
        trapdoor = Trapdoor.draw(curve, domain_size(circuit))
        makers: tuple[Multiples | None, ...] = (None, CudaMultiples(run.device, curve))
        keys = []
        for multiples in makers:
            file = io.BytesIO()
            write_key(file, circuit, trapdoor, multiples=multiples)
            keys.append(file.getvalue())
        run.check(f"key of {curve.title}, 2^12", keys[0] == keys[1])
