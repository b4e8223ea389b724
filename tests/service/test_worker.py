"""The worker process from its server's side: one that does not start, hangs, or is in the dark."""

import asyncio
import errno
import json
import resource
import shutil
import socket
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from aiohttp.test_utils import make_mocked_request

from prover.backends import GPU_DOMAIN
from prover.service import process as process_module
from prover.service import server as server_module
from prover.service import worker as worker_module
from prover.service.job import Job, State
from prover.service.process import WorkerNotStarted, WorkerProcess, WorkerUnusable
from prover.service.protocol import WorkerSettings
from prover.service.secret import SecretFile
from prover.service.server import Settings, _ended_with, _Server, serve

KEY = "bn128-multiplier"


def descriptors():
    return sorted(path.name for path in Path("/proc/self/fd").iterdir())


def no_descriptors(*arguments, **options):
    raise OSError(errno.EMFILE, "Too many open files")


# One that does not start


def test_jobs_wait_while_there_are_no_descriptors_for_a_worker(start, keys, witnesses, right):
    server = start(keys)
    pid = server.process.pid
    most = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    with server.held():
        jobs = [server.accepted(KEY, witnesses[KEY]) for _ in range(2)]
        server.until(lambda status: status["running"])
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (0, most[1]))
        server.worker().kill()
        deadline = time.monotonic() + 60
        line = f"job {jobs[0][:8]} waits: no worker process can be started: too many open files\n"
        while server.log.read_text().count(line) < 2:
            assert server.process.poll() is None, server.log.read_text()
            assert time.monotonic() < deadline, server.log.read_text()
            time.sleep(0.05)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, most)
    for job in jobs:
        assert right(KEY, server.answer(job))
    assert server.get("/status").json["worker_starts"] == 2


@pytest.mark.parametrize("where", ["socket.socketpair", "asyncio.create_subprocess_exec"])
def test_a_start_that_fails_leaves_no_descriptor_and_can_be_tried_again(keys, monkeypatch, where):
    async def run():
        worker = WorkerProcess(WorkerSettings(str(keys)))
        await worker.start()
        await worker.stop()
        before = descriptors()
        with monkeypatch.context() as patch:
            patch.setattr(where, no_descriptors)
            with pytest.raises(WorkerNotStarted, match="started: too many open files"):
                await worker.ask({"do": "open", "key": KEY})
        assert descriptors() == before
        assert not worker.running
        try:
            assert "key" in await worker.ask({"do": "open", "key": KEY})
        finally:
            await worker.stop()
        assert worker.starts == 2

    asyncio.run(run())


@pytest.fixture
def server_of():
    """A server without a worker, whose worker's answers are those of a function."""

    def make(ask):
        server = _Server(Settings(WorkerSettings(".")))
        server._api.keys[KEY] = None
        server._files[KEY] = [1, 2, 3]
        server._worker.ask = ask
        return server

    return make


def proved(server, *jobs):
    """Let the server do jobs."""

    async def run():
        async with _ended_with(server._work()):
            for job in jobs:
                await server._jobs.accept(job)
            for job in jobs:
                await asyncio.wait_for(job.ended.wait(), 60)

    return run()


def test_starts_that_fail_are_no_tries_but_they_are_bounded(server_of, monkeypatch):
    monkeypatch.setattr(server_module, "STARTS", 3)

    async def run():
        starts = []

        async def ask(request, descriptor, *, limit):
            starts.append(job.tries)
            raise WorkerNotStarted("no worker process can be started: too many open files")

        job = Job(KEY, SecretFile())
        await proved(server_of(ask), job)
        assert starts == [1, 1, 1, 1]
        assert (job.state, job.error) == (State.FAILED, "WorkerNotStarted")
        assert job.reason.endswith("started: too many open files; so it was for 3 s")

    asyncio.run(run())


def test_a_defect_fails_its_job_alone(server_of):
    async def run():
        async def ask(request, descriptor, *, limit):
            if jobs[0].state is State.RUNNING:
                raise RuntimeError("a secret")
            return {"seconds": 1.0, "layers": [], "proof": "{}", "public": "[]"}

        jobs = [Job(KEY, SecretFile()) for _ in range(2)]
        await proved(server_of(ask), *jobs)
        assert (jobs[0].state, jobs[0].error) == (State.FAILED, "Defect")
        assert jobs[0].reason == "a defect of the server; its log says more"
        assert jobs[1].state is State.DONE

    asyncio.run(run())


def test_lost_jobs_are_told_of_when_a_defect_ends_the_server(monkeypatch):
    async def run(self, *arguments):
        for _ in range(3):
            await self._jobs.accept(Job(KEY, None))
        raise RuntimeError("a defect")

    monkeypatch.setattr(_Server, "run", run)
    lost = []
    settings = Settings(WorkerSettings("."), port=0)
    with pytest.raises(RuntimeError, match="a defect"):
        asyncio.run(serve(settings, on_ready=print, on_end=lost.append))
    assert lost == [3]


def test_a_worker_that_cannot_enter_the_key_directory_says_so(tmp_path):
    async def run():
        worker = WorkerProcess(WorkerSettings(str(tmp_path / "none")))
        try:
            with pytest.raises(WorkerUnusable) as error:
                await worker.start()
        finally:
            await worker.stop()
        return str(error.value)

    reason = asyncio.run(run())
    assert reason == f"{tmp_path / 'none'}: cannot be entered: no such file or directory"


# Who does its arithmetic


@pytest.fixture
def backends_of(monkeypatch):
    """The backends of a small, a large and a small key, and how each of them was asked for."""

    def take(name):
        asked = []

        def get_backend(name, **options):
            asked.append({"name": name, **options})
            return len(asked)

        monkeypatch.setattr(worker_module, "get_backend", get_backend)
        monkeypatch.setattr(worker_module, "observe", lambda note: None)
        worker = worker_module.Worker(WorkerSettings(".", backend=name), None, None)
        domains = (8, GPU_DOMAIN, 8)
        taken = [worker._backend_for(SimpleNamespace(domain=domain)) for domain in domains]
        return taken, asked

    return take


@pytest.mark.parametrize("name", ["cpu", "cuda"])
def test_all_keys_share_a_backend_that_was_named(backends_of, name):
    """Two devices would each take a GPU's whole memory."""
    taken, asked = backends_of(name)
    assert taken == [1, 1, 1]
    assert [one["name"] for one in asked] == [name]


def test_small_keys_are_not_the_gpus_unless_it_was_named(backends_of):
    taken, asked = backends_of("auto")
    assert taken == [1, 2, 1]
    assert [one["domain"] for one in asked] == [1, GPU_DOMAIN]


def test_what_a_backend_tells_is_in_the_log(backends_of, capsys):
    _, (asked,) = backends_of("cuda")
    asked["notify"]("compiling CUDA kernels")
    assert capsys.readouterr() == ("", "compiling CUDA kernels\n")


# One that hangs


def test_a_worker_that_hangs_is_ended_if_asked_for(start, keys, witnesses, tmp_path):
    """With an allocator that never comes back."""
    (tmp_path / "hanging.py").write_text(
        "import signal, bigmem\n"
        "class Hanging(bigmem.SystemAllocator):\n"
        "    def allocate(self, nbytes, **options):\n"
        "        while True:\n"
        "            signal.pause()\n"
    )
    (tmp_path / "hanging-1.dist-info").mkdir()
    (tmp_path / "hanging-1.dist-info" / "entry_points.txt").write_text(
        "[bigmem.allocators]\nhanging = hanging:Hanging\n"
    )
    server = start(keys, "--allocator", "hanging", "--proof-timeout", "1", PYTHONPATH=tmp_path)
    answer = server.answer(server.accepted(KEY, witnesses[KEY]))
    assert (answer["state"], answer["error"]) == ("failed", "WorkerDied")
    assert answer["reason"] == (
        "the worker process was ended, as it had no answer after 1 s; so it was 2 times"
    )


def test_silence_is_the_age_of_a_question(monkeypatch):
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(process_module, "time", SimpleNamespace(monotonic=lambda: clock.now))

    async def run():
        worker = WorkerProcess(WorkerSettings("."))
        assert worker.silence() == 0
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            worker._requests = ours
            async with _ended_with(asyncio.Event().wait()) as worker._reader:
                assert worker.silence() == 0
                assert json.loads(theirs.recv(100)) == {"do": "look"}
                clock.now += 59
                assert worker.silence() == 59
                worker._looked.set_result({})
                clock.now += 1
                assert worker.silence() == 0
                assert json.loads(theirs.recv(100)) == {"do": "look"}

    asyncio.run(run())


def test_a_server_whose_worker_is_silent_is_not_ready(server_of):
    async def run():
        api = server_of(None)._api
        api.ready = True

        async def ready(silence):
            api.worker = SimpleNamespace(running=True, silence=lambda: silence)
            response = await api._readiness(make_mocked_request("GET", "/readyz"))
            return response.status, json.loads(response.text)

        assert await ready(59.9) == (200, {"ready": True})
        reason = "the worker has been silent for 60 s"
        assert await ready(60.0) == (503, {"ready": False, "reason": reason})

    asyncio.run(run())


# One that takes another's place


def test_a_new_worker_takes_no_key_that_was_exchanged(start, keys, witnesses, right, tmp_path):
    folder = shutil.copytree(keys, tmp_path / "keys")
    server = start(folder)
    new = Path(shutil.copy(keys / "bn128-zeropub.zkey", tmp_path / "new"))
    new.replace(folder / f"{KEY}.zkey")
    # The worker goes on with what it checked.
    assert right(KEY, server.answer(server.accepted(KEY, witnesses[KEY])))
    with server.held():
        job = server.accepted(KEY, witnesses[KEY])
        server.until(lambda status: status["running"])
        server.worker().kill()
    answer = server.answer(job)
    assert (answer["state"], answer["error"]) == ("failed", "ChangedKey")
    assert answer["reason"] == f"{KEY}.zkey: the key has changed since the server started"
    other = "bls12381-multiplier"
    assert right(other, server.answer(server.accepted(other, witnesses[other])))
