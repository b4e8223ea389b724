"""The pages' examples for a GPU run on one, those for PyTorch where it is installed."""

import importlib.metadata
from pathlib import Path

import pytest
from code_blocks import PACKAGES, collect, lay_out, run_python


def can_be_used(name: str) -> bool:
    """Whether a package is installed, and not in a build for processors alone."""
    try:
        return not importlib.metadata.version(name).endswith("+cpu")
    except importlib.metadata.PackageNotFoundError:
        return False


HERE = {"a GPU", *filter(can_be_used, PACKAGES)}
BLOCKS = [block for block in collect()[0] if block.language == "python" and block.needs <= HERE]


@pytest.mark.parametrize("page", sorted({b.page for b in BLOCKS if "a GPU" in b.needs}))
def test_python_runs(page: str, tmp_path: Path) -> None:
    lay_out(tmp_path)
    run_python([block for block in BLOCKS if block.page == page], tmp_path)
