"""How long answers are kept, and how many."""

import asyncio
import threading
import tracemalloc

import pytest

from prover.service import jobs as jobs_module
from prover.service.job import Job, State
from prover.service.jobs import Jobs
from prover.service.refusal import Refusal
from prover.service.server import Settings, _ended_with, _Server, _Stop
from prover.service.worker import WorkerSettings

ROOM = 8
"""Answers that are kept, each of which is as small as one gets."""


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(jobs_module, "ANSWER_BYTES", ROOM * Job("key", None).nbytes)


def make(spool=None, keep=3600):
    return Jobs(limit=9, keep=keep, spool=spool, on_end=lambda job: None)


async def ended(jobs, state, **answer):
    """A job that has come the usual way and ends like this."""
    async with jobs.place():
        job = Job("key", None)
        await jobs.accept(job)
    if state is State.CANCELLED:
        await jobs.cancel(job)
    else:
        assert await jobs.next() is job
        await jobs.end(job, state, **answer)
    return job


@pytest.mark.parametrize("state", [State.FAILED, State.CANCELLED])
def test_jobs_that_end_without_a_proof_are_bounded_and_block_nobody(few, state):
    async def run():
        jobs = make()
        first, *_, last = [await ended(jobs, state) for _ in range(10 * ROOM)]
        assert jobs.kept == ROOM + 1  # the last needs no place any more
        assert jobs.find(last.id) is last
        with pytest.raises(Refusal, match="no such job"):
            jobs.find(first.id)

    asyncio.run(run())


def test_the_reasons_of_failures_count(few):
    async def run():
        jobs = make()
        for _ in range(10):
            await ended(jobs, State.FAILED, reason="x" * 4 * jobs_module.ANSWER_BYTES)
        assert jobs.kept == 1

    asyncio.run(run())


def test_a_proof_is_kept_until_someone_has_it(few):
    async def run():
        jobs = make()
        proofs = [await ended(jobs, State.DONE) for _ in range(3)]
        for _ in range(10 * ROOM):
            await ended(jobs, State.CANCELLED)
        assert [jobs.find(job.id) for job in proofs] == proofs
        proofs += [await ended(jobs, State.DONE) for _ in range(ROOM + 1 - 3)]
        with pytest.raises(Refusal, match="too many proofs wait to be fetched") as refusal:
            await ended(jobs, State.DONE)
        assert refusal.value.status == 429
        await jobs.fetched(proofs[4], "proof")
        with pytest.raises(Refusal, match="too many proofs wait to be fetched"):
            await ended(jobs, State.DONE)
        await jobs.fetched(proofs[4], "public")
        await ended(jobs, State.DONE)
        assert jobs.unfetched == ROOM + 1
        assert jobs.arriving == 0

    asyncio.run(run())


def test_what_a_job_counts_is_at_least_what_it_takes():
    async def run():
        jobs = make()
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            ended_jobs = [await ended(jobs, State.CANCELLED) for _ in range(1000)]
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert after - before <= sum(job.nbytes for job in ended_jobs)

    asyncio.run(run())


class HeldSpool:
    """A spool that forgets nothing before it may."""

    def __init__(self):
        self.asked = threading.Event()
        self.may = threading.Event()

    def accept(self, job): ...

    def answer(self, job, state): ...

    def forget(self, name):
        self.asked.set()
        assert self.may.wait(60)


def test_an_answer_may_be_deleted_while_others_expire():
    async def run():
        spool = HeldSpool()
        jobs = make(spool, keep=-1)
        first = await ended(jobs, State.DONE)
        second = await ended(jobs, State.DONE)
        sweep = asyncio.create_task(jobs.expire())
        await asyncio.to_thread(spool.asked.wait, 60)  # it is at the first
        deletions = [asyncio.create_task(jobs.cancel(job)) for job in (first, second)]
        await asyncio.sleep(0)
        spool.may.set()
        await asyncio.gather(sweep, *deletions)
        assert jobs.kept == 0
        await ended(jobs, State.DONE)
        assert jobs._answer_bytes == Job("key", None).nbytes

    asyncio.run(run())


def test_an_end_of_the_expiry_is_noticed(monkeypatch):
    async def run():
        server = _Server(Settings(WorkerSettings("."), keep=0))
        server._api.ready = True

        async def nothing(*arguments):
            return None

        async def defect():
            raise KeyError("a defect")

        monkeypatch.setattr(server, "_begin", nothing)
        monkeypatch.setattr(server._jobs, "expire", defect)
        stop = _Stop()
        try:
            async with _ended_with(server.run([], stop, print)) as running:
                with pytest.raises(KeyError, match="a defect"):
                    await asyncio.wait_for(asyncio.shield(running), 60)
        finally:
            stop.close()
            await server.close()

    asyncio.run(run())
