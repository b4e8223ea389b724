"""The dense circuit that provers are measured on: a chain x -> x x + c of full-size values.

    python -m bench.chain 16 --curve bls12381 -o DIRECTORY

writes chain16.r1cs and chain16.wtns. No bit and no small value lets a prover save work; the only
public signal is the end of the chain.
"""

import argparse
import hashlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench import command_line
from bench.circuit_files import TERM, Bytes, scalar, write_r1cs, write_wtns
from prover.curves import CURVES, SCALAR_BYTES, Curve

SLACK = 16
"""The chain of 2^k has 2^k - 16 links, so that its domain is 2^k and not 2^(k+1)."""

_CONSTRAINT = np.dtype(
    [
        ("a_terms", "<u4"),
        ("a", TERM),
        ("b_terms", "<u4"),
        ("b", TERM),
        ("c_terms", "<u4"),
        ("c", TERM, 2),
    ]
)


def write_chain(directory: Path, k: int, curve: Curve) -> tuple[Path, Path]:
    """Write the circuit and a witness.

    Parameters
    ----------
    k
        Binary logarithm of the domain, at least 5.

    Returns
    -------
    The paths of the r1cs and the wtns file.
    """
    links = (1 << k) - SLACK
    start, constant = (_from_hash(f"bigmem chain {what}", curve) for what in ("start", "constant"))
    circuit, witness = directory / f"chain{k}.r1cs", directory / f"chain{k}.wtns"
    rows = _constraints(links, constant, curve)
    write_r1cs(circuit, curve, wires=links + 2, private=1, constraints=[rows])
    write_wtns(witness, curve, [_values(links, start, constant, curve)])
    return circuit, witness


def _from_hash(label: str, curve: Curve) -> int:
    return int.from_bytes(hashlib.sha512(label.encode()).digest(), "big") % curve.r


def _constraints(links: int, constant: int, curve: Curve) -> NDArray[np.void]:
    # Wires: one, the end (an output), the start (an input), then every value between.
    wire = np.arange(1, links + 2, dtype=np.uint32) + 1
    wire[-1] = 1
    rows = np.zeros(links, _CONSTRAINT)
    rows["a_terms"] = rows["b_terms"] = 1
    rows["a"]["wire"] = rows["b"]["wire"] = wire[:-1]
    rows["a"]["value"] = rows["b"]["value"] = scalar(1)
    rows["c_terms"] = 2
    rows["c"]["value"][:, 0] = scalar(curve.r - constant)
    rows["c"]["wire"][:, 1] = wire[1:]
    rows["c"]["value"][:, 1] = scalar(1)
    return rows


def _values(links: int, start: int, constant: int, curve: Curve) -> Bytes:
    values = [start]
    for _ in range(links):
        values.append((values[-1] * values[-1] + constant) % curve.r)
    ordered = [1, values[-1], *values[:-1]]
    return np.concatenate([scalar(value) for value in ordered]).reshape(-1, SCALAR_BYTES)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("k", type=command_line.log2, help="binary logarithm of the domain")
    parser.add_argument("--curve", choices=CURVES, default="bn128")
    parser.add_argument(
        "-o", "--output", type=command_line.folder, required=True, metavar="DIRECTORY"
    )
    arguments = parser.parse_args()
    with command_line.made(parser, arguments.output) as folder:
        for path in write_chain(folder, arguments.k, CURVES[arguments.curve]):
            print(path)


if __name__ == "__main__":
    main()
