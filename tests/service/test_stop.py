"""A stop loses no answer, and a spool outlives even what nobody can stop for."""

import contextlib
import errno
import json
import os
import shutil
import signal
import stat
from pathlib import Path

import pytest

from prover.service.job import Job, State
from prover.service.secret import SecretFile
from prover.service.spool import Spool

KEY = "bn128-multiplier"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_accepted_jobs_are_finished_and_can_be_fetched(start, keys, witnesses, right, number):
    server = start(keys)
    with server.held():
        jobs = [server.accepted(KEY, witnesses[KEY]) for _ in range(3)]
        waiting = server.connect()
        waiting.request("GET", f"/jobs/{jobs[0]}?wait=60")
        server.process.send_signal(number)
        server.until(lambda status: status["state"] == "stopping")
        reply = server.submit(KEY, witnesses[KEY])
        assert reply.status == 503
        assert "stopping" in reply.error
        assert int(reply.headers["retry-after"]) > 0
        assert server.get("/readyz").status == 503
        assert server.get("/healthz").status == 200
    with contextlib.closing(waiting):
        response = waiting.getresponse()
        assert response.status == 200
        assert right(KEY, json.loads(response.read()))
    assert right(KEY, server.answer(jobs[1]))
    # The last answer, in two files: only the second lets the server go.
    while server.get(f"/jobs/{jobs[2]}/proof.json").status != 200:
        server.until(lambda status: status["running"] is None)
    assert server.process.poll() is None
    assert server.get(f"/jobs/{jobs[2]}/public.json").status == 200
    assert server.wait() == 0
    assert "warning" not in server.log.read_text()


def test_an_idle_server_stops_at_once(start, keys):
    server = start(keys)
    server.process.send_signal(signal.SIGHUP)
    assert server.wait() == 0


def test_answers_that_nobody_fetches_are_told_of(start, keys, witnesses):
    server = start(keys, "--grace", "0")
    with server.held():
        job = server.accepted(KEY, witnesses[KEY])
        server.process.terminate()
    assert server.wait() == 1
    log = server.log.read_text()
    assert f"job {job[:8]} ({KEY}): done" in log
    assert "warning: 1 accepted jobs end without an answer that anyone has fetched" in log


def test_a_second_signal_ends_it_at_once_and_says_what_is_lost(start, keys, witnesses):
    server = start(keys)
    with server.held():
        for _ in range(2):
            server.accepted(KEY, witnesses[KEY])
        server.process.terminate()
        server.until(lambda status: status["state"] == "stopping")
        server.process.terminate()
        assert server.wait() == 1
    assert "warning: 2 accepted jobs end without an answer" in server.log.read_text()


# With a spool


def test_a_spool_makes_a_stop_wait_for_nobody(start, keys, witnesses, right, tmp_path):
    spool = tmp_path / "spool"
    server = start(keys, "--spool", spool, "--grace", "100000")
    job = server.accepted(KEY, witnesses[KEY])
    server.process.terminate()
    assert server.wait() == 0
    assert "warning" not in server.log.read_text()
    assert {path.name for path in spool.iterdir()} == {"lock", f"{job}.answer"}
    again = start(keys, "--spool", spool)
    assert "from the spool: 0 jobs to do, 1 answers\n" in again.begun
    assert right(KEY, again.answer(job))
    assert again.ask("DELETE", f"/jobs/{job}").status == 200
    assert {path.name for path in spool.iterdir()} == {"lock"}


def test_no_accepted_job_is_lost_when_a_server_is_killed(start, keys, witnesses, right, tmp_path):
    spool = tmp_path / "spool"
    server = start(keys, "--spool", spool)
    done = server.accepted(KEY, witnesses[KEY])
    assert right(KEY, server.answer(done))
    with server.held():
        names = [KEY, "bls12381-manypub", "bls12381-zeropub", "bn128-zeropub"]
        jobs = {server.accepted(name, witnesses[name]): name for name in names}
        running, *_, without_key = jobs
        cancelled = server.accepted(KEY, witnesses[KEY])
        server.ask("DELETE", f"/jobs/{cancelled}")
        server.until(lambda status: status["running"]["id"] == running[:8])
        for path in spool.iterdir():
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(spool.stat().st_mode) == 0o700
        worker = server.worker()
        server.process.kill()
        server.wait()
    worker.wait(60)  # it ends with its server

    # What a server leaves that is killed while it writes; and what is not a server's.
    for suffix in ("wtns", "job.tmp", "answer.tmp"):
        (spool / f"{'0123456789abcdef' * 2}.{suffix}").write_bytes(b"{")
    (spool / "notes.txt").touch()
    fewer = shutil.copytree(keys, tmp_path / "fewer")
    (fewer / "bn128-zeropub.zkey").unlink()

    again = start(fewer, "--spool", spool)
    assert "from the spool: 4 jobs to do, 1 answers\n" in again.begun
    answer = again.answer(without_key)
    assert (answer["state"], answer["error"]) == ("failed", "UnknownKey")
    del jobs[without_key]
    for job, name in {**jobs, done: KEY}.items():
        assert right(name, again.answer(job))
    assert again.get(f"/jobs/{cancelled}").status == 404
    answers = {f"{job}.answer" for job in (*jobs, done, without_key)}
    assert {path.name for path in spool.iterdir()} == {"lock", "notes.txt", *answers}


def test_a_spool_that_cannot_be_written_costs_no_answer(start, keys, witnesses, right, tmp_path):
    spool, elsewhere = tmp_path / "spool", tmp_path / "elsewhere"
    server = start(keys, "--spool", spool)

    # A job that cannot be written down is refused, and nothing of it kept.
    spool.rename(elsewhere)
    reply = server.submit(KEY, witnesses[KEY])
    assert reply.status == 503
    assert reply.error == "the spool cannot be written: no such file or directory"
    elsewhere.rename(spool)
    assert {path.name for path in spool.iterdir()} == {"lock"}

    # An answer that cannot be written down is served, and its job stays for another server.
    with server.held():
        job = server.accepted(KEY, witnesses[KEY])
        obstacle = spool / f"{job}.answer.tmp"
        obstacle.mkdir()
    assert right(KEY, server.answer(job))
    assert "its answer is not in the spool" in server.log.read_text()
    server.process.terminate()
    assert server.wait() == 0
    obstacle.rmdir()
    assert right(KEY, start(keys, "--spool", spool).answer(job))


@pytest.mark.parametrize("file", ["wtns", "job.tmp", "answer.tmp"])
def test_a_full_disk_leaves_nothing_half_written(tmp_path, monkeypatch, file):
    spool = Spool(tmp_path)
    sync = os.fsync

    def full(descriptor):
        if Path(f"/proc/self/fd/{descriptor}").readlink().name.endswith(f".{file}"):
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    witness = SecretFile()
    witness.write(b"w" * 100)
    job = Job(KEY, witness)
    if file == "answer.tmp":
        spool.accept(job)
        spool.answer(job, State.DONE)
        left = {f"{job.id}.job", f"{job.id}.wtns"}
    else:
        with pytest.raises(OSError, match="No space left"):
            spool.accept(job)
        left = set()
    assert {path.name for path in tmp_path.iterdir()} == {"lock", *left}
    # What a server leaves that is killed meanwhile goes with the job.
    (tmp_path / f"{job.id}.job.tmp").touch()
    (tmp_path / f"{job.id}.answer.tmp").touch()
    spool.forget(job.id)
    assert {path.name for path in tmp_path.iterdir()} == {"lock"}
    witness.close()
