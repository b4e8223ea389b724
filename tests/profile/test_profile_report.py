"""The report in words."""

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from profiled import MIB, PRICES, made_up, made_up_line, records

from bigmem.profile.account import account
from bigmem.profile.picture import picture
from bigmem.profile.report import plain, sections, write

LAYERS = {
    "layers": [
        {
            "name": "outer",
            "calls": 1,
            "wall_s": 3.0,
            "inner_s": 2.0,
            "gap_s": 1.0,
            "share": 1 / 3,
            "layers": [
                {
                    "name": "in\nner",
                    "calls": 1234,
                    "wall_s": 2.0,
                    "inner_s": 0.0,
                    "gap_s": 2.0,
                    "share": 1.0,
                    "layers": [],
                }
            ],
        }
    ]
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def text_of(record, wall_s=10.0, faults=0, allocator=None):
    found = account(record, PRICES, wall_s, faults)
    return plain(list(sections(found, PRICES, record, allocator)))


def test_what_a_reader_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.py").write_text("import numpy\n\nframes = numpy.empty(n)\n")
    file = str(tmp_path / "program.py")
    record = made_up(
        made_up_line(
            file=file,
            line=3,
            calls=1200,
            bytes=3 << 30,
            alloc_s=0.25,
            free_s=1.5,
            gil_free_s=1.25,
            faulted_small=500_000,
            touched_small=500_000,
        ),
        peak=512 * MIB,
        fresh=512 * MIB,
        layers=LAYERS,
    )
    lines = text_of(record, faults=500_000).splitlines()
    assert "    1.500  freeing: 1.250 s with the GIL held" in lines
    assert "    1.000  faulting: 500,000 minor faults" in lines
    assert "    2.750  memory tax: 27.5% of the wall time" in lines
    assert "   10.000  wall time; at most 512.0 MiB of arrays at once" in lines
    assert "2.00 us, for 2 MiB 200 us" in "".join(lines)
    (worst,) = [line for line in lines if "program.py:3" in line]
    figures = ["2.750", "0.250", "1.000", "1.500", "1,200", "3.0", "GiB"]
    assert worst.split() == [*figures, "program.py:3", "frames", "=", "numpy.empty(n)"]
    saved = [line.split() for line in lines if line.endswith(("recycle", "deferred"))]
    assert saved == [
        ["2.331", "0.167", "0.002", "recycle"],
        ["1.498", "1.000", "0.002", "deferred"],
    ]
    assert "      1  3.000   2.000  1.000  outer" in lines
    assert "  1,234  2.000                   in\\nner" in lines


def test_under_an_allocator_nothing_is_foretold():
    record = made_up(made_up_line(calls=1, bytes=8, free_s=1.0))
    text = text_of(record, allocator="recycle")
    assert "left: recycle" in text
    assert "would save" not in text


def test_where_there_is_nothing_to_save_it_says_so():
    record = made_up(made_up_line(calls=1, bytes=8, free_s=0.001))
    assert "No policy saves 1% of the wall time." in text_of(record)


def test_many_lines_are_cut():
    record = made_up(*(made_up_line(line=i, calls=1, free_s=1.0 + i) for i in range(14)))
    text = text_of(record)
    assert "program.py:13" in text
    assert "program.py:3 " not in text
    assert "and 4 more with less" in text


@given(record=records(), wall_s=st.floats(0, 1e6), faults=st.integers(0, 1 << 40))
def test_any_record_can_be_reported(record, wall_s, faults):
    text = text_of(record, wall_s, faults)
    assert text.replace("\n", "").isprintable()
    assert "-0.000" not in text
    stream = Terminal()
    found = account(record, PRICES, wall_s, faults)
    write(list(sections(found, PRICES, record, None)), stream)
    assert "memory tax" in stream.getvalue()


def test_a_picture_of_anything():
    record = made_up(
        made_up_line(file="$x^{2}$.py", calls=1, free_s=1.0), made_up_line(file="", free_s=2.0)
    )
    for found in (account(record, PRICES, 5.0, 1), account(made_up(), PRICES, 0.0, 0)):
        assert picture(found, "a $program$ {name").startswith(b"\x89PNG")
