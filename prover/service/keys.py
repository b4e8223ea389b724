"""The keys of a directory: which names there are, and what is known of each key."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bigmem.terminal import one_line
from prover.curves import SCALAR_BYTES
from prover.errors import FileError, UnreadableFile, reason_of

if TYPE_CHECKING:
    from prover.formats.zkey import ProvingKey

SUFFIX = ".zkey"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)
_WITNESS_HEADERS = 12 + 12 + 4 + SCALAR_BYTES + 4 + 12
"""Bytes of a wtns file before its values."""


class BadKey(FileError):
    """A file of the key directory cannot serve as a key."""


@dataclass(frozen=True)
class KeyFacts:
    """What clients, and the checks of their uploads, need to know of a key."""

    curve: str
    constraints: int
    domain: int
    signals: int
    public: int
    nbytes: int
    has_contribution: bool

    @classmethod
    def of(cls, key: "ProvingKey") -> "KeyFacts":
        """Of a key that has been checked."""
        return cls(
            curve=key.curve.name,
            constraints=key.constraints,
            domain=key.domain,
            signals=key.signals,
            public=key.public,
            nbytes=Path(key.path).stat().st_size,
            has_contribution=key.has_contribution,
        )

    @property
    def witness_bytes(self) -> int:
        """Bytes of a witness file of the circuit, as every witness calculator writes it."""
        return _WITNESS_HEADERS + self.signals * SCALAR_BYTES

    def to_json(self) -> dict[str, Any]:
        """As clients see it."""
        return {
            "curve": self.curve,
            "constraints": self.constraints,
            "domain": self.domain,
            "signals": self.signals,
            "public": self.public,
            "bytes": self.nbytes,
            "witness_bytes": self.witness_bytes,
            "has_contribution": self.has_contribution,
        }


def names(folder: Path) -> list[str]:
    """The names, without suffix, of all files of a directory that might be keys.

    Raises
    ------
    UnreadableFile
    """
    try:
        files = [path.name for path in folder.iterdir() if path.suffix == SUFFIX]
    except OSError as error:
        raise UnreadableFile(folder, f"cannot be read: {reason_of(error)}") from None
    return sorted(name.removesuffix(SUFFIX) for name in files)


def locate(folder: Path, name: str) -> Path:
    """The file of a key, relative to the directory, links followed.

    Raises
    ------
    BadKey
        A name that no request could use, or a link that leads out of the directory.
    """
    shown = one_line(name + SUFFIX)
    if not _NAME.fullmatch(name):
        raise BadKey(
            shown, "names are up to 100 letters, digits, '.', '_' and '-', a letter or digit first"
        )
    root = folder.resolve()
    try:
        place = (root / (name + SUFFIX)).resolve(strict=True)
    except (OSError, RuntimeError):  # a dangling link, a loop of links
        raise BadKey(shown, "is no file, or a link that leads nowhere") from None
    if not place.is_relative_to(root):
        raise BadKey(shown, "is a link that leads out of the key directory")
    return place.relative_to(root)
