"""The server's side of the worker process: it starts it, asks it, and sees it die."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import time
from dataclasses import asdict

from prover.errors import ProverError
from prover.service.protocol import LENGTH_BYTES, Message, WorkerSettings

_LOOK_SECONDS = 0.5
"""How long to wait for figures: a worker with the GIL held, or stopped, answers later."""


class WorkerDied(Exception):
    """The worker process ended before it had answered."""


class WorkerNotStarted(WorkerDied):
    """There is no process for now: descriptors, memory or processes are short."""


class WorkerUnusable(ProverError):
    """The worker process cannot serve with these settings on this machine."""


class WorkerProcess:
    """One worker process, started when it is first needed and again when it has died.

    Attributes
    ----------
    starts
        How often it was started.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._process: asyncio.subprocess.Process | None = None
        self._requests: socket.socket | None = None
        self._answer: asyncio.Future[Message] | None = None
        self._looked: asyncio.Future[Message | None] | None = None
        self._look_began = 0.0
        self._reader: asyncio.Task[None] | None = None
        self._began = 0.0
        self.starts = 0

    @property
    def running(self) -> bool:
        """Whether there is a process that nobody has seen die."""
        return self._reader is not None and not self._reader.done()

    async def start(self) -> None:
        """Start the process, unless it runs; at most once a second.

        Raises
        ------
        WorkerUnusable
            It refuses the settings.
        WorkerNotStarted
            Later it may.
        """
        if self.running:
            return
        await asyncio.sleep(self._began + 1 - time.monotonic())
        self._began = time.monotonic()
        if self._requests is not None:
            self._requests.close()
            self._requests = None
        try:
            process = await self._spawn()
        except (OSError, RuntimeError, MemoryError) as error:  # RuntimeError: no thread for it
            reason = (getattr(error, "strerror", None) or str(error) or "out of memory").lower()
            raise WorkerNotStarted(f"no worker process can be started: {reason}") from None
        self.starts += 1
        self._process = process
        self._answer = asyncio.get_running_loop().create_future()
        self._reader = asyncio.create_task(self._read(process))
        self._send(asdict(self._settings))
        try:
            started = await self._answer
        except WorkerDied as error:
            raise WorkerNotStarted(f"{error} before it took anything") from None
        if "refused" in started:
            raise WorkerUnusable(started["reason"])

    async def _spawn(self) -> asyncio.subprocess.Process:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-P", "-m", "prover.service.worker"),
                    stdin=theirs.fileno(),
                    stdout=asyncio.subprocess.PIPE,
                    # It must find this package where this process did.
                    env={
                        **os.environ,
                        "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)),
                    },
                )
        except BaseException:
            ours.close()  # which ends a process that was made before something else failed
            raise
        self._requests = ours
        return process

    async def ask(
        self, request: Message, descriptor: int | None = None, *, limit: float | None = None
    ) -> Message:
        """Ask for one thing, and wait for the answer; one at a time.

        Parameters
        ----------
        descriptor
            A file that goes with the request.
        limit
            Seconds from the request on after which a worker that has not answered is killed.

        Raises
        ------
        WorkerNotStarted
            It was not asked.
        WorkerDied
            Also if it cannot be started any more.
        """
        try:
            await self.start()
        except WorkerUnusable as error:
            raise WorkerDied(str(error)) from None
        self._answer = asyncio.get_running_loop().create_future()
        self._send(request, *([] if descriptor is None else [descriptor]))
        try:
            async with asyncio.timeout(limit):
                return await self._answer
        except TimeoutError:
            await self._end()
            raise WorkerDied(
                f"the worker process was ended, as it had no answer after {limit:g} s"
            ) from None

    def _send(self, request: Message, *descriptors: int) -> None:
        assert self._requests is not None
        with contextlib.suppress(OSError):  # it has just died: the reader says so
            socket.send_fds(self._requests, [json.dumps(request).encode()], descriptors)

    async def look(self) -> Message | None:
        """What the worker holds and does at this moment; None if it does not answer soon."""
        if not self.running:
            return None
        try:
            return await asyncio.wait_for(asyncio.shield(self._look()), _LOOK_SECONDS)
        except TimeoutError:
            return None

    def silence(self) -> float:
        """Seconds for which a question is unanswered; if there is none, one is asked now."""
        if not self.running:
            return 0.0
        self._look()
        return time.monotonic() - self._look_began

    def _look(self) -> asyncio.Future[Message | None]:
        """The answer to a question that is under way, or to a new one."""
        # One request at a time, whoever waits: a worker that is stopped gathers no backlog.
        if self._looked is None or self._looked.done():
            self._looked = asyncio.get_running_loop().create_future()
            self._look_began = time.monotonic()
            self._send({"do": "look"})
        return self._looked

    async def stop(self) -> None:
        """End the process, whatever it is doing."""
        if self._requests is not None:
            self._requests.close()
            self._requests = None
        await self._end()

    async def _end(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        if self._reader is not None:
            await asyncio.wait([self._reader])

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        """Hand out what the process says, until it ends."""
        assert process.stdout is not None
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                size = await process.stdout.readexactly(LENGTH_BYTES)
                message = json.loads(
                    await process.stdout.readexactly(int.from_bytes(size, "little"))
                )
                if "look" not in message:
                    answer = self._answer
                    assert answer is not None
                    if not answer.done():  # whoever asked was cancelled
                        answer.set_result(message)
                elif self._looked is not None:
                    self._looked.set_result(message["look"])
        died = WorkerDied(_how(await process.wait()))
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(died)
        if self._looked is not None and not self._looked.done():
            self._looked.set_result(None)


def _how(code: int) -> str:
    if code >= 0:
        return f"the worker process ended with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    hint = "; was memory short?" if code == -signal.SIGKILL else ""
    return f"the worker process was ended by {name}{hint}"
