"""The functions that libnghttp2 calls, shared by all sessions: each finds its session by a number.

An exception cannot pass through C: its session keeps it, and libnghttp2 gets an error code.
"""

import ctypes as c
from functools import cache
from itertools import count
from typing import Any, Protocol

from router.transport import library as lib
from router.transport.header_block import HeaderBlock


class Hooks(Protocol):
    """A session, as libnghttp2 calls it."""

    block: HeaderBlock
    """Takes the headers of a call. If it refuses one, the stream is reset."""
    unwanted: set[int]
    """Streams that were answered without their data."""

    def on_begin_headers(self) -> None:
        """Begin a header."""

    def on_frame(self, head: Any) -> None:
        """Take a whole frame; the content of headers and data came before. `head` is a FrameHead."""

    def on_invalid_frame(self) -> None:
        """Note a frame that is refused."""

    def on_unwanted(self, size: int) -> None:
        """Note a part of a DATA frame that is not needed."""

    def on_chunk(self, stream: int, data: bytes) -> None:
        """Take a part of a DATA frame."""

    def on_closed(self, stream: int, code: int) -> None:
        """Forget a stream, which ended with one of HTTP/2's error codes."""

    def on_read(self, stream: int, buffer: int, size: int, flags: Any) -> int:
        """Write the next data of a body into a buffer; return how many bytes, or DEFERRED."""

    def failed(self, error: BaseException) -> None:
        """Keep the error of one of these methods, which ends the connection."""


# As `ctypes.string_at`, without the time of its Python code.
_bytes_at = c.PYFUNCTYPE(c.py_object, c.c_void_p, c.c_ssize_t)(
    ("PyBytes_FromStringAndSize", c.pythonapi)
)
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


# These functions repeat a few lines: a call of a shared one would take longer than their own work.


def _begin_headers(_: object, __: object, user: int) -> int:
    hooks = _hooks[user]
    try:
        hooks.on_begin_headers()
    except BaseException as error:  # noqa: BLE001  C would lose it
        return _failed(hooks, error)
    return 0


def _header(
    _: object,
    __: object,
    name: int,
    name_size: int,
    value: int,
    value_size: int,
    ___: int,
    user: int,
) -> int:
    hooks = _hooks[user]
    try:
        # The block collects them itself: a call has ten.
        if hooks.block.put(_bytes_at(name, name_size), _bytes_at(value, value_size)):
            return 0
        hooks.block.give_up()
    except BaseException as error:  # noqa: BLE001
        return _failed(hooks, error)
    return lib.TEMPORAL_FAILURE


def _chunk(_: object, __: int, stream: int, data: int, size: int, user: int) -> int:
    hooks = _hooks[user]
    try:
        if stream in hooks.unwanted:
            hooks.on_unwanted(size)
        else:
            hooks.on_chunk(stream, _bytes_at(data, size))
    except BaseException as error:  # noqa: BLE001
        return _failed(hooks, error)
    return 0


def _frame(_: object, head: Any, user: int) -> int:
    hooks = _hooks[user]
    try:
        hooks.on_frame(head.contents)
    except BaseException as error:  # noqa: BLE001
        return _failed(hooks, error)
    return 0


def _invalid(_: object, __: object, ___: int, user: int) -> int:
    hooks = _hooks[user]
    try:
        hooks.on_invalid_frame()
    except BaseException as error:  # noqa: BLE001
        return _failed(hooks, error)
    return 0


def _close(_: object, stream: int, code: int, user: int) -> int:
    # Also called by `session_del`, when the session is not registered any more.
    hooks = _hooks.get(user)
    try:
        if hooks is not None:
            hooks.on_closed(stream, code)
    except BaseException as error:  # noqa: BLE001
        return _failed(hooks, error)
    return 0


def _read(_: object, stream: int, buffer: int, size: int, flags: Any, __: object, user: int) -> int:
    hooks = _hooks[user]
    try:
        return hooks.on_read(stream, buffer, size, flags)
    except BaseException as error:  # noqa: BLE001
        return _failed(hooks, error)


def _failed(hooks: Hooks | None, error: BaseException) -> int:
    if hooks is not None:
        hooks.failed(error)
    return lib.FAILURE


# ctypes frees a callback that nobody refers to.
_INVALID = lib.OnInvalid(_invalid)
_BEGIN_HEADERS = lib.OnFrame(_begin_headers)
_HEADER = lib.OnHeader(_header)
_CHUNK = lib.OnChunk(_chunk)
_FRAME = lib.OnFrame(_frame)
_CLOSE = lib.OnClose(_close)
_READ = lib.OnRead(_read)
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
