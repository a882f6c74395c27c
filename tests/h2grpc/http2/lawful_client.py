"""A client that keeps to HTTP/2 and sees whether the server does: libnghttp2 without sockets."""

import ctypes as c
from collections import deque
from typing import Any

from warmpath.h2grpc.http2 import library as lib

_found = c.PyDLL("libnghttp2.so.14")
_P, _S = c.c_void_p, c.c_size_t


class _FrameHead(c.Structure):
    """The beginning of a frame: nghttp2_frame_hd."""

    _fields_ = (
        ("length", _S),
        ("stream", c.c_int32),
        ("type", c.c_uint8),
        ("flags", c.c_uint8),
        ("reserved", c.c_uint8),
    )


_FRAME = c.POINTER(_FrameHead)
_OnFrame = c.CFUNCTYPE(c.c_int, _P, _FRAME, _P)
_OnHeader = c.CFUNCTYPE(c.c_int, _P, _FRAME, _P, _S, _P, _S, c.c_uint8, _P)
_OnChunk = c.CFUNCTYPE(c.c_int, _P, c.c_uint8, c.c_int32, _P, _S, _P)
_OnInvalid = c.CFUNCTYPE(c.c_int, _P, _P, c.c_int, _P)
_OnClose = c.CFUNCTYPE(c.c_int, _P, c.c_int32, c.c_uint32, _P)
_OnRead = c.CFUNCTYPE(c.c_ssize_t, _P, c.c_int32, _P, _S, c.POINTER(c.c_uint32), _P, _P)
_HEADERS = (c.POINTER(lib.NameValue), _S)
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "session_callbacks_new": (c.c_int, (c.POINTER(_P),)),
    "session_callbacks_del": (None, (_P,)),
    "session_callbacks_set_on_header_callback": (None, (_P, _OnHeader)),
    "session_callbacks_set_on_data_chunk_recv_callback": (None, (_P, _OnChunk)),
    "session_callbacks_set_on_stream_close_callback": (None, (_P, _OnClose)),
    "session_callbacks_set_on_frame_recv_callback": (None, (_P, _OnFrame)),
    "session_callbacks_set_on_invalid_frame_recv_callback": (None, (_P, _OnInvalid)),
    "option_new": (c.c_int, (c.POINTER(_P),)),
    "option_del": (None, (_P,)),
    "option_set_no_auto_window_update": (None, (_P, c.c_int)),
    "session_client_new2": (c.c_int, (c.POINTER(_P), _P, _P, _P)),
    "session_del": (None, (_P,)),
    "session_mem_recv": (c.c_ssize_t, (_P, c.c_char_p, _S)),
    "session_mem_send": (c.c_ssize_t, (_P, c.POINTER(_P))),
    "session_consume": (c.c_int, (_P, c.c_int32, _S)),
    "session_resume_data": (c.c_int, (_P, c.c_int32)),
    "submit_settings": (c.c_int, (_P, c.c_uint8, c.POINTER(lib.Setting), _S)),
    "submit_request": (c.c_int32, (_P, _P, *_HEADERS, c.POINTER(lib.DataProvider), _P)),
    "submit_rst_stream": (c.c_int, (_P, c.c_uint8, c.c_int32, c.c_uint32)),
    "submit_ping": (c.c_int, (_P, c.c_uint8, c.c_char_p)),
}


class _Library:
    def __init__(self) -> None:
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(_found, f"nghttp2_{name}")
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


_LIBRARY = _Library()


class Request:
    """A call as the client sees it."""

    def __init__(self) -> None:
        self.chunks: deque[bytes] = deque()
        """What is not sent yet."""
        self.is_whole = False
        """Whether no more chunks come."""
        self.answer = bytearray()
        self.held = 0
        """Bytes of the answer that count against the window."""
        self.headers: dict[str, bytes] = {}
        self.closed: int | None = None
        """The code with which the stream ended."""


class LawfulClient:
    """A connection of a client; `problems` are the server's offences."""

    def __init__(self, window: int) -> None:
        self.requests: dict[int, Request] = {}
        self.problems: list[str] = []
        made, options, session = _P(), _P(), _P()
        _LIBRARY.session_callbacks_new(c.byref(made))
        # ctypes frees a callback that nobody refers to.
        self._kept = (
            _OnHeader(self._header), _OnChunk(self._chunk), _OnClose(self._close),
            _OnInvalid(self._invalid), _OnRead(self._read),
        )  # fmt: skip
        header, chunk, close, invalid, read = self._kept
        _LIBRARY.session_callbacks_set_on_header_callback(made, header)
        _LIBRARY.session_callbacks_set_on_data_chunk_recv_callback(made, chunk)
        _LIBRARY.session_callbacks_set_on_stream_close_callback(made, close)
        _LIBRARY.session_callbacks_set_on_invalid_frame_recv_callback(made, invalid)
        self._source = lib.DataProvider(None, c.cast(read, _P))
        _LIBRARY.option_new(c.byref(options))
        _LIBRARY.option_set_no_auto_window_update(options, 1)
        assert _LIBRARY.session_client_new2(c.byref(session), made, None, options) == 0
        _LIBRARY.option_del(options)
        _LIBRARY.session_callbacks_del(made)
        self._session = session
        self.set_window(window)

    def close(self) -> None:
        """Give the memory back."""
        _LIBRARY.session_del(self._session)

    def set_window(self, size: int) -> None:
        """Change how much of each answer the server may send ahead."""
        _LIBRARY.submit_settings(self._session, 0, lib.Setting(lib.INITIAL_WINDOW_SIZE, size), 1)

    def begin(self, path: bytes, *more: tuple[bytes, bytes]) -> int:
        """Begin a call; return its stream."""
        headers = (
            (b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"x"),
            (b"te", b"trailers"), (b"content-type", b"application/grpc"), *more,
        )  # fmt: skip
        array = (lib.NameValue * len(headers))(
            *(lib.NameValue(name, value, len(name), len(value), 0) for name, value in headers)
        )
        stream: int = _LIBRARY.submit_request(
            self._session, None, array, len(array), c.byref(self._source), None
        )
        assert stream > 0
        self.requests[stream] = Request()
        return stream

    def put(self, stream: int, chunk: bytes, *, is_last: bool = False) -> None:
        """Append data to a call."""
        request = self.requests[stream]
        if chunk:
            request.chunks.append(chunk)
        request.is_whole = is_last
        _LIBRARY.session_resume_data(self._session, stream)

    def reset(self, stream: int) -> None:
        """Cancel a call."""
        _LIBRARY.submit_rst_stream(self._session, 0, stream, lib.CANCEL)

    def ping(self) -> None:
        """Ask for a sign of life."""
        _LIBRARY.submit_ping(self._session, 0, None)

    def consume(self, stream: int, size: int) -> None:
        """Let the server send as much again."""
        request = self.requests[stream]
        size = min(size, request.held)
        request.held -= size
        if size:
            _LIBRARY.session_consume(self._session, stream, size)

    def receive(self, data: bytes) -> None:
        """Take bytes of the server."""
        taken = _LIBRARY.session_mem_recv(self._session, data, len(data))
        if taken != len(data):
            self.problems.append(f"mem_recv: {taken}")

    def to_send(self) -> bytes:
        """Return the bytes for the server."""
        sent = []
        pointer = _P()
        while (size := _LIBRARY.session_mem_send(self._session, c.byref(pointer))) > 0:
            sent.append(c.string_at(pointer.value or 0, size))
        assert size == 0
        return b"".join(sent)

    def _header(
        self, _: Any, head: Any, name: int, size: int, value: int, long: int, *__: Any
    ) -> int:
        request = self.requests[head.contents.stream]
        request.headers[c.string_at(name, size).decode()] = c.string_at(value, long)
        return 0

    def _chunk(self, _: Any, __: int, stream: int, data: int, size: int, ___: Any) -> int:
        request = self.requests[stream]
        request.answer += c.string_at(data, size)
        request.held += size
        return 0

    def _close(self, _: Any, stream: int, code: int, __: Any) -> int:
        request = self.requests[stream]
        request.closed = code
        # What is not consumed counts against the connection's window for ever.
        request.held = 0
        return 0

    def _invalid(self, _: Any, __: Any, error: int, ___: Any) -> int:
        self.problems.append(f"invalid frame: {error}")
        return 0

    def _read(self, _: Any, stream: int, buffer: int, size: int, flags: Any, *__: Any) -> int:
        request = self.requests[stream]
        if not request.chunks:
            if request.is_whole:
                flags[0] = lib.DATA_EOF
                return 0
            return lib.DEFERRED
        chunk = request.chunks.popleft()
        if len(chunk) > size:
            request.chunks.appendleft(chunk[size:])
            chunk = chunk[:size]
        c.memmove(buffer, chunk, len(chunk))
        if request.is_whole and not request.chunks:
            flags[0] = lib.DATA_EOF
        return len(chunk)
