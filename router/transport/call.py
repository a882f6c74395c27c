"""The seam between services and transports: calls, and a server of methods that listens."""

from collections.abc import Callable, Sequence
from typing import Protocol

import grpc

from warmpath.h2grpc.method import Metadata, Refusal
from warmpath.process.tls import ServerTls
from warmpath.proto.errors import Reason, details


class Call(Protocol):
    """One call, over either server. What awaits a call is cancelled once the call has ended."""

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
        """The length of the next message, if it is known before the message has come."""

    def take(self) -> bytes | None:
        """Return the next message, if it is known that `read` would not wait."""

    async def read(self) -> bytes | None:
        """Return the next message; None after the last. Raises RefusedError if one cannot be read."""

    def put(self, message: bytes) -> int:
        """Put a message that goes out by the next wait for the client, or the end.

        Return the bytes of the answer that are not sent.
        """

    async def drain(self) -> None:
        """Send all messages that were put; return once the client's window has taken them."""

    async def write(self, message: bytes) -> None:
        """Put a message, and drain."""

    def if_gone(self, call: Callable[[], None]) -> None:
        """Call `call`, once, if the client turns out not to have read what was sent.

        gRPC's own server does not find that out.
        """


class Server(Protocol):
    """A gRPC server: `router.transport.nghttp2`, or gRPC's own in `router.transport.grpcio`."""

    async def start(self, address: str, tls: ServerTls | None = None) -> str:
        """Listen at host:port or unix:PATH; return the address with the port that was bound.

        Raises OSError if the address cannot be bound.
        """

    def go_away(self) -> int:
        """Tell clients to call no more on their connections (GOAWAY); return the number of those told.

        Calls in progress go on, and calls that come all the same are answered.
        """

    async def stop(self, grace: float) -> None:
        """Take no more calls; cut off those that have not ended after `grace` seconds."""


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
