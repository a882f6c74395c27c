"""libnghttp2, the HTTP/2 library of curl and Apache, through ctypes.

Its functions take microseconds, so they are called with the interpreter lock held (`ctypes.PyDLL`): a
thread that releases the lock waits longer than that to get it again.

Source: `nghttp2/nghttp2.h`; only functions that every release since 1.52 has.

The headers of one call are pairs of bytes, or one block, which `h2grpc.http2.callbacks` writes. In it
the lengths of a header's name and value, 4 bytes each, come before them.
"""

import ctypes as c
import ctypes.util
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache
from typing import Any

WOULD_BLOCK = -504
"""There is no room for more bytes to send."""
DEFERRED = -508
"""A data source has nothing to send now."""
TEMPORAL_FAILURE = -521
"""A callback refuses one stream."""
FAILURE = -902
"""A callback failed; the connection ends."""

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE = range(9)
"""Types of frames (RFC 9113, section 6)."""
END_STREAM = ACK = 1
"""Flags of DATA and HEADERS, and of SETTINGS and PING."""

MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_HEADER_LIST_SIZE = 3, 4, 6
"""Settings (RFC 9113, section 6.5.2)."""

NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, CANCEL, ENHANCE_YOUR_CALM = 0, 1, 2, 8, 11
"""Error codes (RFC 9113, section 7)."""

STREAM_WINDOW = 65_535
"""Bytes of a call that may arrive before it is read: HTTP/2's default."""

DATA_EOF, DATA_NO_END_STREAM = 1, 2
"""Flags that a data source returns: no more data come, and trailers follow them."""

ANSWERED_RESETS = 100
"""A client may reset this many answered calls for each unanswered one. The budget of control frames is
the tighter bound unless the client makes as many calls."""

Pointer = c.c_void_p
Session = c.c_void_p


class NameValue(c.Structure):
    """One header: nghttp2_nv."""

    _fields_ = (
        ("name", c.c_char_p),
        ("value", c.c_char_p),
        ("name_length", c.c_size_t),
        ("value_length", c.c_size_t),
        ("flags", c.c_uint8),
    )


class Setting(c.Structure):
    """One setting: nghttp2_settings_entry."""

    _fields_ = (("id", c.c_int32), ("value", c.c_uint32))


class DataProvider(c.Structure):
    """The source of a body: nghttp2_data_provider."""

    _fields_ = (("source", Pointer), ("read", Pointer))


_HEADERS = (c.POINTER(NameValue), c.c_size_t)
_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "session_callbacks_new": (c.c_int, (c.POINTER(Pointer),)),
    "session_callbacks_set_on_begin_headers_callback": (None, (Pointer, Pointer)),
    "session_callbacks_set_on_header_callback": (None, (Pointer, Pointer)),
    "session_callbacks_set_on_data_chunk_recv_callback": (None, (Pointer, Pointer)),
    "session_callbacks_set_on_frame_recv_callback": (None, (Pointer, Pointer)),
    "session_callbacks_set_on_invalid_frame_recv_callback": (None, (Pointer, Pointer)),
    "session_callbacks_set_on_stream_close_callback": (None, (Pointer, Pointer)),
    "session_callbacks_set_send_callback": (None, (Pointer, Pointer)),
    "option_new": (c.c_int, (c.POINTER(Pointer),)),
    "option_del": (None, (Pointer,)),
    "option_set_no_auto_window_update": (None, (Pointer, c.c_int)),
    "option_set_no_closed_streams": (None, (Pointer, c.c_int)),
    "option_set_stream_reset_rate_limit": (None, (Pointer, c.c_uint64, c.c_uint64)),
    "session_server_new2": (c.c_int, (c.POINTER(Session), Pointer, Pointer, Pointer)),
    "session_del": (None, (Session,)),
    "session_want_read": (c.c_int, (Session,)),
    "session_want_write": (c.c_int, (Session,)),
    "session_consume_stream": (c.c_int, (Session, c.c_int32, c.c_size_t)),
    "session_get_remote_window_size": (c.c_int32, (Session,)),
    "session_get_stream_remote_window_size": (c.c_int32, (Session, c.c_int32)),
    "session_set_local_window_size": (c.c_int, (Session, c.c_uint8, c.c_int32, c.c_int32)),
    "session_resume_data": (c.c_int, (Session, c.c_int32)),
    "session_terminate_session": (c.c_int, (Session, c.c_uint32)),
    "session_get_last_proc_stream_id": (c.c_int32, (Session,)),
    "session_get_stream_remote_close": (c.c_int, (Session, c.c_int32)),
    "submit_settings": (c.c_int, (Session, c.c_uint8, c.POINTER(Setting), c.c_size_t)),
    "submit_response": (c.c_int, (Session, c.c_int32, *_HEADERS, c.POINTER(DataProvider))),
    "submit_rst_stream": (c.c_int, (Session, c.c_uint8, c.c_int32, c.c_uint32)),
    "submit_ping": (c.c_int, (Session, c.c_uint8, c.c_char_p)),
    "submit_shutdown_notice": (c.c_int, (Session,)),
    "submit_goaway": (c.c_int, (Session, c.c_uint8, c.c_int32, c.c_uint32, c.c_char_p, c.c_size_t)),
    "strerror": (c.c_char_p, (c.c_int,)),
}
_ALLOWS_SPACES = "option_set_no_rfc9113_leading_and_trailing_ws_validation"
"""From 1.50 on; older ones allow spaces around a header's value, as gRPC's own server does."""
_LIMITS_RESETS = "nghttp2_option_set_stream_reset_rate_limit"
_LIMITS_CONTINUATIONS = "nghttp2_option_set_max_continuations"


def _ignore(*_: object) -> None:
    """Do nothing, where the library has no such function."""


class LibraryError(Exception):
    """The system has no libnghttp2 that can be used."""


class Library:
    """The functions of libnghttp2, without the prefix of their names."""

    def __init__(self, found: Any, version: str) -> None:
        self.version = version
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(found, f"nghttp2_{name}")
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)
        self.allow_spaces: Callable[..., Any] = getattr(found, f"nghttp2_{_ALLOWS_SPACES}", _ignore)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        raise AttributeError(name)


@cache
def load_library() -> Library:
    """Load the system's libnghttp2.

    Raises LibraryError if there is none, or if it does not limit resets of streams (CVE-2023-44487:
    1.57, or a release with that fix) and CONTINUATION frames (CVE-2024-28182: 1.61, or with that fix).
    """
    name = "libnghttp2.so.14" if sys.platform == "linux" else ctypes.util.find_library("nghttp2")
    name = name or "libnghttp2"
    try:
        # Compiled code finds the functions that it calls by their names.
        found = c.PyDLL(name, c.RTLD_GLOBAL)
    except OSError as error:
        raise LibraryError(f"the system has no libnghttp2: {error}") from error
    said = found.nghttp2_version
    # The struct nghttp2_info begins with an int (its age) and an int (the version's number).
    said.restype, said.argtypes = c.POINTER(_Info), (c.c_int,)
    version = said(0).contents.version_text.decode()
    for function, attack in (
        (_LIMITS_RESETS, "resets of streams"),
        (_LIMITS_CONTINUATIONS, "CONTINUATION frames"),
    ):
        if not hasattr(found, function):
            raise LibraryError(f"libnghttp2 {version} does not limit {attack}")
    try:
        import warmpath.h2grpc.http2.compile  # noqa: F401, PLC0415  not in every router
    except ImportError as error:
        raise LibraryError(f"Numba, which calls libnghttp2, is not installed: {error}") from error
    return Library(found, version)


class _Info(c.Structure):
    _fields_ = (
        ("age", c.c_int),
        ("version", c.c_int),
        ("version_text", c.c_char_p),
        ("protocol", c.c_char_p),
    )


def header_array(headers: Sequence[tuple[bytes, bytes]]) -> Any:
    """Return an array of nghttp2_nv, which libnghttp2 copies."""
    # Most answers have the same headers and trailers.
    return _constant(headers) if isinstance(headers, tuple) else _array(headers)


@lru_cache(64)
def _constant(headers: tuple[tuple[bytes, bytes], ...]) -> Any:
    return _array(headers)


def _array(headers: Sequence[tuple[bytes, bytes]]) -> Any:
    return (NameValue * len(headers))(
        *(NameValue(name, value, len(name), len(value), 0) for name, value in headers)
    )


def server_options(library: Library, resets_per_second: int) -> Pointer:
    """Return a session's options; the caller frees them with `option_del`.

    libnghttp2 also counts resets of answered calls, so its limit is `ANSWERED_RESETS` times
    `resets_per_second`; `h2grpc.http2.limits.Allowance` enforces the limit itself.
    """
    options = Pointer()
    library.option_new(c.byref(options))
    library.option_set_no_auto_window_update(options, 1)
    library.option_set_no_closed_streams(options, 1)
    library.allow_spaces(options, 1)
    # libnghttp2 counts the resets of answered calls, too.
    most = ANSWERED_RESETS * resets_per_second
    library.option_set_stream_reset_rate_limit(options, 10 * most, most)
    return options


MOST_HEADERS = 4
"""A call whose headers exceed this multiple of `Http2Limits.header_bytes` is reset; it has no status."""

Headers = Sequence[tuple[bytes, bytes]]

LENGTHS = struct.Struct("=ii")


def pairs(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the headers of a block."""
    at = 0
    while at < len(block):
        name, value = LENGTHS.unpack_from(block, at)
        at += LENGTHS.size
        yield block[at : at + name], block[at + name : at + name + value]
        at += name + value
