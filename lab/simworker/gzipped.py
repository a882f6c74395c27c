"""Text files that may be gzipped."""

import gzip
from pathlib import Path
from typing import IO


def open_text(path: Path) -> IO[str]:
    """Open a text file; its first bytes decide whether it is gzipped. Raises OSError."""
    with path.open("rb") as raw:
        is_gzipped = raw.read(2) == b"\x1f\x8b"
    return gzip.open(path, "rt", encoding="utf-8") if is_gzipped else path.open(encoding="utf-8")
