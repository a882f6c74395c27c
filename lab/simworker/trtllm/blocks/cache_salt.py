"""The number that block keys have for a cache salt.

TensorRT-LLM takes the first 8 bytes of the salt's BLAKE3 digest, little-endian (`get_cache_salt_id`,
`tensorrt_llm/block_hash.py`). Python's library lacks BLAKE3; this is its form for one chunk, after the
paper "BLAKE3: one function, fast everywhere" (2021), sections 2.2 to 2.4.
"""

MAX_SALT_BYTES = 1024
"""One chunk of BLAKE3; longer salts would need its tree."""

CHUNK_START, CHUNK_END, ROOT = 1, 2, 8
MASK = (1 << 32) - 1
IV = (
    0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19,
)  # fmt: skip
PERMUTATION = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
COLUMNS_AND_DIAGONALS = (
    (0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
    (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14),
)  # fmt: skip


def get_cache_salt_id(cache_salt: str) -> int:
    """Return a salt's id, 0 to 2^64 - 1. Raises ValueError if the salt is over 1,024 bytes long."""
    data = cache_salt.encode()
    if len(data) > MAX_SALT_BYTES:
        raise ValueError(f"cache_salt has {len(data)} bytes; at most {MAX_SALT_BYTES}")
    return int.from_bytes(blake3(data)[:8], "little")


def blake3(data: bytes) -> bytes:
    """Return the 32-byte digest of at most one chunk (1,024 bytes)."""
    chaining = list(IV)
    starts = range(0, max(len(data), 1), 64)
    for start in starts:
        block = data[start : start + 64]
        flags = CHUNK_START if start == 0 else 0
        if start == starts[-1]:
            flags |= CHUNK_END | ROOT
        chaining = _compress(chaining, block, flags)
    return b"".join(word.to_bytes(4, "little") for word in chaining)


def _compress(chaining: list[int], block: bytes, flags: int) -> list[int]:
    padded = block.ljust(64, b"\0")
    words = [int.from_bytes(padded[i : i + 4], "little") for i in range(0, 64, 4)]
    state = [*chaining, *IV[:4], 0, 0, len(block), flags]
    for turn in range(7):
        if turn:
            words = [words[i] for i in PERMUTATION]
        for number, places in enumerate(COLUMNS_AND_DIAGONALS):
            _quarter(state, places, words[2 * number : 2 * number + 2])
    return [state[i] ^ state[i + 8] for i in range(8)]


def _quarter(state: list[int], places: tuple[int, int, int, int], words: list[int]) -> None:
    a, b, c, d = places
    for word, right_1, right_2 in zip(words, (16, 8), (12, 7), strict=True):
        state[a] = state[a] + state[b] + word & MASK
        state[d] = _rotate(state[d] ^ state[a], right_1)
        state[c] = state[c] + state[d] & MASK
        state[b] = _rotate(state[b] ^ state[c], right_2)


def _rotate(word: int, right: int) -> int:
    return (word >> right | word << 32 - right) & MASK
