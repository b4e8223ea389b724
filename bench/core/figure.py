"""What a figure consists of."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.core.contenders import Contender
from bench.core.scale import Scale

Found = dict[str, Any]
"""What one contender's process measured: plain numbers, seconds and bytes."""
Results = Mapping[str, Found]
"""By name of the contender, in one page regime."""
Rows = list[list[str]]


@dataclass(frozen=True)
class Figure:
    """One question, put to every contender in a process of its own.

    Attributes
    ----------
    name, title
        In results and above the tables.
    reading
        What a reader must know about the columns.
    contenders
        Who is asked.
    measure
        Runs in the contender's process.
    cells
        Of one contender, given everyone's results in the same regime, for the ratios.
    heads
        Of the columns that `cells` fills.
    memory
        Bytes that a process touches at most.
    finding
        What the results of one regime say, in a sentence.
    """

    name: str
    title: str
    reading: str
    contenders: Sequence[Contender]
    measure: Callable[[Contender, Scale], Found]
    heads: Callable[[Results], list[str]]
    cells: Callable[[Found, Results], list[str]]
    memory: Callable[[Scale], int]
    finding: Callable[[Results], str] | None = None

    def rows(self, results: Results) -> Rows:
        """The head and a row a contender; one that could not run says why."""
        heads = self.heads(results)
        body = [
            [name, found["absent"], *[""] * (len(heads) - 1)]
            if "absent" in found
            else [name, *self.cells(found, results)]
            for name, found in results.items()
        ]
        return [["", *heads], *body]


def share(part: float, whole: float) -> str:
    """A fraction in percent."""
    return f"{100 * part / whole:.0f} %"
