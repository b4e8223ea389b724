"""A real server in a process of its own, and a client of the standard library's."""

import base64
import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from bench import machine

FIXTURES = Path(__file__).parents[1] / "fixtures"
PATIENCE = 60.0
"""Seconds after which something will not come any more."""
BOUNDARY = "a-line-between-parts"


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        assert self.headers["content-type"].startswith("application/json"), self
        return dict(json.loads(self.body))

    @property
    def error(self) -> str:
        """The reason of a refusal, which is one line."""
        assert set(self.json) == {"error"}, self
        reason = str(self.json["error"])
        assert reason.isprintable()
        return reason


def form(key: str | None, witness: bytes | None) -> tuple[bytes, str]:
    """A form as browsers and curl send it, and its content type."""
    parts = []
    if key is not None:
        parts.append(b'Content-Disposition: form-data; name="key"\r\n\r\n' + key.encode())
    if witness is not None:
        head = b'Content-Disposition: form-data; name="witness"; filename="w"\r\n'
        parts.append(head + b"Content-Type: application/octet-stream\r\n\r\n" + witness)
    line = f"--{BOUNDARY}".encode()
    body = b"".join(line + b"\r\n" + part + b"\r\n" for part in parts) + line + b"--\r\n"
    return body, f"multipart/form-data; boundary={BOUNDARY}"


@dataclass
class Server:
    """A running ``prover serve``."""

    process: subprocess.Popen[bytes]
    log: Path
    host: str = ""
    port: int = 0
    token: str | None = None
    begun: list[str] = field(default_factory=list)

    def until_ready(self) -> "Server":
        """Read what it prints until it says where it is."""
        assert self.process.stdout is not None
        while not self.begun or not self.begun[-1].startswith("serving"):
            line = self.process.stdout.readline().decode()
            assert line, self.log.read_text()
            self.begun.append(line)
        self.host, _, port = self.begun[-1].split()[-1].removeprefix("http://").rpartition(":")
        self.port = int(port)
        return self

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        if self.token is not None:
            headers.setdefault("Authorization", f"Bearer {self.token}")
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        with contextlib.closing(self.connect()) as connection:
            connection.request(method, path, body, names)
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, found, response.read())

    def get(self, path: str) -> Reply:
        return self.ask("GET", path)

    def submit(self, key: str, witness: bytes) -> Reply:
        body, kind = form(key, witness)
        return self.ask("POST", "/jobs", body, Content_Type=kind)

    def submit_json(self, key: str, witness: bytes) -> Reply:
        body = json.dumps({"key": key, "witness": base64.b64encode(witness).decode()})
        return self.ask("POST", "/jobs", body, Content_Type="application/json")

    def accepted(self, key: str, witness: bytes) -> str:
        reply = self.submit(key, witness)
        assert reply.status == 202, reply
        return str(reply.json["id"])

    def answer(self, job: str) -> dict[str, Any]:
        """What has become of a job, once it has ended."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            reply = self.get(f"/jobs/{job}?wait=5")
            assert reply.status == 200, reply
            if reply.json["state"] in ("done", "failed", "cancelled"):
                return reply.json
        raise AssertionError(f"job {job} does not end: {reply.body!r}")

    def worker(self) -> psutil.Process:
        """Its worker process."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            for child in psutil.Process(self.process.pid).children():
                with contextlib.suppress(psutil.Error):
                    # Not before it runs its own program: till then its server waits for it.
                    if "prover.service.worker" in child.cmdline():
                        return child
            time.sleep(0.01)
        raise AssertionError("there is no worker process")

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Let the worker do nothing."""
        worker = self.worker()
        worker.suspend()
        try:
            yield
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.resume()

    def until(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The server's status, as soon as something holds of it."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            status = self.get("/status").json
            if holds(status):
                return status
            time.sleep(0.01)
        raise AssertionError(f"the status stays {status | {'proofs': '...', 'keys': '...'}}")

    def wait(self) -> int:
        """Its exit code."""
        return self.process.wait(PATIENCE)

    def stop(self) -> None:
        """End it at once, if it runs."""
        deadline = time.monotonic() + PATIENCE
        # The second signal ends it at once; two that come together count as one.
        while self.process.poll() is None and time.monotonic() < deadline:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.1)
        assert self.process.poll() is not None, self.log.read_text()


@contextlib.contextmanager
def serving(
    log: Path,
    *words: Any,
    ready: bool = True,
    files: int | None = None,
    small_pages: bool = False,
    **environment: str,
) -> Iterator[Server]:
    """A server with these words on its command line, until the block ends.

    It may have so many files open, and no huge pages, whatever the system gives others.
    """
    command = [sys.executable, "-m", "prover", "serve", *map(str, words)]
    if files is not None:
        command = ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", *command]
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [*command, "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, **environment},
            preexec_fn=machine.forbid_huge_pages if small_pages else None,
        )
    server = Server(process, log)
    try:
        yield server.until_ready() if ready else server
    finally:
        server.stop()
        assert process.stdout is not None
        process.stdout.close()
