"""The parts of a form as they come, with bounds on what is around them."""

import asyncio
import warnings
from collections.abc import AsyncIterator
from typing import cast

from aiohttp import (
    BadContentDispositionHeader,
    BadContentDispositionParam,
    BodyPartReader,
    MultipartReader,
    StreamReader,
    web,
)

from prover.service.refusal import Refusal


def ignore_bad_names() -> None:
    """Let nobody be warned of parts whose names are malformed, in this process.

    Each such warning quotes its client, into the log and into a registry that keeps every text for
    ever. What is ignored is not kept; a part without a name is refused all the same.
    """
    for category in (BadContentDispositionHeader, BadContentDispositionParam):
        warnings.simplefilter("ignore", category)


async def parts(request: web.Request, room: int) -> AsyncIterator[BodyPartReader]:
    """The parts of the request's form, one after another.

    Parameters
    ----------
    room
        Bytes that everything else may have: boundaries, heads of parts, what stands before the
        first part and after the last.

    Raises
    ------
    Refusal
        There is more than that, or a form inside.
    ValueError
        The form is malformed; or another of aiohttp's errors.
    """
    content = cast(StreamReader, _Bounded(request.content, room))  # as far as forms are read
    reader = MultipartReader(request.headers, content)
    while (part := await _next_part(reader)) is not None:
        if not isinstance(part, BodyPartReader):
            raise Refusal(422, "the form has a form inside")
        yield part


async def _next_part(reader: MultipartReader) -> MultipartReader | BodyPartReader | None:
    try:
        return await reader.next()
    except RuntimeError as error:  # the part _charset_ names none
        raise ValueError from error


class _Bounded:
    """A request's body whose lines, which is all but the contents of parts, are bounded.

    aiohttp looks for the first boundary line by line, however many there are, and while they are
    at hand it lets nobody else have a turn.
    """

    def __init__(self, content: StreamReader, room: int) -> None:
        self._content = content
        self._room = self._left = room
        # The contents of parts are read with these, and bounded by who reads them.
        self.read = content.read
        self.unread_data = content.unread_data
        self.at_eof = content.at_eof

    async def readline(self, *, max_line_length: int | None = None) -> bytes:
        line = await self._content.readline(max_line_length=max_line_length)
        self._left -= len(line)
        if self._left < 0:
            raise Refusal(
                413, f"the form is too large: {self._room} bytes are enough around its parts"
            )
        await asyncio.sleep(0)  # others have their turn
        return line
