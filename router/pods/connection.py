"""An HTTP/1.1 connection to an engine, kept open between requests for its pages.

A general client takes several times as long, which counts where thousands of engines are asked.
"""

import asyncio
import socket
from collections.abc import Mapping

from warmpath.indexer.follow.instance import EngineTls
from warmpath.process.command_line import in_words


class UnreachableError(Exception):
    """No connection can be made; `reason` says why."""

    def __init__(self, address: str, reason: Exception) -> None:
        super().__init__(f"cannot connect to {address}: {in_words(reason)}")
        self.reason = reason


class CutError(Exception):
    """The connection was made, and ended without an answer."""


class AnswerError(Exception):
    """The answer is not one of HTTP/1.1."""


class Connection:
    """Asks one engine, one request at a time; connects where it is not connected."""

    def __init__(self) -> None:
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def get(
        self,
        address: str,
        path: str,
        headers: Mapping[str, str],
        *,
        tls: EngineTls | None,
        seconds: float,
        most: int,
    ) -> tuple[int, bytes]:
        """Return the status and body of an answer; a body of more than `most` bytes is empty.

        Raises UnreachableError, CutError, AnswerError, or TimeoutError after `seconds`.
        """
        lines = [f"GET {path} HTTP/1.1", f"Host: {address}", "User-Agent: warmpath"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        request = "\r\n".join([*lines, "", ""]).encode("ascii", "replace")
        async with asyncio.timeout(seconds):
            if self._streams is not None and not self._streams[0].at_eof():
                try:
                    return await self._ask(request, most)
                except CutError:
                    # The engine may just have ended an idle connection.
                    pass
            self.close()
            try:
                self._streams = await _connect(address, tls, seconds)
            except ConnectionResetError as error:
                raise CutError(in_words(error)) from error
            except (OSError, OverflowError, ValueError) as error:
                if isinstance(error, TimeoutError) and error.errno is None:
                    raise
                raise UnreachableError(address, error) from error
            return await self._ask(request, most)

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None

    async def _ask(self, request: bytes, most: int) -> tuple[int, bytes]:
        assert self._streams is not None
        reader, writer = self._streams
        stays = False
        try:
            writer.write(request)
            status, stays, body = await _answer(reader, most)
        except (asyncio.IncompleteReadError, OSError) as error:
            raise CutError("the connection was closed before an answer") from error
        except (asyncio.LimitOverrunError, ValueError) as error:
            raise AnswerError("its answer is not HTTP/1.1") from error
        finally:
            if not stays:
                self.close()
        return status, body


async def _connect(
    address: str, tls: EngineTls | None, seconds: float
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    context = tls.context if tls else None
    name = (tls.name or host) if tls else None
    try:
        found = socket.getaddrinfo(host, port, flags=socket.AI_NUMERICHOST, type=socket.SOCK_STREAM)
    except socket.gaierror:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    places = dict.fromkeys(str(one[4][0]) for one in found)
    for nth, place in enumerate(places, 1):
        try:
            async with asyncio.timeout(seconds / len(places)):
                return await asyncio.open_connection(
                    place, int(port), ssl=context, server_hostname=name
                )
        except OSError:
            if nth == len(places):
                raise
    raise socket.gaierror


async def _answer(reader: asyncio.StreamReader, most: int) -> tuple[int, bool, bytes]:
    """Return an answer's status, whether the connection stays, and the body."""
    status = 100
    while status < 200:
        first, *rest = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
        version, code, *_ = first.split(b" ", 2)
        status = int(code)
        if version not in {b"HTTP/1.0", b"HTTP/1.1"} or len(code) != 3:
            raise ValueError
    pairs = (line.partition(b":") for line in rest)
    headers = {name.strip().lower(): value.strip().lower() for name, _, value in pairs}
    stays = version == b"HTTP/1.1" and headers.get(b"connection") != b"close"
    body = b"" if status in {204, 304} else await _body(reader, headers, most)
    return (status, stays, body) if len(body) <= most else (status, False, b"")


async def _body(reader: asyncio.StreamReader, headers: Mapping[bytes, bytes], most: int) -> bytes:
    """Return a body, of one with more than `most` bytes only the first ones, but more than `most`."""
    is_chunked = b"chunked" in headers.get(b"transfer-encoding", b"")
    if b"content-length" in headers and not is_chunked:
        return await reader.readexactly(min(int(headers[b"content-length"]), most + 1))
    body = bytearray()
    while len(body) <= most:
        if not is_chunked:
            part = await reader.read(most + 1)
        elif size := int((await reader.readline()).partition(b";")[0], 16):
            part = await reader.readexactly(min(size, most + 1))
            await reader.readexactly(2)
        else:
            while (await reader.readline()).strip():
                pass
            break
        if not part:
            break
        body += part
    return bytes(body)
