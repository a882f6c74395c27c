"""Opens files that may be gzipped."""

import gzip
import zlib
from pathlib import Path
from typing import IO, cast

BEGINNING = b"\x1f\x8b"

DAMAGED = (gzip.BadGzipFile, zlib.error)
"""Errors of reading a damaged file; one that was cut off raises EOFError."""


def open_gzipped(path: Path) -> IO[bytes]:
    """Open a file, gzipped or not. Raises OSError."""
    with path.open("rb") as file:
        is_gzipped = file.read(len(BEGINNING)) == BEGINNING
    return cast("IO[bytes]", gzip.open(path, "rb")) if is_gzipped else path.open("rb")
