"""Jobs that wait, jobs that are cancelled, and workers that die."""

import contextlib
import os
import shutil
import signal

import pytest
from serving import form

KEY = "bn128-multiplier"


@pytest.fixture
def submit(server, witnesses):
    return lambda: server.submit(KEY, witnesses[KEY])


@pytest.fixture
def accept(server, witnesses):
    return lambda: server.accepted(KEY, witnesses[KEY])


def running(server, job):
    """Wait until a job is the one that runs."""
    server.until(lambda status: status["running"] and status["running"]["id"] == job[:8])


def test_a_full_queue_refuses_and_says_when_to_come_back(server, accept, submit, right):
    with server.held():
        first = accept()
        running(server, first)
        waiting = [accept() for _ in range(4)]
        assert [server.get(f"/jobs/{job}").json["position"] for job in waiting] == [0, 1, 2, 3]
        reply = submit()
        assert reply.status == 429
        assert reply.error == "the queue is full (4 jobs); try again later"
        assert int(reply.headers["retry-after"]) >= 1
        assert server.get(f"/jobs/{first}").json["state"] == "running"
    for job in (first, *waiting):
        assert right(KEY, server.answer(job))
    reply = submit()
    assert reply.status == 202
    server.answer(reply.json["id"])


def test_jobs_that_arrive_hold_a_place_until_their_client_is_gone(server, submit, witnesses):
    body, kind = form(KEY, witnesses[KEY])
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            connection = stack.enter_context(contextlib.closing(server.connect()))
            connection.putrequest("POST", "/jobs")
            connection.putheader("Content-Type", kind)
            connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body[:100])
        server.until(lambda status: status["queue"]["arriving"] == 4)
        assert submit().status == 429
    server.until(lambda status: status["queue"]["arriving"] == 0)
    assert server.answer(submit().json["id"])["state"] == "done"


def test_a_waiting_job_is_cancelled_at_once(server, accept, right):
    with server.held():
        first = accept()
        running(server, first)
        second, third = accept(), accept()
        reply = server.ask("DELETE", f"/jobs/{second}")
        assert (reply.status, reply.json["state"]) == (200, "cancelled")
        assert server.get(f"/jobs/{third}").json["position"] == 0
    assert right(KEY, server.answer(first))
    assert right(KEY, server.answer(third))
    assert server.answer(second)["state"] == "cancelled"
    assert server.get(f"/jobs/{second}/proof.json").status == 409


def test_what_comes_of_a_cancelled_running_job_is_discarded(server, accept, right):
    with server.held():
        first = accept()
        running(server, first)
        second = accept()
        reply = server.ask("DELETE", f"/jobs/{first}")
        assert (reply.status, reply.json["state"]) == (202, "cancelling")
        assert "discarded" in reply.json["note"]
        assert server.ask("DELETE", f"/jobs/{first}").status == 202
    assert right(KEY, server.answer(second))
    answer = server.answer(first)
    assert answer["state"] == "cancelled"
    assert "proof" not in answer


def test_progress_of_the_running_job(server, accept):
    server.answer(accept())
    with server.held():
        job = accept()
        running(server, job)
        progress = server.get(f"/jobs/{job}").json["progress"]
        assert progress["seconds"] > 0
        assert progress["expected_seconds"] > 0
        assert progress["tries"] == 1
    server.answer(job)


def test_a_stopped_worker_does_not_stop_the_server(server):
    with server.held():
        status = server.get("/status").json
        assert status["memory"] is None
        assert status["resident"]["worker"] is None
        assert server.get("/metrics").status == 200
    server.until(lambda status: status["memory"])


def test_a_worker_that_dies_loses_no_job(server, accept, right):
    starts = server.get("/status").json["worker_starts"]
    with server.held():
        jobs = [accept() for _ in range(3)]
        running(server, jobs[0])
        server.worker().kill()
        server.until(lambda status: status["worker_starts"] > starts)
    for job in jobs:
        assert right(KEY, server.answer(job))
    assert server.get("/readyz").status == 200


def test_a_job_that_two_workers_die_of_fails_alone(start, keys, witnesses, right, tmp_path):
    """With an allocator that ends the process where the larger circuit asks for its witness."""
    size = len(witnesses["bn128-manypub"]) - 76
    (tmp_path / "crashing.py").write_text(
        "import os, signal, bigmem\n"
        "class Crashing(bigmem.SystemAllocator):\n"
        "    def allocate(self, nbytes, **options):\n"
        f"        if nbytes == {size}:\n"
        "            os.kill(os.getpid(), signal.SIGSEGV)\n"
        "        return super().allocate(nbytes, **options)\n"
    )
    (tmp_path / "crashing-1.dist-info").mkdir()
    (tmp_path / "crashing-1.dist-info" / "entry_points.txt").write_text(
        "[bigmem.allocators]\ncrashing = crashing:Crashing\n"
    )
    server = start(keys, "--allocator", "crashing", PYTHONPATH=tmp_path)
    first = server.accepted("bn128-manypub", witnesses["bn128-manypub"])
    second = server.accepted(KEY, witnesses[KEY])
    answer = server.answer(first)
    assert (answer["state"], answer["error"]) == ("failed", "WorkerDied")
    assert answer["reason"] == "the worker process was ended by SIGSEGV; so it was 2 times"
    assert right(KEY, server.answer(second))


def test_a_key_that_is_cut_while_it_is_served_fails_its_jobs_alone(
    start, keys, witnesses, right, tmp_path
):
    folder = shutil.copytree(keys, tmp_path / "keys")
    server = start(folder)
    os.truncate(folder / f"{KEY}.zkey", 0)  # the next look at what is mapped is a SIGBUS
    first = server.accepted(KEY, witnesses[KEY])
    second = server.accepted("bn128-zeropub", witnesses["bn128-zeropub"])
    answer = server.answer(first)
    assert (answer["state"], answer["error"]) == ("failed", "MalformedFile")
    assert answer["reason"] == f"{KEY}.zkey: is empty"
    assert right("bn128-zeropub", server.answer(second))


def test_a_cancelled_job_whose_worker_died_is_not_done_again(server, accept, right):
    with server.held():
        first = accept()
        running(server, first)
        assert server.ask("DELETE", f"/jobs/{first}").status == 202
        server.worker().kill()
    assert server.answer(first)["state"] == "cancelled"
    assert right(KEY, server.answer(accept()))


def test_signals_for_the_whole_group_do_not_end_a_proof(server, accept, right):
    starts = server.get("/status").json["worker_starts"]
    with server.held():
        job = accept()
        running(server, job)
        for number in (signal.SIGINT, signal.SIGTERM):
            server.worker().send_signal(number)
    assert right(KEY, server.answer(job))
    assert server.get("/status").json["worker_starts"] == starts
