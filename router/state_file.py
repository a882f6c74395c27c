"""The file that carries index and stream positions from one router process to the next.

Layout: a line that names format and version, the payload's BLAKE2b-256 digest, the payload (msgpack).
It holds keys and engines' own block names, no tokens and no text. It is written aside, flushed to
disk, and then put in place, so that a crash leaves the old file or the new one.
"""

import hashlib
import os
from pathlib import Path

import msgspec

from indexer.key import fingerprint
from indexer.rank_ingest import SavedRank

HEADING = b"warmpath-state 2\n"
DIGEST_BYTES = 32


class BadStateError(Exception):
    """The file cannot be used; says why."""


class State(msgspec.Struct, frozen=True):
    """All that is saved."""

    hash_seed: str
    """A fingerprint of it, not the seed."""
    ranks: list[SavedRank]


def save(path: Path, ranks: list[SavedRank], hash_seed: str) -> int:
    """Write a file for the owner's eyes only; return its size in bytes. Raises OSError."""
    payload = msgspec.msgpack.encode(State(fingerprint("", hash_seed), ranks))
    digest = hashlib.blake2b(payload, digest_size=DIGEST_BYTES).digest()
    aside = path.with_name(path.name + ".new")
    aside.unlink(missing_ok=True)
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(HEADING + digest + payload)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
    return len(HEADING) + DIGEST_BYTES + len(payload)


def load(path: Path, hash_seed: str) -> list[SavedRank]:
    """Read a file; an empty list where there is none. Raises BadStateError."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise BadStateError(f"{path}: {error}") from error
    if not raw.startswith(HEADING):
        heading = raw.split(b"\n", 1)[0][:40]
        raise BadStateError(f"{path}: begins with {heading!r}, not {HEADING.strip()!r}")
    digest = raw[len(HEADING) :][:DIGEST_BYTES]
    payload = raw[len(HEADING) + DIGEST_BYTES :]
    if hashlib.blake2b(payload, digest_size=DIGEST_BYTES).digest() != digest:
        raise BadStateError(f"{path}: is damaged: its checksum is another")
    try:
        state = msgspec.msgpack.decode(payload, type=State)
    except msgspec.MsgspecError as error:
        raise BadStateError(f"{path}: {error}") from error
    if state.hash_seed != fingerprint("", hash_seed):
        raise BadStateError(f"{path}: was saved under another index.hash-seed")
    return state.ranks
