"""The pages' examples that need large packages run where those are."""

from pathlib import Path

import pytest
from code_blocks import PACKAGES, collect, lay_out, run_python

HERE = set(PACKAGES)
BLOCKS = [block for block in collect()[0] if block.language == "python" and block.needs <= HERE]


@pytest.mark.parametrize("page", sorted({block.page for block in BLOCKS if block.needs}))
def test_python_runs(page: str, tmp_path: Path) -> None:
    lay_out(tmp_path)
    run_python([block for block in BLOCKS if block.page == page], tmp_path)
