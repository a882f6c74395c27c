"""The four algorithms of `--prefix-caching-hash-algo`: a serialisation, then a digest.

    name          serialisation           digest    bytes
    sha256        Python pickle, 5        SHA-256   32      vLLM's default
    sha256_cbor   canonical CBOR          SHA-256   32
    xxhash        Python pickle, 5        XXH3-128  16
    xxhash_cbor   canonical CBOR          XXH3-128  16

Pickle writes a string that it has seen before as a reference, and "seen" means the same object: an
adapter whose name and path are one object hashes differently from one whose name and path are only
equal. The real engine has this property too. `lab/simworker/v1/hashing/pickled.py` writes these bytes;
the pickle module is not used.

Source: `vllm/utils/hashing.py` of 0.32.
"""

import hashlib
from collections.abc import Callable

from xxhash import xxh3_128_digest

from warmpath.lab.simworker.v1.hashing import cbor, pickled

HashFunction = Callable[[cbor.Value], bytes]
"""Takes a seed's text, or (parent digest, tuple of token ids, tuple of extra keys or None)."""


def sha256(value: cbor.Value) -> bytes:
    """Return the SHA-256 of the value's pickle, 32 bytes."""
    return hashlib.sha256(pickled.encode(value)).digest()


def sha256_cbor(value: cbor.Value) -> bytes:
    """Return the SHA-256 of the value's canonical CBOR, 32 bytes."""
    return hashlib.sha256(cbor.encode(value)).digest()


def xxhash(value: cbor.Value) -> bytes:
    """Return the XXH3-128 of the value's pickle, 16 bytes. Not collision resistant."""
    return xxh3_128_digest(pickled.encode(value))


def xxhash_cbor(value: cbor.Value) -> bytes:
    """Return the XXH3-128 of the value's canonical CBOR, 16 bytes. Not collision resistant."""
    return xxh3_128_digest(cbor.encode(value))


_BY_NAME = {one.__name__: one for one in (sha256, sha256_cbor, xxhash, xxhash_cbor)}


def get_hash_fn_by_name(hash_fn_name: str) -> HashFunction:
    """Return an algorithm. Raises ValueError for an unknown name."""
    found = _BY_NAME.get(hash_fn_name)
    if found is None:
        raise ValueError(f"hash_fn_name: {hash_fn_name!r} is none of {', '.join(_BY_NAME)}")
    return found
