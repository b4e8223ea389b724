"""Puts a page of results into a page of text, between the two comments that name it.

python -m bench.insert bench/results/gpu.md docs/gpu.md
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from bench.command_line import write


def insert(page: str, name: str, results: str) -> str:
    """The page with new results between ``<!-- begin NAME -->`` and ``<!-- end NAME -->``.

    Raises
    ------
    ValueError
        Unless the page has these comments once.
    """
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    text, count = pattern.subn(lambda _: f"{begin}\n\n{results.strip()}\n\n{end}", page)
    if count != 1:
        raise ValueError(f"{begin} ... {end} is there {count} times, not once")
    return text


def main() -> None:
    """Rewrite the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("page", type=Path)
    arguments = parser.parse_args()
    try:
        page, results = (
            path.read_text(encoding="utf-8") for path in (arguments.page, arguments.results)
        )
        text = insert(page, arguments.results.name, results)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    write(arguments.page, text)


if __name__ == "__main__":
    main()
