"""What docs/dask.md shows is what was measured or follows from the formats."""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench import dask, scaling
from bench.chain import write_chain
from prover.cli import main
from prover.curves import CURVES

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "dask.md").read_text(encoding="utf-8")
RESULTS = ROOT / "bench" / "results"


def test_measured_tables_are_the_committed_results() -> None:
    table = (RESULTS / "dask.md").read_text(encoding="utf-8")
    assert f"<!-- begin dask.md -->\n\n{table.strip()}\n\n<!-- end dask.md -->" in PAGE
    content = json.loads((RESULTS / "dask.json").read_text(encoding="utf-8"))
    options = argparse.Namespace(side=content["side"], chunks=content["chunks"])
    made = dask.markdown(content["medians"], options)
    assert made.rpartition("Machine:")[0] == table.rpartition("Machine:")[0]


def test_tables_on_paper_are_what_the_formats_say() -> None:
    assert (RESULTS / "scaling.md").read_text(encoding="utf-8") == scaling.markdown()
    assert scaling.markdown().strip() in PAGE
    sector = scaling.circuits()["2^27, BLS12-381"]
    key = scaling.format_size(sector.key_bytes)
    assert f"the key, {key}, from each host's own disk" in " ".join(PAGE.split())
    assert f"only {sector.proof_bytes} bytes a circuit leave it" in " ".join(PAGE.split())


@pytest.mark.parametrize("name", ["bn128", "bls12381"])
def test_sizes_are_those_of_files(name: str, tmp_path: Path) -> None:
    curve = CURVES[name]
    circuit, witness = write_chain(tmp_path, 6, curve)
    key = tmp_path / "chain.zkey"
    assert main(["setup", "--insecure-dev-key", str(circuit), "-o", str(key)]) == 0
    expected = scaling.Circuit.chain(curve, 6)
    assert key.stat().st_size == expected.key_bytes
    assert witness.stat().st_size == expected.witness_bytes


def test_options_exist() -> None:
    (line,) = re.findall(r"^prover batch .*$", PAGE, re.MULTILINE)
    command = [sys.executable, "-m", "prover", "batch", "--help"]
    done = subprocess.run(command, check=True, timeout=60, capture_output=True, text=True)
    for option in re.findall(r"--[a-z-]+", line):
        assert option in done.stdout
