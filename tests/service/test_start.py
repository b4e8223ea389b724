"""What a server says when it cannot begin: one line, exit code 2."""

import os
import shutil
import socket

import pytest

from prover.cli import main

KEY = "bn128-multiplier"


@pytest.fixture
def refused(capfd):
    """The one line that a server ends with."""

    def run(*words):
        with pytest.raises(SystemExit) as exit:
            raise SystemExit(main(["serve", *map(str, words)]))
        assert exit.value.code == 2
        out, err = capfd.readouterr()
        assert out == ""
        (line,) = err.splitlines()
        return line.removeprefix("prover: ").removeprefix("prover serve: ")

    return run


def test_a_limit_of_a_gpus_memory_without_a_gpu(refused, keys):
    words = ("--port", "0", "--backend", "cpu", "--device-memory", "1GiB")
    assert refused(keys, *words) == "--device-memory is of a GPU, which --backend cpu does not use"


def test_key_directories_that_hold_nothing_to_serve(refused, tmp_path, keys):
    folder = tmp_path / "keys"
    assert refused(folder) == f"{folder}: cannot be read: no such file or directory"
    file = keys / f"{KEY}.zkey"
    assert refused(file, "--port", "0") == f"{file}: cannot be read: not a directory"
    folder.mkdir()
    empty = f"{folder}: holds no usable key: there is no *.zkey in it"
    assert refused(folder, "--port", "0") == empty
    (folder / "a.zkey").write_bytes(b"zkey")
    assert refused(folder, "--port", "0") == (
        f"{folder}: holds no usable key: a.zkey: holds 4 bytes, too few for the header"
    )


def test_an_address_that_others_reach_needs_a_token(refused, keys):
    for host in ("0.0.0.0", "::"):
        line = refused(keys, "--port", "0", "--host", host)
        assert line == (
            f"--host {host}: others reach this address, so a token is needed: give "
            "--token-file FILE, or PROVER_TOKEN in the environment"
        )


@pytest.mark.parametrize("token", ["", "short", "with a space in it!", "x" * 2000, "ä" * 20])
def test_tokens_that_are_none(refused, keys, tmp_path, monkeypatch, token):
    path = tmp_path / "token"
    path.write_text(token)
    assert refused(keys, "--token-file", path).startswith(f"{path}: a token is one line of 16 to")
    monkeypatch.setenv("PROVER_TOKEN", token)
    assert refused(keys).startswith("$PROVER_TOKEN: a token is one line of 16 to")
    assert refused(keys, "--token-file", tmp_path).endswith("cannot be read: is a directory")


def test_what_cannot_be_had(refused, keys, tmp_path):
    assert refused(keys, "--port", "0", "--allocator", "none").startswith(
        "--allocator none: there is no allocator called 'none'; known are "
    )
    assert refused(keys, "--port", "0", "--budget", "0") == (
        "--allocator recycle: a budget of nothing admits no allocation"
    )
    assert refused(keys, "--host", "no.such.host.invalid").endswith("is no address of this machine")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = refused(keys, "--port", port)
        assert line == f"cannot listen at 127.0.0.1 port {port}: address already in use"
    file = tmp_path / "file"
    file.touch()
    assert refused(keys, "--port", "0", "--spool", file) == (
        f"{file}: cannot be a spool: file exists"
    )
    for option in ("--port", "--queue", "--keep", "--grace", "--budget"):
        assert f"argument {option}" in refused(keys, option, "x")


def test_bad_keys_are_told_and_listed_and_the_others_served(
    start, keys, witnesses, right, tmp_path, sections
):
    folder = tmp_path / "keys"
    folder.mkdir()
    shutil.copy(keys / f"{KEY}.zkey", folder)
    data = (keys / f"{KEY}.zkey").read_bytes()
    (folder / "cut.zkey").write_bytes(data[:1000])
    off = sections.read(keys / f"{KEY}.zkey")
    off[9][0] ^= 1
    (folder / "off.zkey").write_bytes(off.encode())
    (folder / "out.zkey").symlink_to(keys / f"{KEY}.zkey")
    (folder / "up.zkey").symlink_to("../keys-elsewhere/x.zkey")
    (folder / "in.zkey").symlink_to(f"{KEY}.zkey")
    (folder / "dir.zkey").mkdir()
    (folder / "a b<i>.zkey").write_bytes(data)
    os.mkfifo(folder / "pipe.zkey")
    (folder / "notes.txt").write_text("no key")
    server = start(folder)
    bad = {
        "cut": "is truncated",
        "off": "H point",
        "out": "is a link that leads out of the key directory",
        "up": "is no file, or a link that leads nowhere",
        "dir": "is a directory",
        "a b<i>": "names are up to 100 letters",
        "pipe": "is not a regular file",
    }
    listed = server.get("/keys").json
    assert set(listed["keys"]) == {KEY, "in"}
    assert set(listed["bad"]) == set(bad)
    for name, reason in bad.items():
        assert listed["bad"][name].startswith(f"{name}.zkey: ")
        assert reason in listed["bad"][name]
        assert f"warning: {listed['bad'][name]}\n" in server.log.read_text()
        assert server.submit(name, witnesses[KEY]).status == 404
    for name in (KEY, "in"):
        job = server.accepted(name, witnesses[KEY])
        assert right(KEY, server.answer(job))


def test_a_spool_has_one_server(start, refused, keys, tmp_path):
    start(keys, "--spool", tmp_path / "spool")
    assert refused(keys, "--port", "0", "--spool", tmp_path / "spool") == (
        f"{tmp_path / 'spool'}: is the spool of another server that runs"
    )


def test_a_spool_with_a_strange_file_is_left_as_it_is(refused, keys, tmp_path):
    spool = tmp_path / "spool"
    spool.mkdir()
    strange = spool / f"{'0' * 32}.answer"
    strange.write_text('{"state": "done"}')
    assert refused(keys, "--port", "0", "--spool", spool) == (
        f"{strange}: is not what a server wrote; move it out of the spool"
    )
    assert strange.read_text() == '{"state": "done"}'
