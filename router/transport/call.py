"""The seam between services and transports: a call, over either server."""

from collections.abc import Callable, Sequence
from typing import Protocol

import grpc

from warmpath.h2grpc.method import Metadata, Refusal
from warmpath.proto.errors import Reason, details


class Answering(Protocol):
    """A call that is being answered."""

    def if_gone(self, call: Callable[[], None]) -> None:
        """Call `call`, once, if the client turns out not to have read what was sent, or is sent now.

        gRPC's own server does not find that out.
        """


class Call(Answering, Protocol):
    """One call, over either server. Reading or writing it after its end raises CancelledError."""

    @property
    def peer(self) -> str:
        """The client's address as gRPC writes it, such as ipv4:10.0.0.1:50000."""

    @property
    def names(self) -> Sequence[str]:
        """The names in the client's certificate."""

    @property
    def metadata(self) -> Metadata:
        """The metadata that the caller sent."""

    @property
    def seconds_left(self) -> float:
        """The seconds until the caller's deadline; infinity without one."""

    @property
    def next_bytes(self) -> int | None:
        """The length of the next message in bytes; None if it is not known yet."""

    @property
    def window(self) -> int:
        """The bytes of an answer that the client takes now; 0 if that is not known."""

    def take(self) -> bytes | None:
        """Return the next message; None if `read` might have to wait for it."""

    async def read(self) -> bytes | None:
        """Return the next message; None after the last. Raises RefusedError if one cannot be read."""

    def put(self, message: bytes) -> int:
        """Put a message, which goes out at the next wait for the client, or at the call's end.

        Return the bytes of the answer that are not sent.
        """

    async def drain(self) -> None:
        """Send all messages that were put; return once the client's window has taken them."""

    async def write(self, message: bytes) -> None:
        """Put a message, and drain."""


def refused(
    code: grpc.StatusCode,
    text: str,
    reason: "Reason.ValueType | str",
    *,
    retry_seconds: float | None = None,
    **facts: str,
) -> Refusal:
    """Return a refusal with its reason, or the reason's name, for programs (`proto.errors.details`)."""
    number = Reason.Value(reason) if isinstance(reason, str) else reason
    trailing = details(code, text, number, retry_seconds=retry_seconds, **facts)
    return Refusal(code, text, trailing, Reason.Name(number))
