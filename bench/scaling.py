"""What a proof weighs, from the formats alone: files, memory, and what a cluster would move.

    python -m bench.scaling [--markdown FILE]

Nothing is measured. Circuits are chains (`bench.chain`) of 2^k rows: one term in each row of the
matrices A and B, one public signal, nearly as many signals as rows. Real circuits have more terms,
and their keys are larger by 44 bytes for each.
"""

import argparse
from dataclasses import dataclass

from bench import command_line, machine
from bench.chain import SLACK
from bench.machine import GIB
from bigmem.sizes import format_size
from prover.curves import CURVES, SCALAR_BYTES, Curve
from prover.formats.zkey import COEFFICIENT

# magic, version and number of sections; type and size of each.
_FILE, _SECTION = 12, 12
LINKS_GBIT = (1, 10, 100)
CIRCUITS = (("bn128", 16), ("bn128", 20), ("bls12381", 27))
"""Curves and binary logarithms of rows: a small circuit, a middling one, a part of a sector."""
SECTOR = 10
"""Circuits of 2^27 rows that one sector of a storage network is proved by."""


@dataclass(frozen=True)
class Circuit:
    """The numbers that all sizes follow from."""

    curve: Curve
    domain: int
    signals: int
    public: int
    coefficients: int

    @classmethod
    def chain(cls, curve: Curve, k: int) -> "Circuit":
        """`bench.chain.write_chain` with the same arguments."""
        links, public = (1 << k) - SLACK, 1
        # The setup adds a row for the constant and each public signal.
        return cls(curve, 1 << k, links + 2, public, 2 * links + public + 1)

    @property
    def witness_bytes(self) -> int:
        """Of a wtns file."""
        header = 4 + SCALAR_BYTES + 4
        return _FILE + 2 * _SECTION + header + SCALAR_BYTES * self.signals

    @property
    def key_bytes(self) -> int:
        """Of a zkey file without contributions."""
        curve = self.curve
        g1, g2 = curve.point_bytes(1), curve.point_bytes(2)
        header = 4 + curve.coordinate_bytes + 4 + SCALAR_BYTES + 12 + 3 * g1 + 3 * g2
        matrices = 4 + COEFFICIENT.itemsize * self.coefficients
        private = self.signals - self.public - 1
        points = (self.public + 1 + 2 * self.signals + private + self.domain) * g1
        contributions = 64 + 4
        sections = 4 + header + matrices + points + self.signals * g2 + contributions
        return _FILE + 10 * _SECTION + sections

    @property
    def proof_bytes(self) -> int:
        """Of the points of a proof, as workers return them."""
        return 2 * self.curve.point_bytes(1) + self.curve.point_bytes(2)

    @property
    def vector_bytes(self) -> int:
        """Of w, a, b and c in memory."""
        return SCALAR_BYTES * (self.signals + 3 * self.domain)


def circuits() -> dict[str, Circuit]:
    """Those of the tables, by name."""
    return {f"2^{k}, {CURVES[name].title}": Circuit.chain(CURVES[name], k) for name, k in CIRCUITS}


def seconds(nbytes: int, gbit: int) -> float:
    """How long a link takes at its nominal speed."""
    return nbytes * 8 / (gbit * 1e9)


def sizes() -> list[list[str]]:
    """A row a circuit."""
    rows = [["rows, curve", "witness", "proof", "key", "w, a, b, c in memory"]]
    for name, one in circuits().items():
        each = (one.witness_bytes, one.proof_bytes, one.key_bytes, one.vector_bytes)
        rows.append([name, *map(format_size, each)])
    return rows


def links() -> list[list[str]]:
    """What moves, and how long that takes."""
    rows = [["what moves", "size", *(f"{gbit} Gbit/s" for gbit in LINKS_GBIT)]]
    for name, one in circuits().items():
        for what, nbytes in (("a witness", one.witness_bytes), ("the key", one.key_bytes)):
            times = (f"{seconds(nbytes, gbit):.3g} s" for gbit in LINKS_GBIT)
            rows.append([f"{what}, {name}", format_size(nbytes), *times])
    return rows


def scheduler() -> list[list[str]]:
    """What goes through one scheduler at 10 Gbit/s each way, and what it holds."""
    rows = [["rows, curve", "witnesses a second", "held for 10 workers"]]
    for name, one in circuits().items():
        rate = 1 / seconds(one.witness_bytes, 10)
        rows.append([name, f"{rate:.3g}", format_size(2 * 10 * one.witness_bytes)])
    return rows


def markdown() -> str:
    """What docs/dask.md shows."""
    sector = circuits()["2^27, BLS12-381"]
    lines = [
        *machine.markdown_table(sizes()),
        "",
        *machine.markdown_table(links()),
        "",
        *machine.markdown_table(scheduler()),
        "",
        f"A sector of {SECTOR} such circuits: {SECTOR * sector.witness_bytes / GIB:.0f} GiB of "
        f"witnesses, {SECTOR * sector.vector_bytes / GIB:.0f} GiB of vectors, "
        f"{SECTOR * sector.proof_bytes:,} bytes of proofs.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--markdown", type=command_line.result_file, metavar="FILE")
    options = parser.parse_args()
    print(markdown(), end="")
    if options.markdown:
        command_line.write(options.markdown, markdown())


if __name__ == "__main__":
    main()
