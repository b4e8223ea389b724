"""Jobs from acceptance to the end of their answers: a bounded queue, and what came out of it."""

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

from prover.errors import reason_of
from prover.service.job import FINAL, Job, State
from prover.service.refusal import Refusal
from prover.service.spool import Spool

ANSWER_BYTES = 256 << 20
"""Of jobs that have ended; beyond, no more come in before some of them are forgotten."""
TRIES = 2
"""How often a job is begun: what ended the first worker may have been meant for another."""
STARTS = 60
"""How often a start, of which there is one a second, may fail before the job that wants it does."""
_RECENT = 20


class Jobs:
    """Every job that this server knows.

    Parameters
    ----------
    limit
        Jobs that may wait, those that are still arriving included.
    keep
        Seconds that an answer is kept.
    spool
        Where jobs and answers outlive the process, if anywhere.
    on_end
        Told of each job that ends.

    Attributes
    ----------
    closed
        Whether no more jobs come in, because the server is stopping.
    running
        The job that the worker has.
    recent
        Layer times of the last proofs, the latest first.
    """

    def __init__(
        self, *, limit: int, keep: float, spool: Spool | None, on_end: Callable[[Job], None]
    ) -> None:
        self.limit = limit
        self.keep = keep
        self.closed = False
        self.running: Job | None = None
        self.arriving = 0
        self.recent: deque[dict[str, Any]] = deque(maxlen=_RECENT)
        self._spool = spool
        self._on_end = on_end
        self._jobs: dict[str, Job] = {}
        self._waiting: deque[Job] = deque()
        self._accepting = 0
        self._answer_bytes = 0
        self._disk = asyncio.Lock()
        self._changed = asyncio.Condition()

    # What clients do

    @contextlib.asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Hold a place in the queue while a job arrives.

        Raises
        ------
        Refusal
            No place is free, too many proofs wait to be fetched, or the server is stopping.
        """
        self._refuse_if_closed()
        if len(self._waiting) + self.arriving >= self.limit:
            raise Refusal(
                429,
                f"the queue is full ({self.limit} jobs); try again later",
                Retry_After=str(self._patience()),
            )
        self.arriving += 1
        try:
            await self._make_room()
            yield
        finally:
            self.arriving -= 1

    async def accept(self, job: Job) -> None:
        """Put a job whose witness is complete into the queue; from here on it gets an answer.

        Raises
        ------
        Refusal
            The server is stopping, or the spool has no room.
        """
        self._refuse_if_closed()
        self._accepting += 1
        try:
            if self._spool is not None:
                await self._on_disk(self._spool.accept, job)
            self._jobs[job.id] = job
            self._waiting.append(job)
        except OSError as error:
            raise Refusal(503, f"the spool cannot be written: {reason_of(error)}") from None
        finally:
            self._accepting -= 1
            await self._tell()

    def find(self, name: str) -> Job:
        """The job of an id.

        Raises
        ------
        Refusal
        """
        if name not in self._jobs:
            raise Refusal(404, "there is no such job; it was forgotten, or never accepted")
        return self._jobs[name]

    async def cancel(self, job: Job) -> None:
        """Cancel a job that waits, discard what comes of one that runs, forget one that ended."""
        if job.state in FINAL:
            await self._drop(job)
        elif job.state in (State.QUEUED, State.RUNNING):
            waits = job.state is State.QUEUED
            if waits:
                self._waiting.remove(job)
            job.state = State.CANCELLING
            await self._forget(job)  # so that no later server does it
            if waits:
                await self.end(job, State.CANCELLED)
        await self._tell()

    async def fetched(self, job: Job, *parts: str) -> None:
        """Note that parts of an answer have been sent."""
        job.unfetched.difference_update(parts)
        await self._tell()

    # What the server does

    async def next(self) -> Job:
        """The next job, as soon as there is one; it is then the running one."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._waiting)
            self.running = job = self._waiting.popleft()
            job.state = State.RUNNING
            job.tries += 1
            job.began = time.monotonic()
        return job

    async def end(self, job: Job, state: State, **answer: Any) -> None:
        """Give a job its answer: fields of `Job`."""
        for name, value in answer.items():
            setattr(job, name, value)
        job.finished = time.time()
        witness, job.witness = job.witness, None
        if witness is not None:
            await asyncio.to_thread(witness.close)
        if self._spool is not None and job.state is not State.CANCELLING:
            await self._on_disk(self._spool.answer, job, state)
        if job.state is State.CANCELLING:  # perhaps since a moment ago
            state = State.CANCELLED
            job.proof = job.public = ""
        job.state = state
        self._answer_bytes += job.nbytes
        if job is self.running:
            self.running = None
        job.ended.set()
        self._on_end(job)
        await self._tell()

    def proved(self, job: Job, seconds: float, layers: list[dict[str, Any]]) -> None:
        """Note what a proof took, whatever becomes of it."""
        self.recent.appendleft(
            {"id": job.id[:8], "key": job.key, "seconds": seconds, "layers": layers}
        )

    async def again(self, job: Job, *, unasked: bool = False) -> None:
        """Put the running job back to the head of the queue.

        Parameters
        ----------
        unasked
            No worker was asked, so that it was no try.
        """
        self.running = None
        if unasked:
            job.tries -= 1
            job.starts += 1
        if job.state is State.CANCELLING:
            await self.end(job, State.CANCELLED)
            return
        job.state = State.QUEUED
        self._waiting.appendleft(job)
        await self._tell()

    def resume(self) -> tuple[int, int]:
        """Take up what an earlier server left in the spool: the numbers of jobs and of answers.

        Raises
        ------
        OSError
        """
        if self._spool is None:
            return 0, 0
        for job in self._spool.load():
            self._jobs[job.id] = job
            if job.state is State.QUEUED:
                self._waiting.append(job)
            else:
                job.ended.set()
                self._answer_bytes += job.nbytes
        return len(self._waiting), len(self._jobs) - len(self._waiting)

    async def expire(self) -> None:
        """Forget answers that have been kept long enough."""
        oldest = time.time() - self.keep
        for job in [job for job in self._jobs.values() if job.state in FINAL]:
            if job.finished < oldest:
                await self._drop(job)

    async def settled(self) -> None:
        """Wait until every accepted job has ended."""
        async with self._changed:
            await self._changed.wait_for(
                lambda: not (self._waiting or self.running or self._accepting)
            )

    async def all_fetched(self) -> None:
        """Wait until someone has read every answer."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self.unfetched)

    @property
    def waiting(self) -> int:
        """How many jobs are in the queue."""
        return len(self._waiting)

    @property
    def unfetched(self) -> int:
        """How many answers nobody has read."""
        return sum(
            job.state in (State.DONE, State.FAILED) and bool(job.unfetched)
            for job in self._jobs.values()
        )

    @property
    def kept(self) -> int:
        """How many answers there are."""
        return sum(job.state in FINAL for job in self._jobs.values())

    def position(self, job: Job) -> int:
        """How many jobs are before this one in the queue."""
        return self._waiting.index(job)

    def expected(self, key: str) -> float | None:
        """Seconds of the last proof with a key; None if there has been none lately."""
        return next((one["seconds"] for one in self.recent if one["key"] == key), None)

    def _refuse_if_closed(self) -> None:
        if self.closed:
            raise Refusal(503, "the server is stopping; it takes no more jobs", Retry_After="60")

    def _patience(self) -> int:
        """Seconds after which a place should be free."""
        each: list[float] = [one["seconds"] for one in self.recent]
        return min(600, max(1, math.ceil(sum(each) / max(1, len(each)))))

    async def _make_room(self) -> None:
        """Forget the earliest with which no proof is lost, until the rest is within the bound."""
        if self._answer_bytes <= ANSWER_BYTES:
            return
        for job in list(self._jobs.values()):
            if job.spare:
                await self._drop(job)
                if self._answer_bytes <= ANSWER_BYTES:
                    return
        raise Refusal(
            429, "too many proofs wait to be fetched; fetch or delete yours", Retry_After="60"
        )

    async def _drop(self, job: Job) -> None:
        """Forget a job that has ended, unless someone else does so at this moment."""
        if self._jobs.pop(job.id, None) is not None:
            self._answer_bytes -= job.nbytes
            await self._forget(job)
            await self._tell()

    async def _on_disk(self, operation: Callable[..., None], *arguments: Any) -> None:
        """Do one thing with the spool, after whatever came before it."""
        async with self._disk:
            await asyncio.to_thread(operation, *arguments)

    async def _forget(self, job: Job) -> None:
        if self._spool is not None:
            await self._on_disk(self._spool.forget, job.id)

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()
