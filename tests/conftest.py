"""What the test areas share: real snarkjs files, and a codec of their container."""

import gc
import signal
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import settings

# How long an example takes says more of the machine than of the code.
settings.register_profile("timeless", deadline=None)
settings.load_profile("timeless")


def pytest_collection_finish() -> None:
    """What pytest keeps of ten thousand tests need not be looked through by every collection."""
    gc.collect()
    gc.freeze()


FIXTURES = Path(__file__).parent / "fixtures"
CURVES = ("bn128", "bls12381")
CIRCUITS = ("multiplier", "zeropub", "manypub")


@dataclass
class Sections:
    """An r1cs, wtns or zkey file taken apart, to be changed and put together again.

    Written with struct alone, so that it shares nothing with the readers under test.
    """

    magic: bytes
    version: int
    parts: list[tuple[int, bytearray]] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> "Sections":
        data = path.read_bytes()
        magic, version, count = struct.unpack_from("<4sII", data)
        result = cls(magic, version)
        position = 12
        for _ in range(count):
            kind, size = struct.unpack_from("<IQ", data, position)
            position += 12
            result.parts.append((kind, bytearray(data[position : position + size])))
            position += size
        assert position == len(data)
        return result

    def __getitem__(self, kind: int) -> bytearray:
        return next(data for number, data in self.parts if number == kind)

    def __setitem__(self, kind: int, data: bytes) -> None:
        self.parts = [(n, bytearray(data) if n == kind else old) for n, old in self.parts]

    def without(self, kind: int) -> "Sections":
        kept = [(number, data) for number, data in self.parts if number != kind]
        return Sections(self.magic, self.version, kept)

    def encode(self) -> bytes:
        head = struct.pack("<4sII", self.magic, self.version, len(self.parts))
        return head + b"".join(struct.pack("<IQ", n, len(data)) + data for n, data in self.parts)

    def boundaries(self) -> Iterator[int]:
        """Offsets at which a section's header or data begins."""
        position = 12
        for _, data in self.parts:
            yield position
            yield position + 12
            position += 12 + len(data)


@pytest.fixture(scope="session")
def sections() -> type[Sections]:
    return Sections


@pytest.fixture(params=CURVES)
def curve_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@dataclass(frozen=True)
class Circuit:
    """The files of one fixture."""

    curve: str
    name: str

    @property
    def folder(self) -> Path:
        return FIXTURES / self.curve / self.name

    @property
    def key(self) -> Path:
        return self.folder / "circuit.zkey"

    @property
    def witness(self) -> Path:
        return self.folder / "witness.wtns"

    @property
    def r1cs(self) -> Path:
        return self.folder / "circuit.r1cs"


@pytest.fixture(
    params=[Circuit(curve, name) for curve in CURVES for name in CIRCUITS],
    ids=lambda circuit: f"{circuit.curve}-{circuit.name}",
)
def circuit(request: pytest.FixtureRequest) -> Circuit:
    """Each of the six fixtures."""
    assert isinstance(request.param, Circuit)
    return request.param


@pytest.fixture
def multiplier(curve_name: str) -> Circuit:
    """The smallest fixture of each curve."""
    return Circuit(curve_name, "multiplier")


@pytest.fixture(scope="session", autouse=True)
def signals_as_in_a_terminal() -> Iterator[None]:
    """Undo what nohup and background shells make every child ignore: the tests send signals."""
    ignored = [
        number
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is signal.SIG_IGN
    ]
    for number in ignored:
        usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, usual)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
