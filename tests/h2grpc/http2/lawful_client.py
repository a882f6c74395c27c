"""A client that keeps to HTTP/2 and sees whether the server does: libnghttp2 without sockets."""

import ctypes as c
from collections import deque
from typing import Any

from warmpath.h2grpc.http2 import library as lib

_library = c.PyDLL("libnghttp2.so.14")
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


_HEADERS = (c.POINTER(lib.NameValue), _S)
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "session_callbacks_new": (c.c_int, (c.POINTER(_P),)),
    "session_callbacks_del": (None, (_P,)),
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
for _name, (_result, _arguments) in _SIGNATURES.items():
    _function = getattr(_library, f"nghttp2_{_name}")
    _function.restype, _function.argtypes = _result, _arguments
_CALLBACKS: dict[str, Any] = {
    "on_header": c.CFUNCTYPE(c.c_int, _P, c.POINTER(_FrameHead), _P, _S, _P, _S, c.c_uint8, _P),
    "on_data_chunk_recv": c.CFUNCTYPE(c.c_int, _P, c.c_uint8, c.c_int32, _P, _S, _P),
    "on_stream_close": c.CFUNCTYPE(c.c_int, _P, c.c_int32, c.c_uint32, _P),
    "on_invalid_frame_recv": c.CFUNCTYPE(c.c_int, _P, _P, c.c_int, _P),
}
_OnRead = c.CFUNCTYPE(c.c_ssize_t, _P, c.c_int32, _P, _S, c.POINTER(c.c_uint32), _P, _P)


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
        _library.nghttp2_session_callbacks_new(c.byref(made))
        # ctypes frees a callback that nobody refers to.
        self._kept: list[Any] = [_OnRead(self._read)]
        for name, kind in _CALLBACKS.items():
            self._kept.append(kind(getattr(self, f"_{name}")))
            set_callback = getattr(_library, f"nghttp2_session_callbacks_set_{name}_callback")
            set_callback(made, self._kept[-1])
        self._source = lib.DataProvider(None, c.cast(self._kept[0], _P))
        _library.nghttp2_option_new(c.byref(options))
        _library.nghttp2_option_set_no_auto_window_update(options, 1)
        assert _library.nghttp2_session_client_new2(c.byref(session), made, None, options) == 0
        _library.nghttp2_option_del(options)
        _library.nghttp2_session_callbacks_del(made)
        self._session = session
        self.set_window(window)

    def close(self) -> None:
        _library.nghttp2_session_del(self._session)

    def set_window(self, size: int) -> None:
        """Change how much of each answer the server may send ahead."""
        _library.nghttp2_submit_settings(
            self._session, 0, lib.Setting(lib.INITIAL_WINDOW_SIZE, size), 1
        )

    def begin(self, path: bytes, *more: tuple[bytes, bytes]) -> int:
        headers = (
            (b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"x"),
            (b"te", b"trailers"), (b"content-type", b"application/grpc"), *more,
        )  # fmt: skip
        array = (lib.NameValue * len(headers))(
            *(lib.NameValue(name, value, len(name), len(value), 0) for name, value in headers)
        )
        stream: int = _library.nghttp2_submit_request(
            self._session, None, array, len(array), c.byref(self._source), None
        )
        assert stream > 0
        self.requests[stream] = Request()
        return stream

    def put(self, stream: int, chunk: bytes, *, is_last: bool = False) -> None:
        request = self.requests[stream]
        if chunk:
            request.chunks.append(chunk)
        request.is_whole = is_last
        _library.nghttp2_session_resume_data(self._session, stream)

    def reset(self, stream: int) -> None:
        _library.nghttp2_submit_rst_stream(self._session, 0, stream, lib.CANCEL)

    def ping(self) -> None:
        _library.nghttp2_submit_ping(self._session, 0, None)

    def consume(self, stream: int, size: int) -> None:
        """Let the server send as much again."""
        request = self.requests[stream]
        size = min(size, request.held)
        request.held -= size
        if size:
            _library.nghttp2_session_consume(self._session, stream, size)

    def receive(self, data: bytes) -> None:
        taken = _library.nghttp2_session_mem_recv(self._session, data, len(data))
        if taken != len(data):
            self.problems.append(f"mem_recv: {taken}")

    def to_send(self) -> bytes:
        sent = []
        pointer = _P()
        while (size := _library.nghttp2_session_mem_send(self._session, c.byref(pointer))) > 0:
            sent.append(c.string_at(pointer.value or 0, size))
        assert size == 0
        return b"".join(sent)

    def _on_header(
        self, _: Any, head: Any, name: int, size: int, value: int, long: int, *__: Any
    ) -> int:
        request = self.requests[head.contents.stream]
        request.headers[c.string_at(name, size).decode()] = c.string_at(value, long)
        return 0

    def _on_data_chunk_recv(
        self, _: Any, __: int, stream: int, data: int, size: int, ___: Any
    ) -> int:
        request = self.requests[stream]
        request.answer += c.string_at(data, size)
        request.held += size
        return 0

    def _on_stream_close(self, _: Any, stream: int, code: int, __: Any) -> int:
        request = self.requests[stream]
        request.closed = code
        # What is not consumed counts against the connection's window for ever.
        request.held = 0
        return 0

    def _on_invalid_frame_recv(self, _: Any, __: Any, error: int, ___: Any) -> int:
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
