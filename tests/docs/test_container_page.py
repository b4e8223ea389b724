"""The example of docs/how-to/containers.md, within a limit."""

import subprocess
import sys

from code_blocks import blocks_of, program_of
from memory_group import JOIN, arguments_of, memory_group


def test_it_keeps_to_the_limit_of_its_group() -> None:
    blocks = [b for b in blocks_of("docs/how-to/containers.md") if b.language == "python"]
    with memory_group(400 << 20) as group:
        done = subprocess.run(
            [sys.executable, "-c", JOIN + program_of(blocks), *arguments_of(group)],
            check=False,
            timeout=120,
            capture_output=True,
            text=True,
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("320 MiB may be used\n")
