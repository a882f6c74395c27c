"""Why a request has no prompt for a pick, so that load alone decides."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class Unread(StrEnum):
    """The reasons, each one word for programs."""

    UNKNOWN_PATH = "UNKNOWN_PATH"
    """No API with this path is known."""
    NO_PREFIX = "NO_PREFIX"
    """The engine computes the whole prompt, whatever its cache holds: for embeddings, say."""
    BODY_ENCODED = "BODY_ENCODED"
    """The body is compressed; it is never decompressed."""
    BODY_NOT_JSON = "BODY_NOT_JSON"
    """The body is no JSON object in UTF-8, or its content type says so."""
    BODY_TOO_LARGE = "BODY_TOO_LARGE"
    """The body has too many bytes, values or tokens."""
    SEVERAL_PROMPTS = "SEVERAL_PROMPTS"
    """The body has several prompts, which a pick cannot place together."""
    NO_PROMPT = "NO_PROMPT"
    """The body has no prompt, or a prompt that the engine refuses."""
    NOT_EXACT = "NOT_EXACT"
    """The engine's tokens depend on something that is not known here."""


class UnreadError(Exception):
    """A body has no prompt for a pick; the message says why, without any part of the prompt."""

    def __init__(self, because: Unread, problem: str) -> None:
        super().__init__(problem)
        self.because = because


def not_exact(problem: str) -> UnreadError:
    """Return the error for a body whose tokens only the engine knows."""
    return UnreadError(Unread.NOT_EXACT, f"the engine's tokens are not known: {problem}")


def not_allowed(problem: str) -> UnreadError:
    """Return the error for a body that the engine itself refuses."""
    return UnreadError(Unread.NO_PROMPT, f"the engine is to refuse the body: {problem}")


def object_of(value: Any, name: str) -> dict[str, Any]:
    """Return a value that is an object. Raises UnreadError."""
    if not isinstance(value, dict):
        raise not_allowed(f"{name} is no object")
    return value


def list_of(value: Any, name: str) -> list[Any]:
    """Return a value that is a list. Raises UnreadError."""
    if not isinstance(value, list):
        raise not_allowed(f"{name} is no list")
    return value


def text_of(fields: Mapping[str, Any], name: str) -> str | None:
    """Return a field that is a text or missing. Raises UnreadError."""
    value = fields.get(name)
    if not isinstance(value, str | None):
        raise not_allowed(f"{name} is no text")
    return value
