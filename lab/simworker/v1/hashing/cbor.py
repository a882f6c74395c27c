"""Canonical CBOR of the values that block hashes cover.

RFC 8949, core deterministic encoding: the shortest heads, definite lengths. It encodes integers of 64
bits (CBOR's own 65-bit range), byte strings, text, None, and tuples and lists of these; vLLM hashes no
other values. Booleans and floats are unknown to it: some that
equal a small integer are encoded as this integer.
"""

from collections.abc import Sequence

Value = int | bytes | str | None | Sequence["Value"]


def encode(value: Value) -> bytes:
    """Return a value's canonical CBOR. Raises TypeError for other types, ValueError beyond 64 bits."""
    if isinstance(value, bytes):
        return _head(0x40, len(value)) + value
    if isinstance(value, str):
        raw = value.encode()
        return _head(0x60, len(raw)) + raw
    if value is None:
        return b"\xf6"
    if isinstance(value, int):
        return _head(0x20, -1 - value) if value < 0 else _head(0, value)
    if isinstance(value, tuple | list):
        return _head(0x80, len(value)) + _items(value)
    raise TypeError(f"no CBOR for {type(value).__name__}")


def _items(values: Sequence[Value]) -> bytes:
    try:
        # Nearly always these are token ids: one look-up each, without a function call.
        return b"".join(map(_UINTS.__getitem__, values))  # type: ignore[arg-type]
    except (KeyError, TypeError):
        return b"".join(map(encode, values))


def _head(major: int, value: int) -> bytes:
    """Return the shortest head of a major type (its upper three bits) and a value."""
    if value < 24:
        return bytes((major | value,))
    for code, size in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if value < 1 << (8 * size):
            return bytes((major | code,)) + value.to_bytes(size, "big")
    raise ValueError(f"{value} does not fit 64 bits")


_UINTS = {value: _head(0, value) for value in range(1 << 16)}
"""Integer -> its bytes, several times faster than building them; most token ids are in it."""
