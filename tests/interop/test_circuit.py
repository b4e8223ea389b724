"""The committed circuit is what its sources make."""

import filecmp
import subprocess
from pathlib import Path

import pytest

CIRCUITS = Path(__file__).parents[2] / "circuits"
MEMBERSHIP = CIRCUITS / "membership"


def test_sources_make_the_committed_files_again(node_path: dict[str, str], tmp_path: Path) -> None:
    subprocess.run(
        [CIRCUITS / "build.sh", tmp_path], check=True, env=node_path, stdout=subprocess.DEVNULL
    )
    made = sorted(path.name for path in tmp_path.iterdir())
    assert {"membership.r1cs", "witness_1.wtns", "input_1.json"} <= set(made)
    assert filecmp.cmpfiles(MEMBERSHIP, tmp_path, made, shallow=False)[0] == made


@pytest.mark.parametrize("number", [1, 2, 3])
def test_witnesses_satisfy_the_circuit(snarkjs, number: int) -> None:
    result = snarkjs(
        "wtns", "check", MEMBERSHIP / "membership.r1cs", MEMBERSHIP / f"witness_{number}.wtns"
    )
    assert result.returncode == 0, result.stdout
    assert "WITNESS CHECKING FINISHED SUCCESSFULLY" in result.stdout
