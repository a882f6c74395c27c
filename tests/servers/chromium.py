"""A headless Chromium, driven over its DevTools protocol; Debian's package `chromium` has it."""

import asyncio
import itertools
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser")
MISSING = "" if PROGRAM else "no Chromium here: apt-get install chromium"
START_SECONDS = 120.0


class Tab:
    """One page of the browser."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._replies: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.complaints: list[str] = []
        """Errors and warnings of the console, refused requests and exceptions of the page."""
        self.asked: list[str] = []
        """The URLs that the page has asked for."""

    async def listen(self) -> None:
        async for message in self._socket:
            told = message.json()
            if "id" in told:
                self._replies.pop(told["id"]).set_result(told)
                continue
            params = told.get("params", {})
            match told["method"]:
                case "Runtime.exceptionThrown":
                    self.complaints.append(str(params["exceptionDetails"]))
                case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                    self.complaints.append(params["entry"]["text"])
                case "Network.requestWillBeSent":
                    self.asked.append(params["request"]["url"])

    async def send(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        reply = self._replies[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params})
        told = await reply
        assert "error" not in told, told
        found: dict[str, Any] = told["result"]
        return found

    async def open(self, url: str) -> None:
        await self.send("Page.navigate", url=url)

    async def run(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript in the page."""
        told = await self.send(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    async def until(self, expression: str) -> Any:
        """Return the value of an expression once it is true."""
        while True:
            # Before a page is parsed, its elements are missing.
            parsed = "document.readyState !== 'loading' && location.href !== 'about:blank'"
            value = await self.run(f"{parsed} ? ({expression}) : null")
            if value:
                return value
            await asyncio.sleep(0.05)

    async def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            await self.send(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key,
                windowsVirtualKeyCode={"Tab": 9, "Enter": 13}[key],
                **({"text": "\r"} if key == "Enter" and kind == "keyDown" else {}),
            )  # fmt: skip

    async def size(self, width: int, height: int = 900) -> None:
        await self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip

    async def scheme(self, name: str) -> None:
        """Ask for the `dark` or the `light` colours."""
        feature = {"name": "prefers-color-scheme", "value": name}
        await self.send("Emulation.setEmulatedMedia", features=[feature])


@contextmanager
def browser() -> Iterator[str]:
    """Run a browser; yield host:port of its DevTools."""
    assert PROGRAM, MISSING
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        process = subprocess.Popen(
            [
                PROGRAM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                "--no-first-run", "--no-proxy-server", "--disable-background-networking",
                "--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank",
            ],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        found, deadline = Path(folder, "DevToolsActivePort"), time.monotonic() + START_SECONDS
        try:
            while not (found.exists() and found.read_text(encoding="utf-8").count("\n")):
                assert process.poll() is None, "Chromium ended while starting"
                assert time.monotonic() < deadline, "Chromium does not start"
                time.sleep(0.05)
            yield f"127.0.0.1:{found.read_text(encoding='utf-8').split()[0]}"
        finally:
            process.kill()
            process.wait()


@asynccontextmanager
async def new_tab(address: str) -> AsyncIterator[Tab]:
    """Open a tab of a browser; close it in the end."""
    async with aiohttp.ClientSession(f"http://{address}") as http:
        async with http.put("/json/new?about:blank") as answer:
            page = await answer.json(content_type=None)
        async with http.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0) as socket:
            tab = Tab(socket)
            listening = asyncio.create_task(tab.listen())
            for domain in ("Page", "Runtime", "Log", "Network"):
                await tab.send(f"{domain}.enable")
            yield tab
            listening.cancel()
        await http.get(f"/json/close/{page['id']}")


@asynccontextmanager
async def chromium() -> AsyncIterator[Tab]:
    """Run a browser; yield a tab of it."""
    with browser() as address:
        async with new_tab(address) as tab:
            yield tab
