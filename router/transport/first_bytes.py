"""Tells HTTP/2 from HTTP/1.1 by a connection's first bytes, so that one port serves both."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from warmpath.process.listener import Place

BEGINNING = b"PRI"
"""The beginning of HTTP/2's preface (RFC 9113, 3.4), which is no method of HTTP/1.1."""


class FirstBytes(asyncio.Protocol):
    """The protocol of a connection until its first bytes have come, which may take `seconds`."""

    def __init__(
        self,
        place: Place,
        http2: Callable[[Place], asyncio.Protocol],
        http1: Callable[[Place], asyncio.Protocol],
        seconds: float,
    ) -> None:
        self._place = place
        self._http2 = http2
        self._http1 = http1
        self._seconds = seconds
        self._bytes = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket: Any = cast("asyncio.Transport", transport)
        self._place.end = self._socket.abort
        self._place.works(is_busy=False)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._seconds, self._socket.abort)

    def data_received(self, data: bytes) -> None:
        self._bytes += data
        if len(self._bytes) < len(BEGINNING):
            return
        self._timer.cancel()
        make = self._http2 if self._bytes.startswith(BEGINNING) else self._http1
        protocol = make(self._place)
        self._socket.set_protocol(protocol)
        protocol.connection_made(self._socket)
        protocol.data_received(self._bytes)

    def connection_lost(self, _: Exception | None) -> None:
        self._timer.cancel()
        self._place.leave()
