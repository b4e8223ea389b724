"""The status page as a browser shows it."""

import asyncio
import os
import re
import shutil

import browser
import pytest
from serving import serving

from prover.service import page

KEY = "bn128-manypub"
TOKEN = "correct-horse-battery-staple"
HOSTILE = '<img src=x onerror="document.title=1">'


@pytest.fixture
def browse(tmp_path):
    """Run a coroutine function with an empty tab."""
    executable = browser.find()
    if executable is None:
        reason = "no Chromium is installed (apt install chromium-headless-shell)"
        assert "PROVER_TEST_BROWSER" not in os.environ, reason
        pytest.skip(f"{reason}; make test-service-page insists on one")

    def run(visit):
        async def main():
            async with browser.browsing(executable, tmp_path / "profile") as tab:
                await visit(tab)

        asyncio.run(main())

    return run


@pytest.fixture(scope="module")
def hostile(keys, tmp_path_factory):
    """A server with a key whose name is markup, and a token."""
    folder = tmp_path_factory.mktemp("page")
    shutil.copytree(keys, folder / "keys")
    (folder / "keys" / f"{HOSTILE}.zkey").touch()
    with serving(folder / "log", folder / "keys", PROVER_TOKEN=TOKEN) as server:
        server.token = TOKEN
        yield server


def innermost(layers):
    """Names and seconds of the layers that have none inside."""
    for layer in layers:
        if layer["layers"]:
            yield from innermost(layer["layers"])
        else:
            yield layer["name"], layer["wall_s"]


def test_it_shows_queue_memory_and_layer_times_as_they_change(browse, server, witnesses):
    first = server.accepted(KEY, witnesses[KEY])
    server.answer(first)

    async def visit(tab):
        await tab.open(f"http://127.0.0.1:{server.port}/")
        await tab.until(f"document.body.innerText.includes('{first[:8]}')")
        assert await tab.text("h1") == "prover serving"
        assert "0 of 4 waiting" in await tab.text("#queue")
        assert await tab.text("#running") == "No proof is being made."
        # Memory: a figure for each state, the warm one not nothing, and a bar of them.
        seen = "['memory', 'resident'].map(id => document.getElementById(id).innerText)"
        await tab.until(f"!(window.seen = {seen}).join().includes('unknown')")
        memory, resident = await tab.value("window.seen")
        rows = memory.split("\n")
        shown = {row.split()[0]: float(row.split()[-2]) for row in rows}
        assert {"live", "pending", "warm", "clean"} <= set(shown)
        assert shown["warm"] > 0
        assert await tab.value("document.querySelector('#memory-bar .c3').offsetWidth") > 0
        assert re.search(r"server \d+\.\d MiB, worker \d+\.\d MiB", resident)
        # Layer times of the proof: each innermost layer with its seconds.
        row = await tab.text("#proofs tr")
        assert KEY in row
        times = list(innermost(server.get("/status").json["proofs"][0]["layers"]))
        assert len(times) > 5
        for name, seconds in times:
            assert f"{name} {seconds:.3f}" in row
        bars = "[...document.querySelectorAll('#proofs tr:first-child .bar span')]"
        assert await tab.value(f"{bars}.reduce((sum, bar) => sum + bar.offsetWidth, 0)") > 0
        # It follows what happens, without being loaded again.
        with server.held():
            job = server.accepted(KEY, witnesses[KEY])
            server.accepted(KEY, witnesses[KEY])
            await tab.until("document.querySelector('#queue').innerText.startsWith('1 of 4')")
            assert (await tab.text("#running")).startswith(f"Proving {job[:8]} with {KEY} for ")
            assert "unknown" in await tab.text("#memory")
        await tab.until("document.querySelectorAll('#proofs tr').length >= 3")
        assert tab.problems == []
        # Nothing came from anywhere else.
        own = f"http://127.0.0.1:{server.port}/"
        assert set(tab.requests) <= {own, f"{own}status", f"{own}favicon.ico"}

    browse(visit)


def test_names_stay_text_and_a_token_is_asked_for(browse, hostile):
    async def visit(tab):
        await tab.open(f"http://127.0.0.1:{hostile.port}/")
        await tab.until("!document.querySelector('#entry').hidden")
        assert await tab.value("document.querySelector('#content').hidden")
        for token in ("wrong", TOKEN):
            await tab.value(f"document.querySelector('#token').value = {token!r}")
            await tab.value("document.querySelector('#entry button').click()")
            if token == "wrong":
                await tab.until("!document.querySelector('#problem').hidden")
                assert await tab.text("#problem") == "This token is not the server's."
        await tab.until("!document.querySelector('#content').hidden")
        assert HOSTILE in await tab.text("#keys")
        assert await tab.value("document.querySelectorAll('img').length") == 0
        assert await tab.value("document.title") == "prover"
        # Even markup that got in could run no script: the policy forbids it.
        await tab.value(f"document.querySelector('#keys').innerHTML = {HOSTILE!r}; 0")
        await tab.until("document.querySelectorAll('img').length == 1")
        await asyncio.sleep(0.5)
        assert await tab.value("document.title") == "prover"
        assert any("Content Security Policy" in problem for problem in tab.problems)

    browse(visit)


def test_the_page_asks_for_nothing_else(server):
    reply = server.get("/")
    assert reply.status == 200
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    policy = reply.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"https?://|\bsrc=|\bhref=|innerHTML|\bon\w+=", page.HTML)
