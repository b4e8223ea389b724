"""The JSON files that snarkjs and this prover share: proof, public signals, verification key.

Readers are strict: decimal strings in canonical form, below the field's prime, nested as they must
be. Whether points lie on the curve is not looked at here. Writers write byte for byte what snarkjs
does.
"""

import json
import os
import re
import reprlib
from collections.abc import Iterable, Sequence
from typing import Any, BinaryIO, NoReturn

import numpy as np

from prover.curves import CURVES, Curve
from prover.errors import MalformedFile, MismatchedFiles, UnreadableFile, UnsupportedFile
from prover.formats.container import Bytes
from prover.groth16 import Proof

PROTOCOL = "groth16"
_DECIMAL = re.compile(r"0|[1-9][0-9]*", re.ASCII)
# A string without an end goes to the end, or the search would begin again at each quote in it.
_NESTING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[][{}]', re.DOTALL)
"""A string, which nests nothing whatever it holds, or a bracket."""
_DEEPEST = 100
_LARGEST = 64 << 20
"""Bytes of a file: room for the key of 250,000 public signals."""


class Document:
    """A parsed JSON file; every complaint about its content names the file.

    Parameters
    ----------
    path
        The file.

    Raises
    ------
    UnreadableFile, MalformedFile
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        content = self._content()
        if nests_deeply(content):
            self.refuse("is nested too deeply")
        try:
            # Two keys of one name are read differently by different verifiers.
            self.value: Any = json.loads(content.decode(), object_pairs_hook=self._unique)
        except (ValueError, RecursionError):
            raise MalformedFile(self.path, "is no JSON file") from None

    def _content(self) -> bytes:
        try:
            with os.fdopen(_open_at_once(self.path), "rb") as file:
                content = file.read(_LARGEST + 1)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise UnreadableFile(self.path, f"cannot be read: {str(reason).lower()}") from None
        if len(content) > _LARGEST:
            self.refuse(f"holds more than {_LARGEST >> 20} MiB")
        return content

    def _unique(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        if len(fields) < len(pairs):
            self.refuse("holds a field twice")
        return fields

    def refuse(self, problem: str) -> NoReturn:
        """Raise MalformedFile."""
        raise MalformedFile(self.path, problem)

    def field(self, name: str) -> Any:
        """A field of the outermost object, which must have it."""
        if not isinstance(self.value, dict):
            self.refuse("is no JSON object")
        if name not in self.value:
            self.refuse(f"lacks {name}")
        return self.value[name]

    def items(self, value: Any, length: int | None, what: str) -> list[Any]:
        """A list, of the given length unless that is None."""
        if not isinstance(value, list) or length not in (None, len(value)):
            self.refuse(f"{what} is no list" + (f" of {length}" if length is not None else ""))
        return list(value)

    def integer(self, value: Any, modulus: int, what: str) -> int:
        """A canonical decimal string below ``modulus``."""
        # The length first: converting a very long string would take quadratic time.
        if (
            not isinstance(value, str)
            or len(value) > len(str(modulus))
            or not _DECIMAL.fullmatch(value)
        ):
            self.refuse(f"{what} is no decimal string of at most {len(str(modulus))} digits")
        number = int(value)
        if number >= modulus:
            self.refuse(f"{what} is not below the prime of its field")
        return number

    def point(self, value: Any, curve: Curve, group: int, what: str) -> Bytes:
        """A point as a row of affine Montgomery coordinates, shape (1, bytes of a point)."""
        coordinates = [
            self._coordinate(part, curve, group, f"{what}[{i}]")
            for i, part in enumerate(self.items(value, 3, what))
        ]
        x, y, z = coordinates
        zero, one = [0] * group, [1] + [0] * (group - 1)
        if (x, y, z) == (zero, one, zero):
            return encode_point(curve, [0] * 2 * group)
        if z != one:
            self.refuse(f"{what} is not affine: its third coordinate is not one")
        if x == y == zero:
            # All zero bytes mean infinity inside the prover; the point (0, 0) must not become it.
            self.refuse(f"{what} is not a point of {curve.title} G{group}")
        return encode_point(curve, x + y)

    def _coordinate(self, value: Any, curve: Curve, group: int, what: str) -> list[int]:
        if group == 1:
            return [self.integer(value, curve.q, what)]
        parts = self.items(value, 2, what)
        return [self.integer(part, curve.q, f"{what}[{i}]") for i, part in enumerate(parts)]

    def expect_protocol(self) -> None:
        """Refuse another proof system than Groth16."""
        protocol = self.field("protocol")
        if protocol != PROTOCOL:
            raise UnsupportedFile(self.path, f"its protocol is {shown(protocol)}, not {PROTOCOL!r}")


def shown(value: Any) -> str:
    """What a file has in some place, cut short for an error's one line."""
    return reprlib.repr(value)


def _open_at_once(path: str) -> int:
    """Open a file, a named pipe too without waiting for someone to write to it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    os.set_blocking(descriptor, True)
    return descriptor


def nests_deeply(content: bytes) -> bool:
    """Whether JSON nests more than any of ours.

    Python's own limit guards the machine's stack only until some library lifts it (py_ecc does).
    """
    depth = 0
    for token in _NESTING.finditer(content):
        depth += (token[0] in b"[{") - (token[0] in b"]}")
        if depth > _DEEPEST:
            return True
    return False


def encode_point(curve: Curve, coordinates: Sequence[int]) -> Bytes:
    """Affine coordinates as a row of Montgomery form, shape (1, bytes of a point)."""
    size = curve.coordinate_bytes
    encoded = b"".join(((x << 8 * size) % curve.q).to_bytes(size, "little") for x in coordinates)
    return np.frombuffer(encoded, np.uint8).reshape(1, -1)


def decode_coordinates(curve: Curve, row: Bytes) -> list[int]:
    """The integers behind a row of Montgomery-form coordinates."""
    size = curve.coordinate_bytes
    data = row.tobytes()
    inverse = pow(1 << 8 * size, -1, curve.q)
    return [
        int.from_bytes(data[i : i + size], "little") * inverse % curve.q
        for i in range(0, len(data), size)
    ]


def point_to_json(curve: Curve, row: Bytes) -> list[Any]:
    """A point of either group as snarkjs writes it."""
    coordinates = decode_coordinates(curve, row)
    group = len(coordinates) // 2
    x, y = coordinates[:group], coordinates[group:]
    z = [1] + [0] * (group - 1)
    if not any(coordinates):
        y, z = z, y
    if group == 1:
        return [str(x[0]), str(y[0]), str(z[0])]
    return [[str(part) for part in coordinate] for coordinate in (x, y, z)]


def read_proof(path: str | os.PathLike[str], curve: Curve) -> Proof:
    """Read a proof for a key of the given curve.

    Raises
    ------
    UnreadableFile, MalformedFile, UnsupportedFile
    MismatchedFiles
        If the proof names another curve.
    """
    document = Document(path)
    document.expect_protocol()
    named = document.value.get("curve", curve.name)
    if named != curve.name:
        raise MismatchedFiles(
            f"{document.path}: its curve is {shown(named)}, but the key is over {curve.name!r}"
        )
    a, b, c = (
        document.point(document.field(name), curve, group, name)
        for name, group in (("pi_a", 1), ("pi_b", 2), ("pi_c", 1))
    )
    return Proof(curve, a, b, c)


def write_proof(file: BinaryIO, proof: Proof) -> None:
    """Write a proof as snarkjs does."""
    write_json(
        file,
        {
            "pi_a": point_to_json(proof.curve, proof.a),
            "pi_b": point_to_json(proof.curve, proof.b),
            "pi_c": point_to_json(proof.curve, proof.c),
            "protocol": PROTOCOL,
            "curve": proof.curve.name,
        },
    )


def read_public(path: str | os.PathLike[str], curve: Curve) -> list[int]:
    """Read public signals, each below the order r.

    Raises
    ------
    UnreadableFile, MalformedFile
    """
    document = Document(path)
    values = document.items(document.value, None, "the content")
    return [document.integer(v, curve.r, f"public signal {i}") for i, v in enumerate(values)]


def write_public(file: BinaryIO, signals: Iterable[int]) -> None:
    """Write public signals as snarkjs does."""
    write_json(file, [str(signal) for signal in signals])


def write_json(file: BinaryIO, value: Any) -> None:
    """Write with the indentation of snarkjs, and like it without a final newline."""
    # It breaks the line inside an empty list too, which only public signals can be.
    text = json.dumps(value, indent=1) if value else "[\n]"
    file.write(text.encode())


def named_curve(document: Document) -> Curve:
    """The curve that a verification key names.

    Raises
    ------
    UnsupportedFile
    """
    name = document.field("curve")
    if not isinstance(name, str) or name not in CURVES:
        raise UnsupportedFile(
            document.path, f"its curve is {shown(name)}; the curves are {' and '.join(CURVES)}"
        )
    return CURVES[name]
