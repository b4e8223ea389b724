"""The life of a server: keys, address, the loop that hands out jobs, and the way to a stop."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from bigmem.terminal import one_line
from prover.errors import ProverError, UsageError, reason_of
from prover.service import access, forms, keys
from prover.service.api import Api
from prover.service.connections import Connections, limit_for
from prover.service.job import FINAL, Job, State
from prover.service.jobs import STARTS, TRIES, Jobs
from prover.service.keys import KeyFacts
from prover.service.metrics import Metrics
from prover.service.process import WorkerDied, WorkerNotStarted, WorkerProcess
from prover.service.protocol import WorkerSettings
from prover.service.spool import Spool

_log = logging.getLogger(__name__)
_BACKLOG = 128
_HELPERS = 2
"""Threads that check and overwrite witnesses and write the spool."""
_TIDY_SECONDS = 10.0
_LAST_ANSWERS_SECONDS = 2.0
"""For responses that are on their way when the server ends."""


@dataclass(frozen=True)
class Settings:
    """What a server is started with; times in seconds.

    Attributes
    ----------
    host, port
        Where to listen; port 0 for any that is free.
    token
        What requests must carry, or None.
    queue
        Jobs that may wait.
    keep
        How long an answer is kept.
    grace
        How long answers can still be fetched when everything else has ended.
    spool
        Directory in which jobs and answers outlive the server, or None.
    proof_timeout
        What a proof may take before its worker is taken for one that hangs; None for any time.
    worker
        What the worker process is started with.
    """

    worker: WorkerSettings
    host: str = "127.0.0.1"
    port: int = 8199
    token: str | None = None
    queue: int = 16
    keep: float = 3600.0
    grace: float = 60.0
    spool: Path | None = None
    proof_timeout: float | None = None


@dataclass(frozen=True)
class Ready:
    """What is told once the server takes jobs.

    Attributes
    ----------
    urls
        Where it listens.
    keys, bad_keys
        As in `Api`.
    resumed, answers
        Jobs and answers found in the spool.
    """

    urls: list[str]
    keys: dict[str, KeyFacts]
    bad_keys: dict[str, str]
    resumed: int
    answers: int


async def serve(
    settings: Settings, *, on_ready: Callable[[Ready], None], on_end: Callable[[int], None]
) -> int:
    """Run a server until a signal has stopped it.

    SIGTERM or SIGINT: no more jobs are taken, those accepted are finished, answers can be fetched
    for the grace time unless they are in a spool. A second signal ends it at once.

    Parameters
    ----------
    on_end
        Told at the end, however it comes, how many accepted jobs are left without an answer that
        anyone has had, or will have.

    Returns
    -------
    The same number, where nothing failed.

    Raises
    ------
    ProverError
        Before it takes jobs: settings, keys, address or spool cannot be used.
    """
    listeners = _listen(settings)
    forms.ignore_bad_names()
    # Each thread that allocates has a heap of its own, which grows to what it once held.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_HELPERS, "helper"))
    stop = _Stop()
    server = _Server(settings)
    async with contextlib.AsyncExitStack() as ending:  # each of these, whatever the others do
        ending.callback(lambda: on_end(server.lost()))
        for listener in listeners:
            ending.callback(listener.close)
        ending.callback(stop.close)
        ending.push_async_callback(server.close)
        await server.run(listeners, stop, on_ready)
    return server.lost()


class _Server:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._spool = None if settings.spool is None else Spool(settings.spool)
        self._metrics = Metrics()
        self._jobs = Jobs(
            limit=settings.queue, keep=settings.keep, spool=self._spool, on_end=self._ended
        )
        self._worker = WorkerProcess(settings.worker)
        self._files: dict[str, Any] = {}
        """What tells each key's file from one that takes its place, as the worker put it."""
        self._api = Api(
            self._jobs, self._worker, self._metrics, access.Guard(settings.token), {}, {}
        )
        self._connections = Connections(limit_for(settings.queue), self._api.refused)
        self._runner = web.AppRunner(
            self._api.application(self._connections.note), shutdown_timeout=_LAST_ANSWERS_SECONDS
        )

    async def run(
        self, listeners: list[socket.socket], stop: "_Stop", on_ready: Callable[[Ready], None]
    ) -> None:
        await self._runner.setup()
        assert self._runner.server is not None
        accepting = self._connections.accept(listeners, self._runner.server)
        async with _ended_with(accepting) as accept:
            async with _ended_with(self._begin(on_ready, listeners)) as beginning:
                await stop.wait_or(beginning, accept)
            if not self._api.ready:
                return
            async with _ended_with(self._work()) as work, _ended_with(self._tidy()) as tidy:
                if not stop.asked:
                    await stop.wait_or(work, tidy, accept)
                async with _ended_with(self._drain()) as drain:
                    await stop.wait_or(drain, work, tidy, accept)

    async def close(self) -> None:
        await self._runner.cleanup()
        await self._worker.stop()

    def lost(self) -> int:
        """How many jobs end with this process."""
        if self._spool is not None:
            return 0
        unanswered = self._jobs.waiting + (self._jobs.running is not None)
        return unanswered + self._jobs.unfetched

    # The beginning

    async def _begin(
        self, on_ready: Callable[[Ready], None], listeners: list[socket.socket]
    ) -> None:
        folder = Path(self._settings.worker.folder)
        names = keys.names(folder)
        try:
            await self._worker.start()
        except WorkerDied as error:
            raise ProverError(f"the worker process did not start: {error}") from None
        for name in names:
            await self._check(folder, name)
        if not self._api.keys:
            problem = "; ".join(self._api.bad_keys.values()) or f"there is no *{keys.SUFFIX} in it"
            raise UsageError(f"{folder}: holds no usable key: {problem}")
        try:
            resumed, answers = self._jobs.resume()
        except OSError as error:
            raise UsageError(
                f"{self._settings.spool}: cannot be read: {reason_of(error)}"
            ) from None
        self._api.ready = True
        urls = [_url(listener) for listener in listeners]
        on_ready(Ready(urls, self._api.keys, self._api.bad_keys, resumed, answers))

    async def _check(self, folder: Path, name: str) -> None:
        shown = one_line(name)
        try:
            keys.locate(folder, name)
            answer = await self._worker.ask({"do": "open", "key": name})
        except keys.BadKey as error:
            self._api.bad_keys[shown] = str(error)
        except WorkerDied as error:
            self._api.bad_keys[shown] = f"{shown}{keys.SUFFIX}: {error} while checking it"
        else:
            if "refused" in answer:
                self._api.bad_keys[shown] = answer["reason"]
            else:
                self._api.keys[name] = KeyFacts(**answer["key"])
                self._files[name] = answer["file"]

    # The work

    async def _work(self) -> None:
        while True:
            job = await self._jobs.next()
            try:
                await self._prove(job)
            except Exception:  # of one job; the others are to be answered
                _log.exception("job %s: a defect", job.id[:8])
                if job.state not in FINAL:
                    reason = "a defect of the server; its log says more"
                    await self._jobs.end(job, State.FAILED, error="Defect", reason=reason)

    async def _prove(self, job: Job) -> None:
        assert job.witness is not None
        if job.key not in self._api.keys:  # an earlier server had it
            reason = f"there is no usable key {job.key!r} any more"
            await self._jobs.end(job, State.FAILED, error="UnknownKey", reason=reason)
            return
        request = {"do": "prove", "key": job.key, "file": self._files[job.key]}
        limit = self._settings.proof_timeout
        try:
            answer = await self._worker.ask(request, job.witness.fileno(), limit=limit)
        except WorkerNotStarted as error:
            _log.warning("job %s waits: %s", job.id[:8], error)
            if job.starts < STARTS:
                await self._jobs.again(job, unasked=True)
            else:
                reason = f"{error}; so it was for {job.starts} s"
                await self._jobs.end(job, State.FAILED, error="WorkerNotStarted", reason=reason)
            return
        except WorkerDied as error:
            _log.warning("job %s: %s", job.id[:8], error)
            if job.tries < TRIES:
                await self._jobs.again(job)
            else:
                reason = f"{error}; so it was {job.tries} times"
                await self._jobs.end(job, State.FAILED, error="WorkerDied", reason=reason)
            return
        if "refused" in answer:
            await self._jobs.end(
                job, State.FAILED, error=answer["refused"], reason=answer["reason"]
            )
            return
        self._jobs.proved(job, answer["seconds"], answer["layers"])
        await self._jobs.end(
            job,
            State.DONE,
            seconds=answer["seconds"],
            proof=answer["proof"],
            public=answer["public"],
        )

    def _ended(self, job: Job) -> None:
        self._metrics.ended(job)
        detail = f" in {job.seconds:.3f} s" if job.state is State.DONE else ""
        detail = f": {one_line(job.reason)}" if job.state is State.FAILED else detail
        _log.info("job %s (%s): %s%s", job.id[:8], job.key, job.state, detail)

    async def _tidy(self) -> None:
        while True:
            await asyncio.sleep(min(_TIDY_SECONDS, self._settings.keep))
            await self._jobs.expire()

    # The end

    async def _drain(self) -> None:
        self._jobs.closed = True
        _log.info("stopping: no more jobs are taken, %d are to be finished", self._unfinished())
        await self._jobs.settled()
        if self._spool is not None:
            return
        if self._jobs.unfetched:
            _log.info(
                "%d answers can be fetched for %g s", self._jobs.unfetched, self._settings.grace
            )
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._jobs.all_fetched(), self._settings.grace)

    def _unfinished(self) -> int:
        return self._jobs.waiting + (self._jobs.running is not None)


class _Stop:
    """Counts the signals that ask for a stop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._signals = asyncio.Semaphore(0)
        self.asked = 0
        # What nohup or a background shell made this process ignore stays ignored.
        self._numbers = [
            number
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
            if signal.getsignal(number) is not signal.SIG_IGN
        ]
        for number in self._numbers:
            self._loop.add_signal_handler(number, self._count)

    def _count(self) -> None:
        self.asked += 1
        self._signals.release()

    async def wait_or(self, *tasks: asyncio.Task[None]) -> None:
        """Wait for the next signal, or for one of the tasks, whose error is raised."""
        waiting = asyncio.create_task(self._next())
        try:
            await asyncio.wait([waiting, *tasks], return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        for task in tasks:
            if task.done():
                task.result()

    async def _next(self) -> None:
        await self._signals.acquire()

    def close(self) -> None:
        """Hear no more of them."""
        for number in self._numbers:
            self._loop.remove_signal_handler(number)


@contextlib.asynccontextmanager
async def _ended_with(work: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
    """A task that ends with the block at the latest."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


def _listen(settings: Settings) -> list[socket.socket]:
    """Sockets at every address of the host.

    Raises
    ------
    UsageError
    """
    found = access.addresses(settings.host)
    if settings.token is None and not all(map(access.is_loopback, found)):
        raise UsageError(
            f"--host {settings.host}: others reach this address, so a token is needed: give "
            f"--token-file FILE, or {access.TOKEN_VARIABLE} in the environment"
        )
    listeners: list[socket.socket] = []
    port = settings.port
    for address in found:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            listeners.append(socket.create_server((address, port), family=family, backlog=_BACKLOG))
        except OSError as error:
            for listener in listeners:
                listener.close()
            problem = os.strerror(error.errno or 0).lower()
            raise UsageError(f"cannot listen at {address} port {port}: {problem}") from None
        port = listeners[0].getsockname()[1]  # one port for all, also where any will do
    return listeners


def _url(listener: socket.socket) -> str:
    address, port, *_ = listener.getsockname()
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"
