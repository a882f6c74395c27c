"""The functions that libnghttp2 calls, shared by all sessions: each finds its session by a number.

An exception cannot pass through C: it is kept for the session, and libnghttp2 is told to give up.
"""

import ctypes as c
from collections.abc import Callable
from functools import cache
from itertools import count
from typing import Any, Protocol

from router.transport import library as lib


class Hooks(Protocol):
    """A session, as libnghttp2 calls it."""

    def on_begin_headers(self) -> None:
        """Begin a header."""

    def on_header(self, name: bytes, value: bytes) -> int:
        """Take a name and its value; return TEMPORAL_FAILURE to reset the stream, otherwise 0."""

    def on_frame(self, head: Any) -> None:
        """Take a whole frame; the content of headers and data came before. `head` is a FrameHead."""

    def on_invalid_frame(self) -> None:
        """Take note of a frame that is refused."""

    def on_chunk(self, stream: int, data: bytes) -> None:
        """Take a part of a DATA frame."""

    def on_closed(self, stream: int, code: int) -> None:
        """Forget a stream, which ended with one of HTTP/2's error codes."""

    def on_read(self, stream: int, buffer: int, size: int, flags: Any) -> int:
        """Write the next data of a body into a buffer; return how many bytes, or DEFERRED."""

    def failed(self, error: BaseException) -> None:
        """Keep the error of one of these methods, which ends the connection."""


_hooks: dict[int, Hooks] = {}
_numbers = count(1)


def register(hooks: Hooks) -> int:
    """Return a number by which the callbacks find a session: libnghttp2's user data."""
    number = next(_numbers)
    _hooks[number] = hooks
    return number


def unregister(number: int) -> bool:
    """Forget a session; return whether it was known."""
    return _hooks.pop(number, None) is not None


def _guarded(run: Callable[..., int | None]) -> Callable[..., int]:
    """Return a callback that calls `run` with the hooks, which the last argument has the number of."""

    def callback(_: object, *arguments: Any) -> int:
        hooks = _hooks.get(arguments[-1])
        if hooks is None:
            return lib.FAILURE
        try:
            return run(hooks, *arguments) or 0
        except BaseException as error:  # noqa: BLE001  C would lose it
            hooks.failed(error)
            return lib.FAILURE

    return callback


def _invalid(hooks: Hooks, *_: object) -> None:
    hooks.on_invalid_frame()


def _begin_headers(hooks: Hooks, *_: object) -> None:
    hooks.on_begin_headers()


def _header(hooks: Hooks, _: object, *of: int) -> int:
    name, name_size, value, value_size = of[:4]
    return hooks.on_header(c.string_at(name, name_size), c.string_at(value, value_size))


def _chunk(hooks: Hooks, _: int, *of: int) -> None:
    stream, data, size = of[:3]
    hooks.on_chunk(stream, c.string_at(data, size))


def _frame(hooks: Hooks, head: Any, _: int) -> None:
    hooks.on_frame(head.contents)


def _close(hooks: Hooks, stream: int, code: int, _: int) -> None:
    hooks.on_closed(stream, code)


def _read(hooks: Hooks, *of: Any) -> int:
    stream, buffer, size, flags = of[:4]
    return hooks.on_read(stream, buffer, size, flags)


# ctypes frees a callback that nobody refers to.
_INVALID = lib.OnInvalid(_guarded(_invalid))
_BEGIN_HEADERS = lib.OnFrame(_guarded(_begin_headers))
_HEADER = lib.OnHeader(_guarded(_header))
_CHUNK = lib.OnChunk(_guarded(_chunk))
_FRAME = lib.OnFrame(_guarded(_frame))
_CLOSE = lib.OnClose(_guarded(_close))
_READ = lib.OnRead(_guarded(_read))
_SOURCE = lib.DataProvider(None, c.cast(_READ, lib.Pointer))
PROVIDER = c.byref(_SOURCE)
"""The source of all bodies."""


@cache
def callbacks() -> lib.Pointer:
    """Return the callbacks, which live as long as the process."""
    library = lib.load_library()
    made = lib.Pointer()
    library.session_callbacks_new(c.byref(made))
    library.session_callbacks_set_on_invalid_frame_recv_callback(made, _INVALID)
    library.session_callbacks_set_on_begin_headers_callback(made, _BEGIN_HEADERS)
    library.session_callbacks_set_on_header_callback(made, _HEADER)
    library.session_callbacks_set_on_data_chunk_recv_callback(made, _CHUNK)
    library.session_callbacks_set_on_frame_recv_callback(made, _FRAME)
    library.session_callbacks_set_on_stream_close_callback(made, _CLOSE)
    return made
