"""Reading protobuf messages that others wrote."""

from typing import Protocol, Self, TypeVar


class Message(Protocol):
    """A generated message."""

    @classmethod
    def FromString(cls, s: bytes) -> Self:  # noqa: N802  protobuf's name
        """Parse a message."""


M = TypeVar("M", bound=Message)


def read_message(kind: type[M], raw: bytes) -> M:
    """Return the message in `raw`. Raises ValueError where it is malformed."""
    try:
        return kind.FromString(raw)
    except Exception as error:  # protobuf's own error is not a ValueError
        raise ValueError(f"a message cannot be read: {error}") from error
