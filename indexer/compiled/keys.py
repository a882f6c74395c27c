"""Compiled functions for the keys of a prompt's blocks (`indexer.keys.key`), and for XXH64 of bytes.

Source: the XXH64 specification (github.com/Cyan4973/xxHash, doc/xxhash_spec.md).

`highest` is here as NumPy takes longer to begin than to look at 10,000 ids.
"""

import numpy as np
from numpy.typing import NDArray

from warmpath.indexer.compiled.jit import compiled, inlined, inner

P1 = np.uint64(0x9E3779B185EBCA87)
P2 = np.uint64(0xC2B2AE3D27D4EB4F)
P3 = np.uint64(0x165667B19E3779F9)
P4 = np.uint64(0x85EBCA77C2B2AE63)
P5 = np.uint64(0x27D4EB2F165667C5)


@inlined
def _turn(word: np.uint64, bits: int) -> np.uint64:
    return (word << np.uint64(bits)) | (word >> np.uint64(64 - bits))


@inlined
def _round(total: np.uint64, lane: np.uint64) -> np.uint64:
    return _turn(total + lane * P2, 31) * P1


@inlined
def _merge(total: np.uint64, part: np.uint64) -> np.uint64:
    return (total ^ _round(np.uint64(0), part)) * P1 + P4


@inlined
def _lane(tokens: NDArray[np.uint32], at: int) -> np.uint64:
    return np.uint64(tokens[at]) | (np.uint64(tokens[at + 1]) << np.uint64(32))


@inlined
def block_key(tokens: NDArray[np.uint32], start: int, size: int, seed: np.uint64) -> np.uint64:
    """Return the key of the `size` ids from `start` on, chained to `seed`."""
    at = start
    end = start + size
    if size >= 8:
        a, b, c, d = seed + P1 + P2, seed + P2, seed, seed - P1
        while at + 8 <= end:
            a = _round(a, _lane(tokens, at))
            b = _round(b, _lane(tokens, at + 2))
            c = _round(c, _lane(tokens, at + 4))
            d = _round(d, _lane(tokens, at + 6))
            at += 8
        key = _turn(a, 1) + _turn(b, 7) + _turn(c, 12) + _turn(d, 18)
        key = _merge(_merge(_merge(_merge(key, a), b), c), d)
    else:
        key = seed + P5
    key += np.uint64(4) * np.uint64(size)
    while at + 2 <= end:
        key = _turn(key ^ _round(np.uint64(0), _lane(tokens, at)), 27) * P1 + P4
        at += 2
    if at < end:
        key = _turn(key ^ (np.uint64(tokens[at]) * P1), 23) * P2 + P3
    return _avalanche(key)


@inlined
def lookahead_key(token: np.uint32, seed: np.uint64) -> np.uint64:
    """Return the XXH64 of `indexer.keys.key.next_token`, whose 5 bytes are a letter and a token id."""
    word = (np.uint64(token) << np.uint64(8) | np.uint64(0x6E)) & np.uint64(0xFFFFFFFF)
    key = _turn((seed + P5 + np.uint64(5)) ^ (word * P1), 23) * P2 + P3
    key = _turn(key ^ ((np.uint64(token) >> np.uint64(24)) * P5), 11) * P1
    return _avalanche(key)


@inlined
def _avalanche(key: np.uint64) -> np.uint64:
    key = (key ^ (key >> np.uint64(33))) * P2
    key = (key ^ (key >> np.uint64(29))) * P3
    return key ^ (key >> np.uint64(32))


@inlined
def _word(data: NDArray[np.uint8], at: int, size: int) -> np.uint64:
    """Return some bytes as a little-endian number."""
    word = np.uint64(0)
    for offset in range(size):
        word |= np.uint64(data[at + offset]) << np.uint64(8 * offset)
    return word


@inner
def bytes_key(data: NDArray[np.uint8], start: int, size: int, seed: np.uint64) -> np.uint64:
    """Return the XXH64 of `size` bytes from `start` on."""
    at = start
    end = start + size
    if size >= 32:
        a, b, c, d = seed + P1 + P2, seed + P2, seed, seed - P1
        while at + 32 <= end:
            a = _round(a, _word(data, at, 8))
            b = _round(b, _word(data, at + 8, 8))
            c = _round(c, _word(data, at + 16, 8))
            d = _round(d, _word(data, at + 24, 8))
            at += 32
        key = _turn(a, 1) + _turn(b, 7) + _turn(c, 12) + _turn(d, 18)
        key = _merge(_merge(_merge(_merge(key, a), b), c), d)
    else:
        key = seed + P5
    key += np.uint64(size)
    while at + 8 <= end:
        key = _turn(key ^ _round(np.uint64(0), _word(data, at, 8)), 27) * P1 + P4
        at += 8
    if at + 4 <= end:
        key = _turn(key ^ (_word(data, at, 4) * P1), 23) * P2 + P3
        at += 4
    while at < end:
        key = _turn(key ^ (np.uint64(data[at]) * P5), 11) * P1
        at += 1
    return _avalanche(key)


@compiled
def make_keys(
    tokens: NDArray[np.uint32], size: int, root: np.uint64, keys: NDArray[np.uint64]
) -> None:
    """Fill `keys` with the first blocks' keys: `size` ids of `tokens` each, chained to `root`."""
    key = root
    for block in range(keys.size):
        key = block_key(tokens, block * size, size, key)
        keys[block] = key


def packed(tokens: bytes, size: int, blocks: int, root: int) -> bytes:
    """Return the first `blocks` blocks' keys, packed. Raises ValueError for too few tokens."""
    keys = np.empty(blocks, np.uint64)
    if blocks:
        ids = np.frombuffer(tokens, np.uint32, blocks * size)
        make_keys(ids, size, np.uint64(root), keys)
    return keys.astype("<u8", copy=False).tobytes()


@compiled
def highest(ids: NDArray[np.uint32]) -> int:
    """Return the highest of some token ids; 0 for none."""
    most = np.uint32(0)
    # By index, since the compiler looks at several ids at once only then.
    for at in range(ids.size):
        most = max(most, ids[at])
    return int(most)
