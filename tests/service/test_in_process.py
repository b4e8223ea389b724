"""What needs a server inside this process: moments that no client can choose, and memory."""

import asyncio
import base64
import errno
import os
import socket
import tracemalloc
import warnings

import pytest
from aiohttp import StreamReader, multipart, web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.test_utils import TestClient, TestServer, make_mocked_request
from serving import BOUNDARY, form

from prover.service import forms, uploads
from prover.service.access import Guard
from prover.service.api import Api
from prover.service.connections import Connections
from prover.service.job import FINAL, Job, State
from prover.service.jobs import Jobs
from prover.service.keys import KeyFacts
from prover.service.metrics import Metrics
from prover.service.secret import SecretFile

FACTS = KeyFacts("bn128", 1, 2, 1 << 15, 1, 1, True)


class Worker:
    """One that ends the running job while it is asked how far it is."""

    running, starts = True, 1

    def __init__(self, jobs):
        self.jobs = jobs

    async def look(self):
        await self.jobs.end(self.jobs.running, State.DONE, proof='{"p": 1}', public="[1]")


def jobs():
    return Jobs(limit=4, keep=100, spool=None, on_end=lambda job: None)


def api(jobs):
    return Api(jobs, Worker(jobs), Metrics(), Guard(None), {"key": FACTS}, {}, ready=True)


def test_an_answer_is_fetched_only_if_it_was_told():
    async def tell():
        known = jobs()
        job = Job("key", None)
        await known.accept(job)
        await known.next()
        async with TestClient(TestServer(api(known).application())) as client:
            told = await (await client.get(f"/jobs/{job.id}")).json()
            assert known.unfetched == (told["state"] not in FINAL)
            assert ("proof" in told) == (told["state"] in FINAL)
            told = await (await client.get(f"/jobs/{job.id}")).json()
            assert told["state"] == "done"
            assert known.unfetched == 0

    asyncio.run(tell())


@pytest.mark.parametrize(
    ("owner", "name", "number"),
    [(os, "memfd_create", errno.EMFILE), (SecretFile, "write", errno.ENOSPC)],
)
def test_a_witness_that_cannot_be_kept_is_for_later(monkeypatch, owner, name, number):
    def fail(*arguments):
        raise OSError(number, os.strerror(number))

    async def submit():
        async with TestClient(TestServer(api(jobs()).application())) as client:
            monkeypatch.setattr(owner, name, fail)
            body, kind = form("key", b"w" * 100)
            text = {"key": "key", "witness": base64.b64encode(b"w" * 100).decode()}
            replies = [
                await client.post("/jobs", data=body, headers={"Content-Type": kind}),
                await client.post("/jobs", json=text),
            ]
            return [(reply.status, (await reply.json())["error"]) for reply in replies]

    reason = f"the witness cannot be kept: {os.strerror(number).lower()}"
    assert asyncio.run(submit()) == [(503, reason)] * 2


def decoded(text):
    """The size of the witness in a body, or the refusal; and the most memory it took to decode."""

    class Request:
        content_length = None

        class content:
            @staticmethod
            async def iter_chunked(size):
                for start in range(0, len(text), size):
                    yield text[start : start + size]

    class Sink(SecretFile):
        def __init__(self):
            self.size = 0

        def write(self, piece):
            self.size += len(piece)

    async def decode():
        sink = Sink()
        try:
            await uploads._receive_json(Request(), {"key": FACTS}, FACTS.witness_bytes, sink)
        except uploads.Refusal as refusal:
            return refusal.status
        return sink.size

    tracemalloc.start()
    try:
        return asyncio.run(decode()), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def body(text):
    return b'{"key": "key", "witness": "' + text + b'"}'


def test_json_takes_three_times_its_witness_at_most():
    """As docs/service.md says, whatever the body is; 256 KiB are for everything around it."""
    size = FACTS.witness_bytes
    honest = base64.b64encode(bytes(size))
    most = len(honest)
    room = uploads._ROOM - 100
    cases = {
        body(honest): size,
        body(b"\\/" + honest[1:]): size,
        body(b"\\u0041" + honest[1:]): size,
        body(b"\\u00ff" + honest[1:]): 422,
        body(b"\\ud83d\\ude00" + honest[2:]): 400,
        body(honest[:-20] + b"\\ud83d\\ude00"): 400,
        b'{"key": "key", "witness": [' + b"{}," * (most // 3) + b"0]}": 422,
        b'{"key": "key", "witness": ' + b'{"a":' * (most // 5) + b"}": 422,
        b"{" + b'"a":0,' * (most // 6) + b'"b":0}': 422,
        b"[" * most: 422,
        b"9" * most: 400,
        body(b"A" * (most + room)): 413,
        b'"' + b"\\u0041" * (most // 6) + b'"': 422,
    }
    for text, outcome in cases.items():
        found, peak = decoded(text)
        assert found == outcome, text[:60]
        assert peak < 3 * size + (256 << 10), (text[:60], peak / size)


def test_padding_ends_a_witness_and_not_a_piece_of_it():
    inner = base64.b64encode(bytes(uploads.PIECE_BYTES * 3 // 4 - 1))
    assert len(inner) == uploads.PIECE_BYTES
    assert decoded(body(inner))[0] == len(inner) * 3 // 4 - 1
    assert decoded(body(inner + b"AAAA"))[0] == 422


def parts_of(sent):
    """The names of a form's parts, and how many turns others had while they were read."""

    async def read():
        loop = asyncio.get_running_loop()
        content = StreamReader(BaseProtocol(loop), 1 << 16, loop=loop)
        content.feed_data(sent)
        content.feed_eof()
        headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
        request = make_mocked_request("POST", "/jobs", headers, payload=content)
        turns = 0

        async def others():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        meanwhile = asyncio.create_task(others())
        found = [part.name async for part in forms.parts(request, 1 << 14)]
        meanwhile.cancel()
        return found, turns

    return asyncio.run(read())


def test_the_lines_of_a_form_leave_others_their_turns():
    """All of them are there: reading one waits for nothing."""
    body, _ = form("key", b"witness")
    names, turns = parts_of(b"a\r\n" * 5000 + body)
    assert names == ["key", "witness"]
    assert turns >= 5000


def test_names_that_are_malformed_are_kept_nowhere():
    kept = vars(multipart).setdefault("__warningregistry__", {})
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        forms.ignore_bad_names()
        for number in range(10):
            body, _ = form(None, b"witness")
            for odd in (b"odd%d", b"odd%d=a; odd%d=b", b"odd name%d=c"):
                bad = body.replace(b'name="witness"', odd.replace(b"%d", b"%d" % number))
                assert parts_of(bad)[0] == [None]
    assert "odd" not in str(kept)


def test_a_limit_on_connections_spares_those_with_requests():
    """The oldest without a request goes; if all have one, the newest."""

    async def connect():
        begun, release = asyncio.Semaphore(0), asyncio.Event()

        async def hold(request):
            begun.release()
            await release.wait()
            return web.Response(text="held")

        def refuse(refusal):
            raise AssertionError(refusal)

        connections = Connections(2, refuse)
        application = web.Application(middlewares=[connections.note])
        application.router.add_get("/", hold)
        runner = web.AppRunner(application)
        await runner.setup()
        with socket.create_server(("127.0.0.1", 0)) as listening:
            accepting = asyncio.create_task(connections.accept([listening], runner.server))
            port = listening.getsockname()[1]

            async def open_():
                return await asyncio.open_connection("127.0.0.1", port)

            async def ask(writer):
                writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                await begun.acquire()

            old, idle = await open_(), await open_()
            await ask(old[1])
            newer = await open_()
            assert await idle[0].read() == b""
            await ask(newer[1])
            newest = await open_()
            assert await newest[0].read() == b""
            release.set()
            for reader, _ in (old, newer):
                assert (await reader.readuntil(b"held")).startswith(b"HTTP/1.1 200")
            for _, writer in (old, idle, newer, newest):
                writer.close()
            accepting.cancel()
            await asyncio.wait([accepting])
        await runner.cleanup()

    asyncio.run(connect())
