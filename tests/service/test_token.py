"""A server with a token answers nobody without it."""

import contextlib
import json
import socket
from pathlib import Path

import pytest
from serving import serving

KEY = "bn128-multiplier"
TOKEN = "correct-horse-battery-staple"


@pytest.fixture(scope="module")
def guarded(keys, tmp_path_factory):
    """A server that others reach; its token comes from the environment."""
    log = tmp_path_factory.mktemp("guarded") / "server.log"
    with serving(log, keys, "--host", "0.0.0.0", PROVER_TOKEN=TOKEN) as server:
        server.token = TOKEN
        yield server


@pytest.mark.parametrize(
    "given",
    [
        "", TOKEN, f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer", "Bearer ",
        f"Basic {TOKEN}", f"Bearer {TOKEN.upper()}", f"Bearer {'x' * 5000}", "Bearer \xff\xfe",
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/jobs"), ("GET", "/jobs/x"), ("DELETE", "/jobs/x"), ("GET", "/jobs/x/proof.json"),
        ("GET", "/keys"), ("GET", "/status"), ("GET", "/metrics"), ("GET", "/nowhere"),
    ],
)  # fmt: skip
def test_every_path_that_tells_of_jobs_is_closed(guarded, method, path, given):
    reply = guarded.ask(method, path, Authorization=given)
    assert reply.status == 401
    assert reply.headers["www-authenticate"] == 'Bearer realm="prover"'
    assert TOKEN not in reply.error


def test_with_the_token_everything_is_open(guarded, witnesses, right):
    job = guarded.accepted(KEY, witnesses[KEY])
    assert right(KEY, guarded.answer(job))
    assert guarded.ask("GET", "/status", Host="elsewhere.example").status == 200
    assert guarded.ask("GET", "/keys", Authorization=f"bearer  {TOKEN}").status == 200


def test_health_and_the_empty_page_need_no_token(guarded):
    for path in ("/healthz", "/readyz", "/"):
        assert guarded.ask("GET", path, Authorization="").status == 200


def test_the_token_is_in_no_argument_and_reaches_no_worker(guarded):
    worker = guarded.worker()
    server = worker.parent()
    for process in (worker, server):
        assert TOKEN not in " ".join(process.cmdline())
    assert TOKEN.encode() not in Path(f"/proc/{worker.pid}/environ").read_bytes()
    assert TOKEN not in guarded.log.read_text()


@pytest.mark.parametrize("after", [b"\x01", b"\r\nX: " + b"x" * 10_000])
def test_what_cannot_be_read_is_not_logged(guarded, after):
    before = guarded.log.read_text()
    with socket.create_connection(("127.0.0.1", guarded.port), 30) as connection:
        head = f"GET /status HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}".encode()
        connection.sendall(head + after + b"\r\n\r\n")
        reply = connection.recv(10_000)
    assert reply.split()[1] == b"400"
    assert TOKEN.encode() not in reply
    assert guarded.log.read_text() == before


def test_connections_without_a_request_keep_nobody_out(start, keys, witnesses, right):
    server = start(keys, "--queue", "4", "--host", "0.0.0.0", files=64, PROVER_TOKEN=TOKEN)
    server.token = TOKEN
    with contextlib.ExitStack() as stack:
        with server.held():
            job = server.accepted(KEY, witnesses[KEY])
            waiting = stack.enter_context(contextlib.closing(server.connect()))
            headers = {"Authorization": f"Bearer {TOKEN}"}
            waiting.request("GET", f"/jobs/{job}?wait=60", headers=headers)
            for _ in range(200):
                idle = socket.create_connection(("127.0.0.1", server.port), 30)
                stack.enter_context(idle)
                idle.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n")
            assert server.ask("GET", "/healthz", Authorization="").status == 200
            assert server.get("/status").json["queue"]["waiting"] in (0, 1)
        # A request that waits for its answer is no idle connection.
        response = waiting.getresponse()
        assert response.status == 200
        assert right(KEY, json.loads(response.read()))


def test_a_token_in_a_file_guards_loopback_too(start, keys, tmp_path):
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    server = start(keys, "--token-file", path)
    assert server.get("/status").status == 401
    server.token = TOKEN
    assert server.get("/status").status == 200
