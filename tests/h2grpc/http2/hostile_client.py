"""Clients that write any bytes, read only when the test says so, accept no answer, and reset calls at once."""

import asyncio
import contextlib
import ctypes as c
import socket
import ssl
from dataclasses import KW_ONLY, dataclass, field
from typing import Self

from tests.h2grpc.http2 import raw_frames as raw
from tests.h2grpc.http2.raw_frames import ACK, HEADERS, PING, PREFACE, SETTINGS, frame, settings

_EMIT, _FINAL = 2, 1


class _Pair(c.Structure):
    # Addresses, where `h2grpc.http2.library.NameValue` has bytes that end with a zero.
    _fields_ = (
        ("name", c.c_void_p),
        ("value", c.c_void_p),
        ("name_length", c.c_size_t),
        ("value_length", c.c_size_t),
        ("flags", c.c_uint8),
    )


_library = c.PyDLL("libnghttp2.so.14")
_new = _library.nghttp2_hd_inflate_new
_new.argtypes = (c.POINTER(c.c_void_p),)
_delete = _library.nghttp2_hd_inflate_del
_delete.argtypes, _delete.restype = (c.c_void_p,), None
_end = _library.nghttp2_hd_inflate_end_headers
_end.argtypes = (c.c_void_p,)
_inflate = _library.nghttp2_hd_inflate_hd2
_inflate.restype = c.c_ssize_t
_inflate.argtypes = (
    c.c_void_p, c.POINTER(_Pair), c.POINTER(c.c_int), c.c_char_p, c.c_size_t, c.c_int,
)  # fmt: skip


class Inflater:
    """Reads the headers of one connection, in the order in which they came, by libnghttp2."""

    def __init__(self) -> None:
        self._state = c.c_void_p()
        assert _new(c.byref(self._state)) == 0

    def __del__(self) -> None:
        _delete(self._state)

    def read(self, block: bytes) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        while True:
            pair, flags = _Pair(), c.c_int()
            taken = _inflate(self._state, c.byref(pair), c.byref(flags), block, len(block), 1)
            assert taken >= 0, "the server's headers cannot be read"
            block = block[taken:]
            if flags.value & _EMIT:
                key = c.string_at(pair.name or 0, pair.name_length).decode()
                found[key] = c.string_at(pair.value or 0, pair.value_length)
            if flags.value & _FINAL:
                _end(self._state)
                return found


@dataclass(frozen=True, slots=True)
class Frame:
    kind: int
    flags: int
    stream: int
    payload: bytes
    headers: dict[str, bytes] = field(default_factory=dict)


@dataclass(eq=False)
class HostileClient:
    """A connection; without `reads` it takes nothing, and the system's buffers for it are small.

    `source` is the address of this machine that it comes from.
    """

    address: str
    _: KW_ONLY
    reads: bool = True
    acks: bool = True
    preface: bytes = PREFACE + settings()
    tls: ssl.SSLContext | None = None
    source: str = ""
    frames: list[Frame] = field(default_factory=list, init=False)
    is_closed: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._changed = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        socket_ = socket.socket()
        socket_.setblocking(False)
        if not self.reads:
            socket_.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        if self.source:
            socket_.bind((self.source, 0))
        host, _, port = self.address.rpartition(":")
        await asyncio.get_running_loop().sock_connect(socket_, (host, int(port)))
        self._reader, self.writer = await asyncio.open_connection(
            sock=socket_, ssl=self.tls, server_hostname="localhost" if self.tls else None
        )
        self.send(self.preface)
        if self.reads:
            self._reading = asyncio.create_task(self._read())
        else:
            self.writer.transport.pause_reading()  # type: ignore[attr-defined]
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._reading is not None:
            self._reading.cancel()
        self.writer.transport.abort()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()

    def send(self, *raw: bytes) -> None:
        if not self.writer.is_closing():
            self.writer.write(b"".join(raw))

    async def flood(self, raw: bytes, most: int) -> None:
        """Write bytes again and again, at most `most` times, until the server closes the connection."""
        with contextlib.suppress(OSError):
            for _ in range(most):
                if self.is_closed or self.writer.is_closing():
                    return
                self.writer.write(raw)
                await self.writer.drain()

    async def frame(self, kind: int, stream: int | None = None, flags: int = 0) -> Frame:
        """Wait for a frame of a kind, which is taken out; raises EOFError if none comes."""
        while True:
            for one in self.frames:
                if one.kind == kind and stream in {None, one.stream} and one.flags & flags == flags:
                    self.frames.remove(one)
                    return one
            if self.is_closed:
                raise EOFError(f"no frame {kind} on stream {stream}: {self.frames}")
            self._changed.clear()
            await self._changed.wait()

    async def until_closed(self) -> None:
        while not self.is_closed:
            self._changed.clear()
            await self._changed.wait()

    async def _read(self) -> None:
        inflater = Inflater()
        try:
            while True:
                head = await self._reader.readexactly(9)
                payload = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
                stream = int.from_bytes(head[5:], "big")
                headers = inflater.read(payload) if head[3] == HEADERS else {}
                one = Frame(head[3], head[4], stream, payload, headers)
                self.frames.append(one)
                if self.acks and one.kind in {SETTINGS, PING} and not one.flags & ACK:
                    self.send(frame(one.kind, ACK, 0, payload if one.kind == PING else b""))
                self._changed.set()
        except (OSError, EOFError):
            pass
        finally:
            self.is_closed = True
            self._changed.set()


class Http2Client(HostileClient):
    """Makes calls of a service; their streams take `window` bytes of data (RFC 9113, 6.9.2)."""

    def __init__(
        self,
        address: str,
        *,
        window: int = 0,
        service: str = "warmpath.v1.Router",
        source: str = "",
        acks: bool = True,
    ) -> None:
        preface = raw.PREFACE + raw.settings(window=window)
        super().__init__(address, preface=preface, source=source, acks=acks)
        self._service = service
        self._stream = -1

    def call(self, method: str, *messages: bytes, reset: bool = False) -> int:
        """Send a whole call of the service; with `reset`, cancel it in the same write."""
        self._stream += 2
        whole = raw.call(self._stream, method, *messages, service=self._service)
        self.send(whole, raw.reset(self._stream) if reset else b"")
        return self._stream

    def begin(self, method: str) -> None:
        """Begin a call, and send no message."""
        self._stream += 2
        self.send(raw.headers(self._stream, raw.fields(method, service=self._service)))

    def cancel(self, stream: int) -> None:
        self.send(raw.reset(stream))
