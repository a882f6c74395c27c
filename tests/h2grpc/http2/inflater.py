"""The client's side of header compression, by libnghttp2."""

import ctypes as c

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
    """Reads the headers of one connection, in the order in which they came."""

    def __init__(self) -> None:
        self._state = c.c_void_p()
        assert _new(c.byref(self._state)) == 0

    def __del__(self) -> None:
        _delete(self._state)

    def read(self, block: bytes) -> dict[str, bytes]:
        """Return the headers of a block."""
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
