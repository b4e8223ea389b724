"""`scripts/wheels.sh` with a Python that only says what a real one would have done."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "wheels.sh"
PYTHON = """#!/usr/bin/env bash
all="$*"
case "$1 $2" in
  "-m $FAILING") exit 3 ;;
  "-m venv") mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;
  "-m pip")
    case "$all" in
      *" wheel "*) folder=${all#* -w }; mkdir -p "${folder% .}"; : >"${folder% .}/raw.whl" ;;
    esac ;;
  "-m auditwheel") : >dist/bigmem-1-cp311-cp311-manylinux_2_28.whl ;;
esac
"""


@pytest.mark.parametrize(
    ("failing", "code", "told"), [("pytest", 1, "the tests failed on"), ("none", 0, "passes on")]
)
def test_a_wheel_passes_only_if_its_tests_do(
    tmp_path: Path, failing: str, code: int, told: str
) -> None:
    for folder in ("scripts", "tests", "docs", "circuits", "examples", "programs"):
        (tmp_path / folder).mkdir()
    shutil.copy(SCRIPT, tmp_path / "scripts")
    (tmp_path / "pyproject.toml").touch()
    python = tmp_path / "programs" / "python3.11"
    python.write_text(PYTHON)
    for engine in ("docker", "podman"):
        (tmp_path / "programs" / engine).write_text("#!/bin/sh\nexit 1\n")
    for program in python.parent.iterdir():
        program.chmod(0o755)
    done = subprocess.run(
        ["bash", str(tmp_path / "scripts" / "wheels.sh"), "3.11"],
        env={**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}", "FAILING": failing},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert told in done.stdout + done.stderr
