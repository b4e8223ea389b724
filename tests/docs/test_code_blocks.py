"""Every code block of the README and of docs/ runs, or says what it needs and why."""

from pathlib import Path

import pytest
from code_blocks import (
    DATA,
    NEEDS,
    ROOT,
    SHELL,
    Block,
    Faulty,
    blocks_of,
    check_data,
    collect,
    lay_out,
    pages,
    program_of,
    run_python,
    run_shell,
)

BLOCKS, FAULTS = collect()
HERE = [block for block in BLOCKS if not block.needs]
PYTHON = {
    page: blocks
    for page in pages()
    if (blocks := [b for b in HERE if b.language == "python" and b.page == page])
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lay_out(tmp_path)
    return tmp_path


def test_every_block_is_of_a_known_kind() -> None:
    assert not FAULTS


def test_what_is_not_run_here_is_told_with_where_it_is_run() -> None:
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = contributing.split("| needs | what it is, and where it is run instead |\n")[1]
    rows = table.partition("\n\n")[0].splitlines()[1:]
    told = {row.split("|")[1].strip() for row in rows}
    assert told == set(NEEDS) == {need for block in BLOCKS for need in block.needs}


@pytest.mark.parametrize("page", PYTHON)
def test_python_runs(page: str, folder: Path) -> None:
    run_python(PYTHON[page], folder)


@pytest.mark.parametrize(
    "block", [b for b in HERE if b.language in SHELL], ids=lambda block: block.where
)
def test_commands_run(block: Block, folder: Path) -> None:
    run_shell(block, folder)


@pytest.mark.parametrize(
    "block", [b for b in BLOCKS if b.language in DATA], ids=lambda block: block.where
)
def test_data_is_well_formed(block: Block) -> None:
    check_data(block)


@pytest.mark.parametrize(
    "block",
    [b for b in BLOCKS if b.needs and b.language == "python"],
    ids=lambda block: block.where,
)
def test_python_that_is_not_run_here_compiles(block: Block) -> None:
    compile(program_of([block]), block.page, "exec")


@pytest.mark.parametrize(
    ("block", "fault"),
    [
        ("<!-- needs a GPU: -->\n```sh\nx\n```", "why does it need a GPU"),
        ("<!-- needs a GPU -->\n```sh\nx\n```", "why does it need a GPU"),
        ("<!-- needs luck: it is hard -->\n```sh\nx\n```", "nobody knows how to have luck"),
        ("<!-- tested with 1 for 2 -->\n```python\n3\n```", "there is no 2"),
        ("```py\nx\n```", "a block of py"),
        ("* item\n\n  ```python\n  x\n  ```", "indented"),
        ("```python\nx\n", "not closed"),
    ],
)
def test_faulty_blocks_are_refused(block: str, fault: str) -> None:
    with pytest.raises(Faulty, match=fault):
        blocks_of("page.md", f"# Page\n\n{block}\n")


def test_what_a_block_says_of_itself_is_read() -> None:
    text = (
        "<!-- needs a GPU, torch: for both -->\n<!-- tested with 2 for 10 -->\n"
        "```python\nx = 10\n```\n\n```text\nx\n```\n"
    )
    python, output = blocks_of("page.md", text)
    assert python == Block("page.md", 4, "python", "x = 2\n", frozenset({"a GPU", "torch"}))
    assert (output.language, output.needs) == ("text", frozenset())


def test_a_failing_example_fails(folder: Path) -> None:
    blocks = blocks_of("page.md", "```python\nx = 1\n```\n\n```python\nassert x == 2\n```\n")
    with pytest.raises(AssertionError, match=r'page\.py", line 6'):
        run_python(blocks, folder)
    warning = "```python\nimport warnings\n\nwarnings.warn('old')\n```\n"
    with pytest.raises(AssertionError, match=r"page\.py:4: UserWarning: old"):
        run_python(blocks_of("page.md", warning), folder)
    (shell,) = blocks_of("page.md", "```sh\nfalse\ntrue\n```\n")
    with pytest.raises(AssertionError, match=r"page\.md:2"):
        run_shell(shell, folder)
