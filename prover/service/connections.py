"""Connections: how many there are, which go first, and what those hear that send no request."""

import asyncio
import functools
import logging
import resource
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from prover.service.refusal import Refusal

_log = logging.getLogger(__name__)
_MOST = 1000
_FEWEST = 8
_OWN_FILES = 32
"""Descriptors of the server itself: standard streams, listeners, the loop, the worker."""
_RETRY_SECONDS = 0.1
_OPTIONS: dict[str, Any] = {
    "keepalive_timeout": 30.0,  # in which the head of a request must come, too
    "access_log": None,
    "auto_decompress": False,
}
_Answer = Callable[[Refusal], web.Response]


def limit_for(queue: int) -> int:
    """How many connections there can be beside a queue, with as many files open as may be."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return max(_FEWEST, min(_MOST, hard - _OWN_FILES - queue))


class Connections:
    """Accepts connections; for each beyond the limit, the oldest without a request is closed.

    So whoever sends requests is served, however many others hold connections and send none.

    Parameters
    ----------
    limit
        How many may be open.
    answer
        Makes the response that tells a refusal.
    """

    def __init__(self, limit: int, answer: _Answer) -> None:
        self._limit = limit
        self._answer = answer
        self._open: list[asyncio.Transport] = []
        self._busy: set[asyncio.BaseTransport | None] = set()

    @web.middleware
    async def note(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Keep a connection while a request of it is handled."""
        transport = request.transport
        self._busy.add(transport)
        try:
            return await handler(request)
        finally:
            self._busy.discard(transport)

    async def accept(self, listeners: list[socket.socket], server: web.Server) -> None:
        """Accept connections until cancelled."""
        protocol = functools.partial(_Protocol, server, self._answer)
        await asyncio.gather(*(self._accept(listener, protocol) for listener in listeners))

    async def _accept(
        self, listener: socket.socket, protocol: Callable[[], asyncio.Protocol]
    ) -> None:
        # One at a time: a loop's own server accepts a hundred before the first can be closed.
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
                transport, _ = await loop.connect_accepted_socket(protocol, connection)
            except OSError:  # the client is gone, or there are no more files, for now
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            self._open = [one for one in self._open if _is_open(one)]
            self._open.append(transport)
            if len(self._open) > self._limit:
                idle = (one for one in self._open if one not in self._busy)
                next(idle, transport).abort()


def _is_open(transport: asyncio.Transport) -> bool:
    return bool(transport.get_extra_info("socket").fileno() >= 0)


class _Protocol(web.RequestHandler):
    """What aiohttp would answer or log by itself, in the form and with the discretion of the rest.

    It logs requests that it cannot read, the token in them included.
    """

    __slots__ = ("_answer",)

    def __init__(self, server: web.Server, answer: _Answer) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), **_OPTIONS)
        self._answer = answer

    def log_exception(self, *args: Any, **kw: Any) -> None:
        # Without its text, which can quote the request.
        _log.error("a defect: %s", type(kw.get("exc_info")).__name__)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        reason = "the request is no HTTP, or its head is too long"
        if status >= 500:
            self.log_exception(exc_info=exc)
            reason = "a defect of the server; its log says more"
        if request.writer.output_size > 0:
            raise ConnectionError("the response is sent in part")
        response = self._answer(Refusal(status, reason))
        response.force_close()
        return response

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        if isinstance(resp, web.HTTPException):  # raised before any handler: 417
            resp = self._answer(Refusal(resp.status, resp.reason.lower()))
        return await super().finish_response(request, resp, start_time)
