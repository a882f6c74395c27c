"""Reads the API key of an engine from its file. No error has any part of the key."""

from pathlib import Path

from warmpath.process.command_line import in_words
from warmpath.process.reread import read_bytes


class EngineKeyError(ValueError):
    """A file has no key that can be sent."""


def read_engine_key(path: Path) -> str:
    """Return the key in a file. Raises EngineKeyError."""
    try:
        return engine_key_of(path, read_bytes(path))
    except OSError as error:
        reason = in_words(error).removeprefix(f"{path}: ")
        raise EngineKeyError(f"there is no key in {path}: {reason}") from error


def engine_key_of(path: Path, content: bytes) -> str:
    """Return the one word of the content of `path`. Raises EngineKeyError."""
    words = content.split()
    # A header's value may have no control characters.
    if len(words) != 1 or not all(0x21 <= byte <= 0x7E for byte in words[0]):
        raise EngineKeyError(f"there is no key in {path}: it must be one word of printable ASCII")
    return words[0].decode("ascii")
