"""Block hashes, byte-equal to vLLM's with `--prefix-caching-hash-algo sha256_cbor`.

Source: `vllm/v1/core/kv_cache_utils.py` and `vllm/utils/hashing.py` of 0.32 (`shared/engine-events.md`,
section 3): SHA-256 over the canonical CBOR of (parent digest, tokens, extra keys).
"""

import hashlib
from collections.abc import Sequence

DEFAULT_SEED = "vllm-none-hash"
"""What seeds the chain where PYTHONHASHSEED is not set (0.29 and later)."""

Extra = tuple[tuple[str, ...], ...]
"""Tagged extra keys of one block: ("lora", name, path), ("cache_salt", salt)."""


def none_hash(seed: str = DEFAULT_SEED) -> bytes:
    """Return the digest that stands for the parent of a first block."""
    return hashlib.sha256(_text(seed)).digest()


def block_hash(parent: bytes, tokens: Sequence[int], extra: Extra = ()) -> bytes:
    """Return a full block's 32-byte digest."""
    parts = [b"\x83\x58\x20", parent, _head(0x80, len(tokens))]
    parts += map(_uint, tokens)
    if extra:
        parts.append(_head(0x80, len(extra)))
        for item in extra:
            parts.append(_head(0x80, len(item)))
            parts += map(_text, item)
    else:
        parts.append(b"\xf6")
    return hashlib.sha256(b"".join(parts)).digest()


def wire_hash(digest: bytes) -> int:
    """Return the form that events carry by default: the last 8 bytes, big-endian, unsigned."""
    return int.from_bytes(digest[-8:], "big")


def _head(major: int, value: int) -> bytes:
    """Return the shortest CBOR head of a major type (its upper three bits) and a value."""
    if value < 24:
        return bytes((major | value,))
    for code, size in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if value < 1 << (8 * size):
            return bytes((major | code,)) + value.to_bytes(size, "big")
    raise ValueError(f"{value} does not fit 64 bits")


_UINTS = [_head(0, value) for value in range(1 << 16)]
"""Most token ids are below 65,536; a look-up is several times faster than building the bytes."""


def _uint(value: int) -> bytes:
    return _UINTS[value] if value < 1 << 16 else _head(0, value)


def _text(value: str) -> bytes:
    raw = value.encode()
    return _head(0x60, len(raw)) + raw
