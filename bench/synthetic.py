"""Circuits of any size with the witness of a real one: mostly bits, the rest full-size products.

    python -m bench.synthetic 20 --curve bls12381 --witnesses 10 -o DIRECTORY

writes synthetic20.r1cs and synthetic20-00.wtns to synthetic20-09.wtns. Of every 16 constraints 11
are b (1 - b) = 0, and 5 multiply chains of products: x_{t+1} = x_t s, where s is the start of the
chain. So 34.3 % of a witness are zeros, 34.3 % ones and 31.3 % full-size values; and of the key's B
points, those of the products are infinity, since only bits and starts are on that side. The one
public signal is the end of a chain.

Chains run side by side, so that NumPy and the native product make any size in 320 steps.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench import command_line
from bench.chain import SLACK
from bench.circuit_files import TERM, Bytes, scalar, write_r1cs, write_wtns
from prover.backends.cpu import _cpu
from prover.curves import CURVES, SCALAR_BYTES, Curve

BITS, PRODUCTS = 11, 5
"""Constraints of a group; with `SLACK` left out, any size is whole groups."""

_GROUP = BITS + PRODUCTS
_PIECE = 1 << 14
"""Groups that are written at a time."""

_BIT = np.dtype(
    [("a_terms", "<u4"), ("a", TERM), ("b_terms", "<u4"), ("b", TERM, 2), ("c_terms", "<u4")]
)
_PRODUCT = np.dtype(
    [
        *(("a_terms", "<u4"), ("a", TERM)),
        *(("b_terms", "<u4"), ("b", TERM)),
        *(("c_terms", "<u4"), ("c", TERM)),
    ]
)
_CONSTRAINTS = np.dtype([("bit", _BIT, BITS), ("product", _PRODUCT, PRODUCTS)])


class Synthetic:
    """The circuit of one size.

    Parameters
    ----------
    k
        Binary logarithm of the domain, at least 5.

    Attributes
    ----------
    constraints, wires
        Numbers of them; wire 0 is the constant one, 1 the end of a chain (the output), then come
        the starts of the chains (inputs), then what each constraint but the last determines.
    chains
        Number of chains.
    """

    def __init__(self, k: int, curve: Curve) -> None:
        self.k = k
        self.curve = curve
        self.constraints = (1 << k) - SLACK
        self.chains = 1 << max(0, k - 10)
        self.wires = 1 + self.chains + self.constraints
        self._groups = self.constraints // _GROUP

    def write_circuit(self, directory: Path) -> Path:
        """Write the r1cs file; its path."""
        path = directory / f"synthetic{self.k}.r1cs"
        pieces = self._pieces()
        write_r1cs(path, self.curve, wires=self.wires, private=self.chains, constraints=pieces)
        return path

    def write_witness(self, directory: Path, number: int) -> Path:
        """Write a witness, another one for each number; its path."""
        path = directory / f"synthetic{self.k}-{number:02d}.wtns"
        starts, rows = self._values(np.random.default_rng([self.k, number]))
        write_wtns(path, self.curve, [scalar(1).reshape(1, -1), rows[-1:], starts, rows[:-1]])
        return path

    def _pieces(self) -> Iterator[NDArray[np.void]]:
        one, minus_one = scalar(1), scalar(self.curve.r - 1)
        for begin in range(0, self._groups, _PIECE):
            groups = np.arange(begin, min(begin + _PIECE, self._groups))
            records = np.zeros(len(groups), _CONSTRAINTS)
            bit, product = records["bit"], records["product"]
            bit["a_terms"], bit["b_terms"] = 1, 2
            bit["a"]["wire"] = bit["b"]["wire"][..., 1] = self._bit_wires(groups)
            bit["a"]["value"] = bit["b"]["value"][..., 0, :] = one
            bit["b"]["value"][..., 1, :] = minus_one
            link = groups[:, None] * PRODUCTS + np.arange(PRODUCTS)
            for side, wire in (
                ("a", self._chain_wires(link)),
                ("b", self._chain_wires(link % self.chains)),
                ("c", self._chain_wires(link + self.chains)),
            ):
                product[f"{side}_terms"] = 1
                product[side]["wire"] = wire
                product[side]["value"] = one
            # A group is 16 constraints of one length.
            yield records.view(np.dtype((np.void, records.itemsize // _GROUP)))

    def _bit_wires(self, groups: NDArray[np.intp]) -> NDArray[np.intp]:
        return 2 + self.chains + groups[:, None] * _GROUP + np.arange(BITS)

    def _chain_wires(self, value: NDArray[np.intp]) -> NDArray[np.intp]:
        """Wires of chain values: the starts, then the products, as many chains side by side."""
        group, place = np.divmod(value - self.chains, PRODUCTS)
        wire = 2 + self.chains + group * _GROUP + BITS + place
        wire[wire == self.wires] = 1
        return np.where(value < self.chains, 2 + value, wire)

    def _values(self, rng: np.random.Generator) -> tuple[Bytes, Bytes]:
        """The starts of the chains, and what each constraint determines, standard form."""
        chains = self.chains
        values = np.empty((chains + self._groups * PRODUCTS, SCALAR_BYTES), np.uint8)
        values[:chains] = _below(self.curve.r, chains, rng)  # Montgomery form, as good as any
        for begin in range(0, len(values) - chains, chains):
            count = min(chains, len(values) - chains - begin)
            previous, start = values[begin : begin + count], values[:count]
            product = values[begin + chains : begin + chains + count]
            _cpu.multiply(self.curve.name, previous, start, product)
        _cpu.from_montgomery(self.curve.name, "scalar", values, values)
        rows = np.zeros((self._groups, _GROUP, SCALAR_BYTES), np.uint8)
        rows[:, :BITS, 0] = rng.integers(0, 2, (self._groups, BITS), np.uint8)
        rows[:, BITS:] = values[chains:].reshape(self._groups, PRODUCTS, SCALAR_BYTES)
        return values[:chains], rows.reshape(-1, SCALAR_BYTES)


def _below(r: int, n: int, rng: np.random.Generator) -> Bytes:
    """Uniform below the top 32 bits of r, which is as good as below r."""
    words = rng.integers(0, 1 << 32, (n, 8), np.uint32)
    words[:, 7] = rng.integers(0, r >> 224, n, np.uint32)
    return words.view(np.uint8)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("k", type=command_line.log2, help="binary logarithm of the domain")
    parser.add_argument("--curve", choices=CURVES, default="bls12381")
    parser.add_argument(
        "--witnesses", type=command_line.count, default=1, metavar="N", help="how many to write"
    )
    parser.add_argument(
        "-o", "--output", type=command_line.folder, required=True, metavar="DIRECTORY"
    )
    arguments = parser.parse_args()
    circuit = Synthetic(arguments.k, CURVES[arguments.curve])
    with command_line.made(parser, arguments.output) as folder:
        print(circuit.write_circuit(folder))
        for number in range(arguments.witnesses):
            print(circuit.write_witness(folder, number))


if __name__ == "__main__":
    main()
