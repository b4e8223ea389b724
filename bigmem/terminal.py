"""What may be written to a terminal, and how."""

import importlib.util
from typing import TextIO


def one_line(message: str) -> str:
    """The message with whatever is not printable, such as a name's newline, escaped."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in message)


def can_draw(stream: TextIO | None) -> bool:
    """Whether there is a terminal at the other end, and rich, an extra, to draw on it."""
    terminal = stream is not None and stream.isatty()
    return terminal and importlib.util.find_spec("rich") is not None
