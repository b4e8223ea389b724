"""A headless Chromium, driven over its DevTools protocol."""

import asyncio
import contextlib
import itertools
import os
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

NAMES = (
    *("chromium-headless-shell", "chromium", "chromium-browser"),
    *("google-chrome", "google-chrome-stable", "chrome"),
)
PATIENCE = 60.0


def find() -> str | None:
    """The browser of this machine, if it has one."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """One tab.

    Attributes
    ----------
    problems
        Exceptions of scripts, and what the browser complains of.
    requests
        Addresses that were asked for.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.session: str | None = None
        self.problems: list[str] = []
        self.requests: list[str] = []

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._answers[number] = asyncio.get_running_loop().create_future()
        message = {"id": number, "method": method, "params": parameters}
        if self.session is not None:
            message["sessionId"] = self.session
        await self._socket.send_json(message)
        return await asyncio.wait_for(self._answers[number], PATIENCE)

    async def listen(self) -> None:
        """Hand out answers and note events, until the browser is gone."""
        async for message in self._socket:
            said = message.json()
            if "id" in said:
                future = self._answers.pop(said["id"])
                if "error" in said:
                    future.set_exception(RuntimeError(said["error"]["message"]))
                else:
                    future.set_result(said["result"])
            elif said["method"] == "Network.requestWillBeSent":
                self.requests.append(said["params"]["request"]["url"])
            elif said["method"] == "Runtime.exceptionThrown":
                self.problems.append(str(said["params"]["exceptionDetails"]))
            elif said["method"] == "Log.entryAdded":
                self.problems.append(said["params"]["entry"]["text"])

    async def open(self, url: str) -> None:
        await self.call("Page.navigate", url=url)
        await self.until(f"location.href === {url!r} && document.readyState === 'complete'")

    async def value(self, expression: str) -> Any:
        """What a JavaScript expression is."""
        answer = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def text(self, selector: str) -> str:
        """What a reader sees of an element."""
        found = f"document.querySelector({selector!r})"
        return str(await self.value(f"{found} ? {found}.innerText : ''"))

    async def until(self, expression: str) -> None:
        """Wait until a JavaScript expression is true."""
        deadline = asyncio.get_running_loop().time() + PATIENCE
        while not await self.value(f"!!({expression})"):
            if asyncio.get_running_loop().time() > deadline:
                raise AssertionError(f"{expression} stays false: {await self.text('html')}")
            await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def browsing(executable: str, profile: Path) -> AsyncIterator[Page]:
    """An empty tab of a browser of its own."""
    process = await asyncio.create_subprocess_exec(
        *(executable, "--headless", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
        *(["--no-sandbox"] if os.geteuid() == 0 else []),  # root has none
        *("--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank"),
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,  # it is a script that starts others
    )
    try:
        address = await _address(profile / "DevToolsActivePort")
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(address, max_msg_size=0) as socket,
        ):
            page = Page(socket)
            listening = asyncio.create_task(page.listen())
            target = await page.call("Target.createTarget", url="about:blank")
            attached = await page.call(
                "Target.attachToTarget", targetId=target["targetId"], flatten=True
            )
            page.session = attached["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                await page.call(f"{domain}.enable")
            yield page
            listening.cancel()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def _address(file: Path) -> str:
    """Where the browser listens, which it writes down once it does."""
    async with asyncio.timeout(PATIENCE):
        while True:
            lines = file.read_text().split() if file.exists() else []
            if len(lines) == 2:
                return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
            await asyncio.sleep(0.05)
