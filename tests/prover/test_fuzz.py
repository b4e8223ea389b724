"""Whatever bytes are flipped, the command ends with 0 or 2 and never with a traceback."""

import contextlib
import io
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prover.cli import main

SETTINGS = settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def run(words):
    err = io.StringIO()
    with contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO()):
        code = main([str(word) for word in words])
    return code, err.getvalue()


def structure(sections, path):
    """Offsets of the file's header, of every section's header, and of the first 120 bytes in it."""
    raw = sections.read(path)
    offsets, position = list(range(12)), 12
    for _, data in raw.parts:
        offsets += range(position, position + 12 + min(len(data), 120))
        position += 12 + len(data)
    return offsets


@pytest.fixture(params=["key", "witness"])
def target(request):
    return request.param


@SETTINGS
@given(data=st.data())
def test_flips_in_the_structure(multiplier, sections, target, tmp_path, data):
    original = getattr(multiplier, target)
    content = bytearray(original.read_bytes())
    flips = st.tuples(st.sampled_from(structure(sections, original)), st.integers(1, 255))
    for offset, mask in data.draw(st.lists(flips, min_size=1, max_size=3)):
        content[offset] ^= mask
    check(multiplier, target, tmp_path, content)


@SETTINGS
@given(data=st.data())
def test_flips_anywhere(multiplier, target, tmp_path, data):
    content = bytearray(getattr(multiplier, target).read_bytes())
    flips = st.tuples(st.integers(0, len(content) - 1), st.integers(1, 255))
    for offset, mask in data.draw(st.lists(flips, min_size=1, max_size=3)):
        content[offset] ^= mask
    check(multiplier, target, tmp_path, content)


@SETTINGS
@given(data=st.data())
def test_words_replaced_by_extreme_ones(multiplier, sections, target, tmp_path, data):
    original = getattr(multiplier, target)
    content = bytearray(original.read_bytes())
    offset = data.draw(st.sampled_from(structure(sections, original)[:-4]))
    value = data.draw(st.sampled_from([0, 1, 2**31 - 1, 2**31, 2**32 - 1]))
    struct.pack_into("<I", content, offset, value)
    check(multiplier, target, tmp_path, content)


def check(multiplier, target, tmp_path, content):
    changed = tmp_path / "changed"
    changed.write_bytes(content)
    files = {"key": multiplier.key, "witness": multiplier.witness, target: changed}
    proof, public = tmp_path / "proof.json", tmp_path / "public.json"
    code, err = run(["prove", files["key"], files["witness"], proof, public])
    assert code in (0, 2)
    assert len(err.splitlines()) <= 1
    assert proof.exists() == public.exists() == (code == 0)
    for path in (proof, public):
        path.unlink(missing_ok=True)
    code, err = run(["info", "--check", changed])
    assert code in (0, 2)
    assert len(err.splitlines()) == (1 if code else 0)
