"""The bytes that Python's pickle, protocol 5, writes for the values that block hashes cover.

Two of vLLM's algorithms hash a pickle, so its bytes are needed; no pickle is read, and the pickle module
is not used. The encoder knows integers of 64 bits, byte strings, text, None, and tuples of these.

    value   = PROTO 5, frames, the last of which ends with STOP
    frame   = FRAME, its length, opcodes; closed once it has 64 KiB, and left out if it has below 4 bytes
    memo    every string and tuple except () gets the next number where it ends (MEMOIZE), and is written
            as a reference (BINGET) when the same object, not only an equal one, comes again

Source: `Lib/pickle.py` and `Modules/_pickle.c` of CPython 3.11 to 3.14, PEP 3154.
"""

from collections.abc import Sequence

Value = int | bytes | str | None | Sequence["Value"]

FRAME_TARGET = 1 << 16
FRAME_LEAST = 4
MEMOIZE = b"\x94"
_SHORT_TUPLES = (b")", b"\x85", b"\x86", b"\x87")
"""Length of a tuple -> the opcode that closes it; longer ones begin with a mark and end with `t`."""


def encode(value: Value) -> bytes:
    """Return a value's pickle. Raises TypeError for other types, ValueError beyond 64 bits."""
    return _Pickler().encode(value)


class _Pickler:
    def __init__(self) -> None:
        self._done = [b"\x80\x05"]
        self._frame = bytearray()
        self._memo: dict[int, int] = {}

    def encode(self, value: Value) -> bytes:
        self._save(value)
        self._frame += b"."
        self._close_frame()
        return b"".join(self._done)

    def _close_frame(self) -> None:
        if len(self._frame) >= FRAME_LEAST:
            self._done.append(b"\x95" + len(self._frame).to_bytes(8, "little"))
        self._done.append(bytes(self._frame))
        self._frame.clear()

    def _save(self, value: Value) -> None:
        seen = self._memo.get(id(value))
        if seen is not None:
            self._frame += _reference(seen)
        elif isinstance(value, tuple):
            self._save_tuple(value)
        elif isinstance(value, bytes | str):
            self._save_string(value)
        elif value is None:
            self._frame += b"N"
        elif type(value) is int:
            self._frame += _integer(value)
        else:
            raise TypeError(f"no pickle for {type(value).__name__}")
        if len(self._frame) >= FRAME_TARGET:
            self._close_frame()

    def _save_string(self, value: bytes | str) -> None:
        raw = value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")
        short, long = (b"C", b"B") if isinstance(value, bytes) else (b"\x8c", b"X")
        if len(raw) >= FRAME_TARGET:
            # Pickle writes longer strings outside frames.
            raise ValueError(f"a string of {len(raw)} bytes; below {FRAME_TARGET} are known")
        if len(raw) < 1 << 8:
            self._frame += short + bytes((len(raw),)) + raw
        else:
            self._frame += long + len(raw).to_bytes(4, "little") + raw
        self._memoize(value)

    def _save_tuple(self, value: tuple[Value, ...]) -> None:
        if len(value) >= len(_SHORT_TUPLES):
            self._frame += b"("
            self._save_items(value)
            self._frame += b"t"
        else:
            self._save_items(value)
            self._frame += _SHORT_TUPLES[len(value)]
        if value:
            self._memoize(value)

    def _save_items(self, values: tuple[Value, ...]) -> None:
        try:
            # Nearly always these are token ids: one look-up each, without a function call.
            joined = b"".join(map(_UINTS.__getitem__, values))  # type: ignore[arg-type]
        except (KeyError, TypeError):
            joined = None
        if joined is not None and len(self._frame) + len(joined) < FRAME_TARGET:
            self._frame += joined
            return
        for value in values:
            self._save(value)

    def _memoize(self, value: Value) -> None:
        # The caller's value keeps this part alive, so no other object gets its id.
        self._memo[id(value)] = len(self._memo)
        self._frame += MEMOIZE


def _reference(number: int) -> bytes:
    return b"h" + bytes((number,)) if number < 1 << 8 else b"j" + number.to_bytes(4, "little")


def _integer(value: int) -> bytes:
    """Return an integer in the shortest of pickle's four forms."""
    if 0 <= value < 1 << 8:
        return b"K" + bytes((value,))
    if 0 <= value < 1 << 16:
        return b"M" + value.to_bytes(2, "little")
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + value.to_bytes(4, "little", signed=True)
    if not -(1 << 63) <= value < 1 << 64:
        raise ValueError(f"{value} does not fit 64 bits")
    size = (value.bit_length() >> 3) + 1
    if value < 0 and value >= -(1 << (8 * size - 9)):
        size -= 1
    return b"\x8a" + bytes((size,)) + value.to_bytes(size, "little", signed=True)


_UINTS = {value: _integer(value) for value in range(1 << 16)}
"""Integer -> its bytes, several times faster than building them; most token ids are in it."""
