"""Two hundred jobs, good, bad, cancelled and cut off, while workers are killed: memory stays."""

import contextlib
import json
import random
import shutil
import socket
import statistics
import struct
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from serving import form, serving

from prover.cli import main
from prover.formats.proof_json import read_proof, read_public
from prover.formats.zkey import ProvingKey
from prover.verify import VerificationKey, verify

CIRCUIT = Path(__file__).parents[2] / "circuits" / "membership"
CLIENTS = 4
QUARTER = (
    ["large and killed", "misnamed"]
    + ["form"] * 19
    + ["json"] * 6
    + ["large"] * 3
    + ["malformed"] * 8
    + ["false"] * 2
    + ["cancelled"] * 4
    + ["cut off"] * 4
    + ["deserted"] * 2
)
"""Fifty jobs; every quarter of the test has the same, after the first in another order."""

MISNAMED = 500
"""Forms of a client that does not know how to name a part: each of 6 kB that nobody may keep."""


@pytest.fixture(scope="module")
def folder(keys, tmp_path_factory):
    """The fixtures' keys and one of a circuit of 24,256 constraints."""
    folder = shutil.copytree(keys, tmp_path_factory.mktemp("soak") / "keys")
    made = ["setup", CIRCUIT / "membership.r1cs", "-o", folder / "membership.zkey"]
    assert main([*map(str, made), "--insecure-dev-key"]) == 0
    return folder


class Soak:
    """Clients of one server, each of whom does one job after the other."""

    def __init__(self, server, folder, witnesses, scratch):
        self.server = server
        self.witnesses = witnesses
        self.large = [path.read_bytes() for path in sorted(CIRCUIT.glob("witness_*.wtns"))]
        self.keys = {
            path.stem: VerificationKey.from_zkey(ProvingKey.open(path))
            for path in folder.glob("*.zkey")
        }
        self.scratch = scratch
        self.resident: list[tuple[int, int]] = []
        self.killing = threading.Lock()
        self.process = psutil.Process(server.process.pid)

    def quarter(self, number: int) -> None:
        """Do fifty jobs, and note what the processes hold after each."""
        first, *jobs = QUARTER
        chance = random.Random(number)
        chance.shuffle(jobs)
        work = [(job, random.Random(chance.random())) for job in (first, *jobs)]
        with ThreadPoolExecutor(CLIENTS) as clients:
            for _ in clients.map(lambda one: self.job(*one), work):
                pass

    def job(self, kind: str, chance: random.Random) -> None:
        doing: dict[str, Callable[[random.Random], None]] = {
            "form": self.form,
            "json": self.json,
            "large": self.large_one,
            "large and killed": self.killed,
            "malformed": self.malformed,
            "misnamed": self.misnamed,
            "false": self.false,
            "cancelled": self.cancelled,
            "cut off": self.cut_off,
            "deserted": self.deserted,
        }
        doing[kind](chance)
        with contextlib.suppress(psutil.Error):  # a worker that is being killed or started
            both = (self.process, self.server.worker())
            server, worker = (one.memory_info().rss for one in both)
            self.resident.append((server, worker))

    def small(self, chance: random.Random) -> tuple[str, bytes]:
        return chance.choice(sorted(self.witnesses.items()))

    def form(self, chance):
        name, witness = self.small(chance)
        self.expect_right(name, witness, self.server.submit(name, witness))

    def json(self, chance):
        name, witness = self.small(chance)
        self.expect_right(name, witness, self.server.submit_json(name, witness))

    def large_one(self, chance):
        witness = chance.choice(self.large)
        self.expect_right("membership", witness, self.server.submit("membership", witness))

    def killed(self, chance):
        witness = chance.choice(self.large)
        reply = self.server.submit("membership", witness)
        short = reply.json["id"][:8]
        self.server.until(lambda status: status["running"] and status["running"]["id"] == short)
        self.server.worker().kill()
        self.expect_right("membership", witness, reply)

    def expect_right(self, name, witness, reply):
        assert reply.status == 202, reply
        answer = self.server.answer(reply.json["id"])
        assert answer["state"] == "done", answer
        key = self.keys[name]
        proof = self.scratch / f"{answer['id']}.proof"
        public = self.scratch / f"{answer['id']}.public"
        proof.write_text(json.dumps(answer["proof"]))
        public.write_text(json.dumps(answer["public"]))
        signals = read_public(public, key.curve)
        first = 76 + 32
        assert signals == [
            int.from_bytes(witness[at : at + 32], "little")
            for at in range(first, first + 32 * len(signals), 32)
        ]
        assert verify(key, signals, read_proof(proof, key.curve))

    def malformed(self, chance):
        name, witness = self.small(chance)
        bad = bytearray(witness)
        bad[chance.randrange(76)] ^= 1 << chance.randrange(8)  # a header's bit
        key, sent, submit = chance.choice(
            [
                (name, bytes(bad), self.server.submit),
                (name, witness[: chance.randrange(len(witness))], self.server.submit),
                (name, witness + b"x", self.server.submit_json),
                ("membership", witness, self.server.submit_json),
                (f"../{name}", witness, self.server.submit),
            ]
        )
        reply = submit(key, sent)
        assert reply.status in (404, 413, 422), reply
        assert reply.error

    def misnamed(self, chance):
        """Many forms with a part whose head is malformed, and like no other before."""
        with contextlib.closing(self.server.connect()) as connection:
            for _ in range(MISNAMED):
                body, kind = form(None, b"")
                odd = b'name="%s' % chance.randbytes(3000).hex().encode()
                body = body.replace(b'name="witness"', odd)
                connection.request("POST", "/jobs", body, {"Content-Type": kind})
                response = connection.getresponse()
                assert b"other parts" in response.read()
                assert response.status == 422

    def false(self, chance):
        witness = bytearray(self.witnesses["bn128-multiplier"])
        witness[-32] ^= 1
        job = self.server.accepted("bn128-multiplier", bytes(witness))
        answer = self.server.answer(job)
        assert (answer["state"], answer["error"]) == ("failed", "UnsatisfiedCircuit")

    def cancelled(self, chance):
        name, witness = self.small(chance)
        job = self.server.accepted(name, witness)
        reply = self.server.ask("DELETE", f"/jobs/{job}")
        state = reply.json["state"]
        assert (reply.status, state) in (
            (200, "cancelled"),
            (202, "cancelling"),
            (200, "forgotten"),
        )
        if state != "forgotten":
            assert self.server.answer(job)["state"] == "cancelled"

    def cut_off(self, chance):
        """A client that is killed while it sends its witness."""
        body, kind = form("membership", chance.choice(self.large))
        head = f"POST /jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
        sent = head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body
        with socket.create_connection(("127.0.0.1", self.server.port), 60) as connection:
            connection.sendall(sent[: chance.randrange(len(sent) - 100)])
            reset = struct.pack("ii", 1, 0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)

    def deserted(self, chance):
        """A client that is killed while it waits: its job is done all the same."""
        name, witness = self.small(chance)
        reply = self.server.submit(name, witness)
        request = f"GET /jobs/{reply.json['id']}?wait=60 HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with socket.create_connection(("127.0.0.1", self.server.port), 60) as connection:
            connection.sendall(request.encode())
        self.expect_right(name, witness, reply)


def test_two_hundred_mixed_jobs_leave_memory_as_it_was(folder, witnesses, tmp_path):
    assert len(QUARTER) == 50
    # 4 KiB pages: one huge page more or less is 2 % of what such small processes hold.
    regime = {"small_pages": True, "NUMPY_MADVISE_HUGEPAGE": "0"}
    with serving(tmp_path / "log", folder, **regime) as server:
        soak = Soak(server, folder, witnesses, tmp_path)
        quarters = []
        for number in range(4):
            soak.resident.clear()
            soak.quarter(number)
            quarters.append([statistics.median(one) for one in zip(*soak.resident, strict=True)])
        status = server.until(lambda status: status["queue"]["arriving"] == 0)
        assert status["queue"] | {"limit": 0} == {
            "arriving": 0, "waiting": 0, "running": 0, "limit": 0
        }  # fmt: skip
        assert status["worker_starts"] == 5  # the first, and one after each that was killed
        told = ", ".join(
            f"{server / 2**20:.1f} + {worker / 2**20:.1f} MiB" for server, worker in quarters
        )
        print(f"median resident set of server and worker, by quarter: {told}")
        assert sum(quarters[3]) == pytest.approx(sum(quarters[1]), rel=0.03), told
