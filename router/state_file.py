"""The file that carries index and stream positions from one router process to the next.

Layout: a line that names format and version, the payload's BLAKE2b-256 digest, the payload (msgpack).
The payload has keys and engines' own block names, no tokens and no text. A second file is written,
flushed to disk, and renamed, so that a crash leaves either the old file or the new one.

Its path comes from the configuration and may be wrong: an existing file is moved or replaced only if it
is a state file of any version, or empty (`foreign`). The same holds for the two names beside it, `.new`
and `.unusable`. The path may be a link; these two names may not.
"""

import hashlib
import logging
import os
import stat
from pathlib import Path

import msgspec

from warmpath.indexer.follow.stream_source import SavedRank
from warmpath.indexer.keys.key import fingerprint
from warmpath.process.bytes import UNREADABLE
from warmpath.process.reread import KINDS

log = logging.getLogger(__name__)


def folder_problem(folder: Path) -> str:
    """Return why no file can be written into a folder; empty if files can."""
    if not folder.is_dir():
        return f"there is no folder {folder}"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"nothing can be written to the folder {folder}"
    return ""


FORMAT = b"warmpath-state "
VERSION = 4
"""The version of the layout. Files of another one are put aside: the router then starts cold."""
HEADING = FORMAT + b"%d\n" % VERSION
DIGEST_BYTES = 32


class BadStateError(Exception):
    """The state file or its path cannot be used; the message has the reason."""


class SavedState(msgspec.Struct, frozen=True):
    """The content of a state file."""

    hash_seed: str
    """A fingerprint of the hash seed, not the seed itself."""
    ranks: list[SavedRank]


def foreign(path: Path) -> str:
    """Return why a router must not write its state file to a path; empty if it may."""
    try:
        file, aside, unusable = _places(path)
        if problem := folder_problem(file.parent):
            return problem
        for place in (file, aside, unusable):
            if kind := _kind(place):
                return (
                    f"{place} is {kind}; a router moves and replaces only a state file of its own, "
                    f"which begins with {FORMAT.decode().strip()!r}"
                )
    except OSError as error:
        return f"{error.filename or path}: {error.strerror}"
    except ValueError as error:
        return f"{str(path)!r}: {error}"
    return ""


def _places(path: Path) -> tuple[Path, Path, Path]:
    real = os.path.realpath(path)
    return Path(real), Path(f"{real}.new"), Path(f"{real}.unusable")


def _kind(path: Path) -> str:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return ""
    if not stat.S_ISREG(mode):
        return KINDS.get(stat.S_IFMT(mode), "not a regular file")
    with path.open("rb") as file:
        return "" if file.read(len(FORMAT)) in {b"", FORMAT} else "not a state file"


def save(path: Path, ranks: list[SavedRank], hash_seed: str) -> int:
    """Write a state file that only its owner can read; return its size in bytes.

    Raises OSError, and BadStateError if the path must not be written to (`foreign`).
    """
    _refuse_foreign(path)
    file_at, aside, _ = _places(path)
    saved = [_encoded(rank) for rank in ranks]
    whole = {"hash_seed": fingerprint("", hash_seed), "ranks": [one for one in saved if one]}
    payload = msgspec.msgpack.encode(whole)
    digest = hashlib.blake2b(payload, digest_size=DIGEST_BYTES).digest()
    aside.unlink(missing_ok=True)
    try:
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(HEADING + digest + payload)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(file_at)
    except OSError:
        # On a full disk, the incomplete file would keep taking space.
        aside.unlink(missing_ok=True)
        raise
    return len(HEADING) + DIGEST_BYTES + len(payload)


def _encoded(rank: SavedRank) -> msgspec.Raw | None:
    try:
        return msgspec.Raw(msgspec.msgpack.encode(rank))
    except (msgspec.MsgspecError, OverflowError, ValueError) as error:
        log.error("pod %s rank %d is not saved: %s", rank.pod, rank.rank, error)  # noqa: TRY400
        return None


def put_aside(path: Path) -> None:
    """Rename a state file that cannot be used to `PATH.unusable`: the next `save` does not replace it.

    It replaces an earlier `PATH.unusable`. An empty file stays. Raises OSError if there is no file or it
    cannot be renamed, and BadStateError if the path must not be written to (`foreign`).
    """
    _refuse_foreign(path)
    file_at, _, unusable = _places(path)
    if file_at.stat().st_size:
        file_at.replace(unusable)


def _refuse_foreign(path: Path) -> None:
    if problem := foreign(path):
        raise BadStateError(problem)


def load(path: Path, hash_seed: str) -> list[SavedRank]:
    """Return the ranks in a state file; an empty list if there is no file. Raises BadStateError."""
    _refuse_foreign(path)
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise BadStateError(f"{path}: {error}") from error
    if not raw:
        raise BadStateError(f"{path}: is empty")
    if not raw.startswith(HEADING):
        heading = raw.split(b"\n", 1)[0][:40]
        raise BadStateError(f"{path}: begins with {heading!r}, not {HEADING.strip()!r}")
    digest = raw[len(HEADING) :][:DIGEST_BYTES]
    payload = raw[len(HEADING) + DIGEST_BYTES :]
    if hashlib.blake2b(payload, digest_size=DIGEST_BYTES).digest() != digest:
        raise BadStateError(f"{path}: is damaged: its checksum does not match")
    try:
        state = msgspec.msgpack.decode(payload, type=SavedState)
    except UNREADABLE as error:
        raise BadStateError(f"{path}: {error}") from error
    if state.hash_seed != fingerprint("", hash_seed):
        raise BadStateError(f"{path}: was saved under another index.hash-seed")
    return state.ranks
