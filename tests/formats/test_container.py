"""The container: whatever its table of sections claims, it is opened soundly or refused."""

import os
import socket
import struct

import pytest

from prover.errors import MalformedFile, UnreadableFile, UnsupportedFile
from prover.formats.container import Container
from prover.formats.r1cs import R1cs
from prover.formats.wtns import Witness
from prover.formats.zkey import ProvingKey


@pytest.fixture(params=["zkey", "wtns", "r1cs"])
def kind(request):
    return request.param


@pytest.fixture
def source(kind, multiplier):
    return {"zkey": multiplier.key, "wtns": multiplier.witness, "r1cs": multiplier.r1cs}[kind]


@pytest.fixture
def open_file(kind):
    return {"zkey": ProvingKey, "wtns": Witness, "r1cs": R1cs}[kind].open


@pytest.fixture
def path(tmp_path, kind):
    return tmp_path / f"changed.{kind}"


def test_every_truncation_is_refused(source, open_file, path):
    data = source.read_bytes()
    path.write_bytes(data)
    for length in reversed(range(len(data))):
        os.truncate(path, length)
        with pytest.raises(MalformedFile):
            open_file(path)


def test_truncation_at_each_section_boundary_is_told_as_such(source, open_file, path, sections):
    data = source.read_bytes()
    for boundary in sections.read(source).boundaries():
        path.write_bytes(data[:boundary])
        with pytest.raises(MalformedFile, match=r"is truncated|claims \d+ sections"):
            open_file(path)


def test_trailing_bytes_are_refused(source, open_file, path):
    path.write_bytes(source.read_bytes() + b"\0")
    with pytest.raises(MalformedFile, match="1 bytes after its last section"):
        open_file(path)


def test_duplicate_sections_are_refused(source, open_file, path, sections):
    raw = sections.read(source)
    for number, data in list(raw.parts):
        doubled = sections(raw.magic, raw.version, [*raw.parts, (number, data)])
        path.write_bytes(doubled.encode())
        with pytest.raises(MalformedFile, match=f"section {number} twice"):
            open_file(path)


def test_missing_sections_are_refused(source, open_file, path, sections):
    raw = sections.read(source)
    for number, _ in raw.parts:
        path.write_bytes(raw.without(number).encode())
        with pytest.raises(MalformedFile, match=f"lacks section {number}"):
            open_file(path)


@pytest.mark.parametrize("size", [0, 1, 3])
def test_short_sections_are_refused(source, open_file, path, sections, size):
    raw = sections.read(source)
    for number, data in raw.parts:
        if len(data) > size:
            changed = sections(raw.magic, raw.version, list(raw.parts))
            changed[number] = data[:size]
            path.write_bytes(changed.encode())
            with pytest.raises((MalformedFile, UnsupportedFile)):
                open_file(path)


@pytest.mark.parametrize("change", [-1, 1, 32, 2**40, 2**63])
def test_lying_section_sizes_are_refused(source, open_file, path, sections, change):
    raw = sections.read(source)
    for index, (number, data) in enumerate(raw.parts):
        size = len(data) + change
        if size >= 0:
            encoded = bytearray(raw.encode())
            at = 12 + sum(12 + len(other) for _, other in raw.parts[:index])
            struct.pack_into("<IQ", encoded, at, number, size)
            path.write_bytes(encoded)
            with pytest.raises((MalformedFile, UnsupportedFile)):
                open_file(path)


@pytest.mark.parametrize("count", [0, 1, 1000, 2**32 - 1])
def test_lying_section_counts_are_refused(source, open_file, path, count):
    data = bytearray(source.read_bytes())
    struct.pack_into("<I", data, 8, count)
    path.write_bytes(data)
    with pytest.raises(MalformedFile):
        open_file(path)


def test_another_version_is_refused(source, open_file, path):
    data = bytearray(source.read_bytes())
    struct.pack_into("<I", data, 4, 3)
    path.write_bytes(data)
    with pytest.raises(UnsupportedFile, match="version 3 is not supported"):
        open_file(path)


def test_another_kind_is_refused(multiplier):
    with pytest.raises(MalformedFile, match="is a zkey file, but a wtns file is needed"):
        Witness.open(multiplier.key)
    with pytest.raises(MalformedFile, match="is a wtns file, but a zkey file is needed"):
        ProvingKey.open(multiplier.witness)
    with pytest.raises(MalformedFile, match="is a wtns file, but a r1cs file is needed"):
        R1cs.open(multiplier.witness)


def test_what_is_no_such_file_is_refused(tmp_path):
    path = tmp_path / "some.zkey"
    path.write_bytes(b"PK\3\4 something else entirely")
    with pytest.raises(MalformedFile, match="unknown magic"):
        Container.open(path)


def test_an_empty_file_is_refused(tmp_path):
    path = tmp_path / "empty.zkey"
    path.touch()
    with pytest.raises(MalformedFile, match="is empty"):
        Container.open(path)


def test_what_cannot_be_read_is_refused(tmp_path):
    pipe, link, name = tmp_path / "pipe", tmp_path / "loop", tmp_path / "socket"
    os.mkfifo(pipe)
    link.symlink_to(link)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(name))
        for path, message in [
            (tmp_path / "missing.zkey", "no such file"),
            (tmp_path / "missing" / "a.zkey", "no such file"),
            (tmp_path, "is a directory"),
            (pipe, "not a regular file"),
            ("/dev/zero", "not a regular file"),
            (name, "cannot be read"),
            (link, "too many levels"),
            (tmp_path / ("x" * 300), "name too long"),
            ("", "no such file"),
        ]:
            with pytest.raises(UnreadableFile, match=message):
                Container.open(path)
