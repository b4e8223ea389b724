"""What is refused, each with its status and a reason in one line; the server serves on."""

import base64
import contextlib
import http.client
import json
import socket

import pytest
from serving import BOUNDARY, Reply, form

JSON = "application/json"
FORM = f"multipart/form-data; boundary={BOUNDARY}"
KEY = "bn128-multiplier"
LINE = f"--{BOUNDARY}\r\n".encode()
END = f"--{BOUNDARY}--\r\n".encode()
KEY_PART = LINE + b'Content-Disposition: form-data; name="key"\r\n\r\n' + KEY.encode() + b"\r\n"


@pytest.fixture(autouse=True, scope="module")
def serves_on(server, witnesses):
    """After all of this the server does what it is for, and so does its first worker."""
    yield
    job = server.accepted(KEY, witnesses[KEY])
    assert server.answer(job)["state"] == "done"
    assert server.get("/status").json["worker_starts"] == 1


def as_json(**fields):
    return json.dumps(fields).encode()


def part(name, content, disposition="form-data"):
    head = f'Content-Disposition: {disposition}; name="{name}"\r\n\r\n'.encode()
    return LINE + head + content + b"\r\n"


@pytest.mark.parametrize(
    ("body", "kind", "status", "reason"),
    [
        (b"", JSON, 400, "no JSON"),
        (b"{", JSON, 400, "no JSON"),
        (b"\xff\xfe", JSON, 400, "no JSON"),
        (b'"\\ud800"', JSON, 400, "no JSON"),
        ('{"key": "\u202e", "witness": ""}'.encode(), JSON, 400, "beyond ASCII"),
        (as_json(key="\u202ebn128", witness=""), JSON, 400, "beyond ASCII"),
        (b"[" * 10_000, JSON, 422, "exactly key and witness"),
        (b'{"key": "a", "key": "b", "witness": ""}', JSON, 422, "exactly key and witness"),
        (b'{"key": "a", "key": "b"}', JSON, 422, "exactly key and witness"),
        (b'{"key": "a", "witness": {}}', JSON, 422, "exactly key and witness"),
        (b"[]", JSON, 422, "exactly key and witness"),
        (b"null", JSON, 422, "exactly key and witness"),
        (as_json(key=KEY), JSON, 422, "exactly key and witness"),
        (as_json(witness=""), JSON, 422, "exactly key and witness"),
        (as_json(key=KEY, witness="", more=1), JSON, 422, "exactly key and witness"),
        (as_json(key=7, witness=""), JSON, 404, "no usable key 7"),
        (as_json(key=[KEY], witness=""), JSON, 422, "exactly key and witness"),
        (as_json(key=KEY, witness=7), JSON, 422, "base64"),
        (as_json(key=KEY, witness="?"), JSON, 422, "base64"),
        (as_json(key=KEY, witness="AAA"), JSON, 422, "base64"),
        (as_json(key=KEY, witness="\u00e4"), JSON, 422, "base64"),
        (as_json(key=KEY, witness=""), JSON, 422, "too few for the header"),
        (as_json(key=KEY, witness="AAAA" * 20), JSON, 422, "unknown magic"),
        (b"", FORM, 400, "malformed"),
        (b"--other--\r\n", FORM, 400, "malformed"),
        (END, FORM, 422, "lacks the part key"),
        (KEY_PART + END, FORM, 422, "lacks the part witness"),
        (KEY_PART + part("witness", b"") + END, FORM, 422, "lacks the part witness"),
        (part("witness", b"x") + KEY_PART + END, FORM, 422, "must come before"),
        (KEY_PART + KEY_PART + END, FORM, 422, "other parts"),
        (KEY_PART + part("other", b"x") + END, FORM, 422, "other parts"),
        (KEY_PART + 2 * part("witness", b"x") + END, FORM, 422, "other parts"),
        (KEY_PART + part("witness", b"x" * 40) + END, FORM, 422, "unknown magic"),
        (part("key", b"k" * 1000) + END, FORM, 413, "too large"),
        (KEY_PART + LINE, FORM, 422, "other parts"),
        (KEY_PART + LINE + b"no header\r\n\r\nx\r\n" + END, FORM, 400, "malformed"),
        (part("_charset_", b"u" * 40) + END, FORM, 400, "malformed"),
        (part("_charset_", b"\xff") + END, FORM, 400, "malformed"),
        (part("key", "\u202ebn128".encode()) + END, FORM, 404, "no usable key"),
        (b"x", "multipart/form-data", 400, "malformed"),
        (b"x", "multipart/form-data; boundary=", 400, "malformed"),
        (b"x", "multipart/mixed; boundary=a", 415, "send application/json or"),
        (b"x", "text/plain", 415, "send application/json or"),
        (b"x", "application/x-www-form-urlencoded", 415, "send application/json or"),
    ],
)
def test_malformed_bodies(server, body, kind, status, reason):
    reply = server.ask("POST", "/jobs", body, Content_Type=kind)
    assert (reply.status, reason in reply.error) == (status, True), reply


@pytest.mark.parametrize(
    "name",
    [
        "", ".", "..", "../keys/bn128-multiplier", "/etc/passwd", "bn128-multiplier.zkey",
        "./bn128-multiplier", "bn128-multiplier\0", "bn128-multiplier/", "BN128-multiplier",
        "%2e%2e/x", "x" * 150, "<script>", "bn128-multiplier\n",
    ],
)  # fmt: skip
@pytest.mark.parametrize("how", ["form", "json"])
def test_names_that_are_no_key(server, witnesses, name, how):
    submit = server.submit if how == "form" else server.submit_json
    reply = submit(name, witnesses[KEY])
    assert reply.status == 404
    assert "no usable key" in reply.error


def test_every_cut_and_extended_witness(server, witnesses):
    witness = witnesses[KEY]
    for size in (0, 1, 11, 12, 23, 24, 75, 76, len(witness) - 32, len(witness) - 1):
        for submit in (server.submit, server.submit_json):
            assert submit(KEY, witness[:size]).status == 422, size
    for more in (1, 3, 32, 1000):
        for submit in (server.submit, server.submit_json):
            reply = submit(KEY, witness + bytes(more))
            assert reply.status in (413, 422), more
    assert server.submit(KEY, witness + b"x").error == (
        f"the witness is too large: one for {KEY} holds {len(witness)} bytes"
    )


@pytest.mark.parametrize(
    ("place", "value", "reason"),
    [
        (4, b"\x03", "version 3"),
        (28, (7).to_bytes(32, "little"), "field of order 0x7"),
        (76, b"\x02", "signal 0 is not one"),
        (76 + 32, b"\xff" * 32, "signal 1"),
    ],
)
def test_witnesses_with_a_wrong_field(server, witnesses, place, value, reason):
    witness = bytearray(witnesses[KEY])
    witness[place : place + len(value)] = value
    reply = server.submit(KEY, bytes(witness))
    assert reply.status == 422
    assert reply.error.startswith("witness: ")
    assert reason in reply.error, reply


def test_a_witness_of_another_circuit_or_curve(server, witnesses):
    reply = server.submit("bn128-manypub", witnesses[KEY])
    assert reply.status == 422
    assert "but the circuit of bn128-manypub has" in reply.error
    reply = server.submit(KEY, witnesses["bls12381-multiplier"])
    assert reply.status == 422
    assert reply.error == f"witness: is over bls12381, but {KEY} is over bn128"


def test_an_announced_size_is_refused_before_the_body_comes(server):
    for kind in (JSON, FORM):
        with socket.create_connection(("127.0.0.1", server.port), 30) as connection:
            connection.sendall(
                f"POST /jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
                f"Content-Length: {1 << 40}\r\n\r\n".encode()
            )
            assert connection.recv(100).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("kind", [JSON, FORM])
def test_a_body_of_unknown_size_is_read_up_to_the_limit(server, witnesses, kind):
    first = KEY_PART + part("witness", b"")[:-2] if kind == FORM else b'{"key": "'
    sent = 0

    def endless():
        nonlocal sent
        yield first
        while sent < 64 << 20:
            sent += 1 << 16
            yield b"A" * (1 << 16)

    with contextlib.closing(server.connect()) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.request(
                "POST", "/jobs", endless(), {"Content-Type": kind}, encode_chunked=True
            )
        assert connection.getresponse().status == 413


HEADS = b"".join(b"X-%d: %s\r\n" % (number, b"x" * 6000) for number in range(3))
FEW, MANY = b"a\r\n" * 1000, b"a\r\n" * 6000


@pytest.mark.parametrize(
    ("before", "heads", "after", "status"),
    [
        (b"", b"", b"", 202),
        (FEW, HEADS[:6000] + b"\r\n", FEW, 202),
        (MANY, b"", b"", 413),
        (FEW * 1000, b"", b"", 413),
        (b"", HEADS, b"", 413),
        (b"", b"", b"a" * 20_000, 413),
    ],
)
def test_what_is_around_the_parts_of_a_form_is_bounded(
    server, witnesses, before, heads, after, status
):
    body = before + KEY_PART.replace(LINE, LINE + heads) + part("witness", witnesses[KEY]) + END
    pieces = iter([body + after])  # of a length that nobody announces
    with contextlib.closing(server.connect()) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.request("POST", "/jobs", pieces, {"Content-Type": FORM}, encode_chunked=True)
        response = connection.getresponse()
        told = json.loads(response.read())
    assert response.status == status
    if status == 202:
        server.answer(told["id"])
    else:
        assert told == {"error": "the form is too large: 16384 bytes are enough around its parts"}


@pytest.mark.parametrize("odd", [";%d", "form-data; %d=a; %d=b", "form-data; a b%d=c", "=%d"])
def test_heads_that_are_malformed_leave_no_trace(server, odd):
    before = server.log.read_text()
    for number in range(20):
        head = odd.replace("%d", str(number)).encode()
        body = LINE + b"Content-Disposition: " + head + b"\r\n\r\nx\r\n" + END
        reply = server.ask("POST", "/jobs", body, Content_Type=FORM)
        assert (reply.status, "other parts" in reply.error) == (422, True)
    assert server.log.read_text() == before


def test_a_compressed_body(server, witnesses):
    body, kind = form(KEY, witnesses[KEY])
    reply = server.ask("POST", "/jobs", body, Content_Type=kind, Content_Encoding="gzip")
    assert reply.status == 415


def test_a_client_that_goes_away_mid_body(server, witnesses):
    body, kind = form(KEY, witnesses[KEY])
    head = (
        f"POST /jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode()
    for _ in range(8):  # more than there are places in the queue
        with socket.create_connection(("127.0.0.1", server.port), 30) as connection:
            connection.sendall(head + body[: len(body) // 2])
    server.until(lambda status: status["queue"]["arriving"] == 0)


START = b"POST /jobs HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\0\0\0\0", 400),
        (b"GET\r\n\r\n", 400),
        (b"GET / HTTP/9.9\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\0\x01\0", 400),
        (START + b"X: \x01\r\n\r\n", 400),
        (START + b"Content-Length: -1\r\n\r\n", 400),
        (START + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (START + b"Content-Length: 1\r\nExpect: wonders\r\n\r\n", 417),
        (b"GET /nowhere HTTP/1.1\r\nHost: localhost\r\nExpect: wonders\r\n\r\n", 417),
        (START + b"X: " + b"x" * 10_000 + b"\r\n\r\n", 400),
    ],
)
def test_what_is_no_http(server, sent, status):
    """It is refused as everything else is, without the versions of what serves."""
    with socket.create_connection(("127.0.0.1", server.port), 30) as connection:
        connection.sendall(sent)
        response = http.client.HTTPResponse(connection)
        response.begin()
        headers = {name.lower(): value for name, value in response.getheaders()}
        reply = Reply(response.status, headers, response.read())
    assert (reply.status, reply.headers["server"]) == (status, "prover")
    assert reply.error


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/jobs", 405),
        ("PUT", "/jobs", 405),
        ("GET", "/jobs/x", 404),
        ("GET", "/jobs/..%2f..%2fetc%2fpasswd", 404),
        ("GET", "/../../etc/passwd", 404),
        ("GET", "/jobs/x/proof.json", 404),
        ("GET", "/keys/bn128-multiplier.zkey", 404),
        ("POST", "/status", 405),
        ("PATCH", "/jobs/x", 405),
    ],
)
def test_paths_and_methods_that_are_not_there(server, method, path, status):
    reply = server.ask(method, path)
    assert reply.status == status
    assert reply.error


@pytest.mark.parametrize("wait", ["x", "-1", "nan", "inf", "301", "", "1e999"])
def test_a_wait_that_is_no_time(server, witnesses, wait):
    job = server.accepted(KEY, witnesses[KEY])
    assert server.get(f"/jobs/{job}?wait={wait}").status == 422
    server.answer(job)


def test_pages_of_other_sites(server, witnesses):
    """A browser on this machine sends their forms and resolves their names."""
    body, kind = form(KEY, witnesses[KEY])
    for headers in (
        {"Origin": "https://elsewhere.example"},
        {"Origin": "null"},
        {"Host": "elsewhere.example"},
        {"Host": f"elsewhere.example:{server.port}"},
        {"Host": "127.0.0.1.elsewhere.example"},
        {"Host": ""},
        {"Host": "[::1"},
        {"Host": "0.0.0.0"},
    ):
        reply = server.ask("POST", "/jobs", body, Content_Type=kind, **headers)
        assert reply.status == 403, headers
        assert "without a token" in reply.error
    own = {"Host": f"localhost:{server.port}", "Origin": f"http://localhost:{server.port}"}
    assert server.ask("GET", "/status", **own).status == 200


def test_base64_with_a_line_break_is_no_base64(server, witnesses):
    text = base64.encodebytes(witnesses[KEY]).decode()
    reply = server.ask("POST", "/jobs", as_json(key=KEY, witness=text), Content_Type=JSON)
    assert reply.status in (413, 422)
