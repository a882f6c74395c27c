"""Reads a caller's token from its file. No error has any part of the token."""

from pathlib import Path

from warmpath.process.command_line import in_words
from warmpath.process.reread import read_bytes

LEAST_BYTES = 16
MOST_BYTES = 4096


class TokenError(ValueError):
    """A file has no token that can be used."""


def read_token(path: Path) -> str:
    """Return the token in a file. Raises TokenError."""
    try:
        return token_of(read_bytes(path))
    except OSError as error:
        needs = f"the file must have a token, one line of {LEAST_BYTES} to {MOST_BYTES} bytes"
        raise TokenError(f"{in_words(error)}; {needs}") from error
    except TokenError as error:
        raise TokenError(f"{path} {error}") from None


def token_of(content: bytes) -> str:
    """Return the token in a file's content, one line. Raises TokenError."""
    token = content.strip(b"\r\n")
    if not LEAST_BYTES <= len(token) <= MOST_BYTES:
        raise TokenError(
            f"has {len(token)} bytes in its line; a token has {LEAST_BYTES} to {MOST_BYTES}"
        )
    # A header's value, which may have no other characters.
    if not all(0x21 <= byte <= 0x7E for byte in token):
        raise TokenError("is not one line of printable ASCII without spaces")
    return token.decode("ascii")
