"""An HTTP/2 client that can do more than gRPC libraries: accept no answer, and reset calls at once."""

import asyncio
import struct
from typing import Self

DATA, HEADERS, RESET, SETTINGS, PING = 0, 1, 3, 4, 6
END_STREAM = ACK = 1
END_HEADERS = 4
INITIAL_WINDOW_SIZE = 4
CANCEL = 8


class Http2Client:
    """A connection on whose streams the server may send `window` bytes of data (RFC 9113, 6.9.2).

    It comes from the address `source`; None: from any.
    It answers pings with `pongs`.
    """

    def __init__(
        self,
        address: str,
        *,
        window: int = 0,
        service: str = "warmpath.v1.Router",
        source: str | None = None,
        pongs: bool = True,
    ) -> None:
        self._window = window
        self._pongs = pongs
        self._service = service
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._source = (source, 0) if source else None
        self._stream = -1

    async def __aenter__(self) -> Self:
        reader, self._writer = await asyncio.open_connection(
            self._host, self._port, local_addr=self._source
        )
        self._send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        self._send(frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW_SIZE, self._window)))
        self._reading = asyncio.create_task(self._read(reader))
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._reading.cancel()
        self._writer.close()

    def call(self, method: str, *messages: bytes, reset: bool = False) -> int:
        """Send a whole call of the service; with `reset`, cancel it in the same write."""
        stream = self.begin(method)
        data = b"".join(b"\0" + struct.pack(">I", len(one)) + one for one in messages)
        self._send(frame(DATA, END_STREAM, stream, data) + (self._reset(stream) if reset else b""))
        return stream

    def begin(self, method: str) -> int:
        self._stream += 2
        headers = b"".join(
            b"\0" + b"".join(bytes([len(text)]) + text.encode() for text in pair)
            for pair in (
                (":method", "POST"),
                (":scheme", "http"),
                (":path", f"/{self._service}/{method}"),
                (":authority", "router"),
                ("te", "trailers"),
                ("content-type", "application/grpc"),
            )
        )
        self._send(frame(HEADERS, END_HEADERS, self._stream, headers))
        return self._stream

    def cancel(self, stream: int) -> None:
        self._send(self._reset(stream))

    def _reset(self, stream: int) -> bytes:
        return frame(RESET, 0, stream, struct.pack(">I", CANCEL))

    def _send(self, raw: bytes) -> None:
        self._writer.write(raw)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while True:
            head = await reader.readexactly(9)
            payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
            answers = {SETTINGS, PING} if self._pongs else {SETTINGS}
            if head[3] in answers and not head[4] & ACK:
                self._send(frame(head[3], ACK, 0, payload if head[3] == PING else b""))


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return (
        len(payload).to_bytes(3, "big") + bytes([kind, flags]) + struct.pack(">I", stream) + payload
    )
