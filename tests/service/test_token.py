"""A server with a token answers nobody without it."""

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


def test_a_token_in_a_file_guards_loopback_too(start, keys, tmp_path):
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    server = start(keys, "--token-file", path)
    assert server.get("/status").status == 401
    server.token = TOKEN
    assert server.get("/status").status == 200
