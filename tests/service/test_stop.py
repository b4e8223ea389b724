"""A stop loses no answer, and a spool outlives even what nobody can stop for."""

import os
import signal
import stat

import pytest

KEY = "bn128-multiplier"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_accepted_jobs_are_finished_and_can_be_fetched(start, keys, witnesses, right, number):
    server = start(keys)
    with server.held():
        jobs = [server.accepted(KEY, witnesses[KEY]) for _ in range(3)]
        server.process.send_signal(number)
        server.until(lambda status: status["state"] == "stopping")
        reply = server.submit(KEY, witnesses[KEY])
        assert reply.status == 503
        assert "stopping" in reply.error
        assert int(reply.headers["retry-after"]) > 0
        assert server.get("/readyz").status == 503
        assert server.get("/healthz").status == 200
    assert right(KEY, server.answer(jobs[0]))
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
    server.process.terminate()
    assert server.wait() == 0


def test_answers_that_nobody_fetches_are_told_of(start, keys, witnesses):
    server = start(keys, "--grace", "0")
    with server.held():
        job = server.accepted(KEY, witnesses[KEY])
        server.process.terminate()
    assert server.wait() == 0
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
        assert server.wait() == 0
    assert "warning: 2 accepted jobs end without an answer" in server.log.read_text()


def test_a_waiting_client_gets_its_answer_while_the_server_stops(start, keys, witnesses, right):
    server = start(keys)
    with server.held():
        job = server.accepted(KEY, witnesses[KEY])
        connection = server.connect()
        connection.request("GET", f"/jobs/{job}?wait=60")
        server.process.terminate()
        server.until(lambda status: status["state"] == "stopping")
    response = connection.getresponse()
    assert response.status == 200
    assert b'"state": "done"' in response.read()
    connection.close()
    assert server.wait() == 0


def test_the_worker_ends_with_a_server_that_is_killed(start, keys):
    server = start(keys)
    worker = server.worker()
    server.process.kill()
    server.wait()
    worker.wait(60)


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
        names = [KEY, "bls12381-manypub", "bn128-zeropub"]
        jobs = {server.accepted(name, witnesses[name]): name for name in names}
        cancelled, running = server.accepted(KEY, witnesses[KEY]), next(iter(jobs))
        server.ask("DELETE", f"/jobs/{cancelled}")
        server.until(lambda status: status["running"]["id"] == running[:8])
        for path in spool.iterdir():
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(spool.stat().st_mode) == 0o700
        server.process.kill()
        server.wait()
    again = start(keys, "--spool", spool)
    assert "from the spool: 3 jobs to do, 1 answers\n" in again.begun
    for job, name in jobs.items():
        assert right(name, again.answer(job))
    assert right(KEY, again.answer(done))
    assert again.get(f"/jobs/{cancelled}").status == 404
    assert not list(spool.glob("*.wtns"))
    assert not list(spool.glob("*.job"))


def test_a_spooled_job_whose_key_is_gone_fails_with_the_reason(start, keys, witnesses, tmp_path):
    spool, folder = tmp_path / "spool", tmp_path / "keys"
    folder.mkdir()
    for name in (KEY, "bn128-zeropub"):
        os.link(keys / f"{name}.zkey", folder / f"{name}.zkey")
    server = start(folder, "--spool", spool)
    with server.held():
        job = server.accepted(KEY, witnesses[KEY])
        server.process.kill()
        server.wait()
    (folder / f"{KEY}.zkey").unlink()
    answer = start(folder, "--spool", spool).answer(job)
    assert (answer["state"], answer["error"]) == ("failed", "UnknownKey")


def test_leftovers_of_a_server_that_was_killed_while_it_wrote_are_removed(
    start, keys, witnesses, right, tmp_path
):
    spool = tmp_path / "spool"
    spool.mkdir()
    name = "0123456789abcdef" * 2
    for suffix in ("wtns", "job.tmp", "answer.tmp"):
        (spool / f"{name}.{suffix}").write_bytes(b"{")
    (spool / "notes.txt").write_text("not ours")
    server = start(keys, "--spool", spool)
    assert {path.name for path in spool.iterdir()} == {"lock", "notes.txt"}
    assert right(KEY, server.answer(server.accepted(KEY, witnesses[KEY])))


def test_a_spool_that_cannot_be_written_refuses_the_job_and_keeps_nothing(
    start, keys, witnesses, right, tmp_path
):
    spool = tmp_path / "spool"
    server = start(keys, "--spool", spool)
    spool.rename(tmp_path / "elsewhere")
    reply = server.submit(KEY, witnesses[KEY])
    assert reply.status == 503
    assert reply.error == "the spool cannot be written: no such file or directory"
    (tmp_path / "elsewhere").rename(spool)
    assert {path.name for path in spool.iterdir()} == {"lock"}
    assert right(KEY, server.answer(server.accepted(KEY, witnesses[KEY])))


def test_an_answer_that_cannot_be_spooled_is_served_and_its_job_stays(
    start, keys, witnesses, right, tmp_path
):
    spool = tmp_path / "spool"
    server = start(keys, "--spool", spool)
    with server.held():
        job = server.accepted(KEY, witnesses[KEY])
        (spool / f"{job}.answer.tmp").mkdir()
    assert right(KEY, server.answer(job))
    assert "its answer is not in the spool" in server.log.read_text()
    assert (spool / f"{job}.job").exists()
    server.process.terminate()
    assert server.wait() == 0
    (spool / f"{job}.answer.tmp").rmdir()
    assert right(KEY, start(keys, "--spool", spool).answer(job))
