"""An HTTP/1.1 connection to an engine, kept open between requests for its pages.

A general client takes several times as long, which counts where thousands of engines are asked.
"""

import asyncio
import contextlib
import socket
from collections.abc import Mapping
from typing import cast

from warmpath.indexer.follow.instance import EngineTls
from warmpath.process.command_line import in_words
from warmpath.router.pods.answer import CutError, Reading, WholeAnswer, read


class UnreachableError(Exception):
    """No connection can be made; `reason` says why."""

    def __init__(self, address: str, reason: Exception) -> None:
        super().__init__(f"cannot connect to {address}: {in_words(reason)}")
        self.reason = reason


class AnswerError(Exception):
    """The answer is not one of HTTP/1.1."""


class Connection:
    """Asks one engine, one request at a time; connects where it is not connected."""

    def __init__(self) -> None:
        self._line: _Line | None = None

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
            if self._line is not None and not self._line.transport.is_closing():
                # The engine may just have ended an idle connection.
                with contextlib.suppress(CutError):
                    return await self._ask(self._line, request, most)
            self.close()
            try:
                self._line = await _connect(address, tls, seconds)
            except ConnectionResetError as error:
                raise CutError(in_words(error)) from error
            except (OSError, OverflowError, ValueError) as error:
                if isinstance(error, TimeoutError) and error.errno is None:
                    raise
                raise UnreachableError(address, error) from error
            return await self._ask(self._line, request, most)

    def close(self) -> None:
        if self._line is not None:
            self._line.transport.abort()
            self._line = None

    async def _ask(self, line: "_Line", request: bytes, most: int) -> tuple[int, bytes]:
        stays = False
        try:
            status, body, stays = await line.ask(request, most)
        except ValueError as error:
            raise AnswerError("its answer is not HTTP/1.1") from error
        finally:
            if not stays:
                self.close()
        return status, body


class _Line(asyncio.Protocol):
    """One connection."""

    __slots__ = ("_asked", "transport")

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self._asked: tuple[Reading[WholeAnswer], asyncio.Future[WholeAnswer]] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    async def ask(self, request: bytes, most: int) -> WholeAnswer:
        """Return the answer to a request. Raises ValueError for one that cannot be read, CutError."""
        reading = read(most)
        next(reading)
        answer: asyncio.Future[WholeAnswer] = asyncio.get_running_loop().create_future()
        self._asked = reading, answer
        self.transport.write(request)
        try:
            return await answer
        finally:
            self._asked = None

    def data_received(self, data: bytes) -> None:
        if self._asked is None or self._asked[1].done():
            # Nobody has asked for it.
            self.transport.abort()
            return
        reading, answer = self._asked
        try:
            reading.send(data)
        except StopIteration as whole:
            answer.set_result(whole.value)
        except (CutError, ValueError) as error:
            answer.set_exception(error)

    def connection_lost(self, _: Exception | None) -> None:
        if self._asked is not None:
            self.data_received(b"")


async def _connect(address: str, tls: EngineTls | None, seconds: float) -> _Line:
    """Connect to the first of the host's addresses that answers.

    Raises OSError, and OverflowError or ValueError for an `address` that is none.
    """
    loop = asyncio.get_running_loop()
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    context = tls.context if tls else None
    name = (tls.name or host) if tls else None
    kind = socket.SOCK_STREAM
    try:
        found = socket.getaddrinfo(host, port, flags=socket.AI_NUMERICHOST, type=kind)
    except socket.gaierror:
        found = await loop.getaddrinfo(host, port, type=kind)
    places = dict.fromkeys(str(one[4][0]) for one in found)
    for nth, place in enumerate(places, 1):
        try:
            async with asyncio.timeout(seconds / len(places)):
                _, line = await loop.create_connection(
                    _Line, place, int(port), ssl=context, server_hostname=name
                )
                return line
        except OSError:
            if nth == len(places):
                raise
    raise socket.gaierror
