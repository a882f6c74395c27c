"""The Envoy of docs/reference/http.md in front of a router and of engines, all on loopback."""

import asyncio
import io
import json
import re
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple, Self

import aiohttp
from aiohttp import web

from tests.servers.envoy import Envoy

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "http.md"
REQUEST_MODE = "request_body_mode: BUFFERED"
RESPONSE_MODE = "response_body_mode: STREAMED"
SKIPPED = "trailer_mode: SKIP"
FILTER = "                  - name: envoy.filters.http.ext_proc\n"

Change = tuple[str, str]


def full_duplex() -> list[Change]:
    """Return the changes for bodies that go to the router and back."""
    return [
        (REQUEST_MODE, "request_body_mode: FULL_DUPLEX_STREAMED"),
        (RESPONSE_MODE, "response_body_mode: FULL_DUPLEX_STREAMED"),
        (SKIPPED, "trailer_mode: SEND"),
    ]


FAIL_CLOSE = ("failure_mode_allow: true", "failure_mode_allow: false")

PATIENT = [("message_timeout: 5s", "message_timeout: 100s"), ("- timeout: 1s", "- timeout: 60s")]
"""For a busy machine, on which a router that lives may answer late."""


def config(routers: Iterable[str], pods: Iterable[str], changes: Sequence[Change] = ()) -> str:
    """Return the page's configuration for these addresses, with an admin listener; ports are free ones."""
    found = re.search(r"```yaml\n(.*?)\n```\n", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found
    text = found[1]
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    endpoint = "              - endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %s}}}"
    for ports, addresses in ((("7400",), routers), (("8101", "8102"), pods)):
        shown = "\n".join(endpoint % port for port in ports)
        assert shown in text
        own = [endpoint % address.rpartition(":")[2] for address in addresses]
        text = text.replace(shown, "\n".join(own))
    text = text.replace("port_value: 8080", "port_value: 0")
    return (
        f"admin: {{address: {{socket_address: {{address: 127.0.0.1, port_value: 0}}}}}}\n{text}\n"
    )


def secured(text: str, folder: Path) -> str:
    """Return a configuration with the page's TLS to routers, whose files are in a folder; write them.

    The folder has `ca.pem`, `gateway.pem` and `gateway.key`.
    """
    page = PAGE.read_text(encoding="utf-8").replace("/etc/envoy", str(folder))
    _, socket, authority, own = re.findall(r"```yaml\n(.*?)\n```\n", page, re.DOTALL)
    (folder / "authority.yaml").write_text(authority, encoding="utf-8")
    (folder / "gateway.yaml").write_text(own, encoding="utf-8")
    [node] = re.findall(r"`(node: .*?)`", page)
    cluster = "    - name: warmpath\n      type: STATIC\n"
    assert cluster in text
    return "\n".join((node, text.replace(cluster, cluster + socket + "\n")))


class Front:
    """An Envoy, and a client of it."""

    def __init__(self, envoy: Envoy) -> None:
        self.envoy = envoy
        self.http = aiohttp.ClientSession(
            f"http://{envoy.address}", connector=aiohttp.TCPConnector(limit=0)
        )

    async def post(
        self, body: object, *, path: str = "/v1/completions", **headers: str
    ) -> "Answer":
        """Send a request; return its whole answer."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        named["content-type"] = "application/json"
        raw = io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
        async with self.http.post(path, headers=named, data=raw) as response:
            told = {name.lower(): value for name, value in response.headers.items()}
            return Answer(response.status, told, await response.read())

    async def counted(self, name: str) -> int:
        return await asyncio.to_thread(self.envoy.counted, f"http.inference.ext_proc.{name}")

    async def finds_well(self, routers: int) -> bool:
        name = "cluster.warmpath.membership_healthy"
        return await asyncio.to_thread(self.envoy.counted, name) == routers

    async def until_routers_are_asked(self) -> None:
        """Wait until a request is picked for: Envoy asks only routers whose health it knows."""
        while True:
            async with self.http.get("/v1/models") as response:
                if "x-warmpath-pod" in response.headers or "x-warmpath-reason" in response.headers:
                    return
            await asyncio.sleep(0.02)


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def pod(self) -> str:
        return self.headers.get("x-warmpath-pod", "")

    @property
    def cached(self) -> int:
        return int(self.headers["x-warmpath-cached-tokens"])


@asynccontextmanager
async def front(text: str) -> AsyncIterator[Front]:
    envoy = Envoy(text)
    try:
        await asyncio.to_thread(envoy.start)
        one = Front(envoy)
        try:
            yield one
        finally:
            await one.http.close()
    finally:
        await asyncio.to_thread(envoy.close)


class Echo:
    """An engine without /tokenize that keeps what it gets; an async context manager."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, list[tuple[str, str]], bytes]] = []
        """Path, headers with names in lower case, and body of each request."""
        self.status = 200
        self.answer = b'{"usage": {"prompt_tokens": 5, "completion_tokens": 1}}'
        self.pieces: list[bytes] | None = None
        """If given, the answer in pieces, as server-sent events."""
        self.goes_on = asyncio.Event()
        """Until it is set, an answer in pieces waits after its first one."""
        self.cut_off = 0
        """Answers whose client went away."""

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        self.address = f"{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.goes_on.set()
        await self._runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/tokenize":
            # The router asks for itself, past Envoy.
            raise web.HTTPNotFound
        body = await request.read()
        headers = [(name.lower(), value) for name, value in request.headers.items()]
        self.requests.append((request.path, headers, body))
        if self.pieces is None:
            return web.Response(
                status=self.status, body=self.answer, content_type="application/json"
            )
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        try:
            for piece in self.pieces:
                await response.write(piece)
                await self.goes_on.wait()
            await response.write_eof()
        except (ConnectionError, asyncio.CancelledError):
            self.cut_off += 1
            raise
        return response
