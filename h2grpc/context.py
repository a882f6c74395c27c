"""The part of a call that handlers only read and set: metadata, status, deadline and the client."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import grpc
import grpc.aio

from warmpath.h2grpc.http2.session import Session
from warmpath.h2grpc.metadata import Metadata, Request
from warmpath.process.certificates import ALTERNATIVE_NAME, COMMON_NAME


class Link(Protocol):
    """The connection of a call."""

    session: Session
    loop: asyncio.AbstractEventLoop

    @property
    def peer(self) -> str:
        """The client's address as gRPC writes it, such as ipv4:10.0.0.1:50000."""

    @property
    def address(self) -> str:
        """The part of it that all connections of that machine have in common."""

    @property
    def auth_context(self) -> Mapping[str, Sequence[bytes]]:
        """The properties of the client's certificate."""

    def flush(self) -> None:
        """Send what can be sent."""

    def if_gone(self, stream: int, call: Callable[[], None]) -> None:
        """Call `call`, once, if the client turns out not to have read what was sent on a stream."""

    def works(self, *, is_busy: bool) -> None:
        """Note whether calls are at work, or that one was answered."""


class CallContext(grpc.aio.ServicerContext[Any, Any]):
    """What gRPC's handlers read and set of their call; `h2grpc.call` does the rest."""

    _loop: asyncio.AbstractEventLoop
    _link: Link
    _request: Request
    _trailing: Metadata = ()
    _code: grpc.StatusCode | None = None
    _details = ""
    _deadline: float | None = None
    """The loop's time at which the caller's deadline passes."""

    @property
    def method(self) -> str:
        """The name of the method, /SERVICE/METHOD."""
        return self._request.method

    def invocation_metadata(self) -> Any:
        """Return the metadata that the caller sent."""
        return self._request.metadata

    def set_trailing_metadata(self, trailing_metadata: Any) -> None:
        """Set the metadata that follow the answer."""
        self._trailing = tuple(trailing_metadata)

    def trailing_metadata(self) -> Any:
        """Return the trailing metadata that are set."""
        return self._trailing

    def set_code(self, code: grpc.StatusCode) -> None:
        """Set the status with which the call ends."""
        self._code = code

    def code(self) -> Any:
        """Return the status that is set."""
        return self._code

    def set_details(self, details: str) -> None:
        """Set the text of the status with which the call ends."""
        self._details = details

    def details(self) -> str:
        """Return the text that is set."""
        return self._details

    def set_compression(self, compression: grpc.Compression) -> None:
        """Do nothing: answers are not compressed, which gRPC leaves to the server."""

    def disable_next_message_compression(self) -> None:
        """Do nothing: answers are not compressed."""

    def peer(self) -> str:
        """Return the client's address."""
        return self._link.peer

    @property
    def address(self) -> str:
        """The part of the client's address that all connections of that machine have in common."""
        return self._link.address

    def auth_context(self) -> Mapping[str, Sequence[bytes]]:
        """Return the properties of the client's certificate."""
        return self._link.auth_context

    def peer_identities(self) -> Any:
        """Return the names in the client's certificate; None without one."""
        return self._link.auth_context.get(self.peer_identity_key() or "")

    def peer_identity_key(self) -> str | None:
        """Return the property that names the client; None without a certificate."""
        for key in (ALTERNATIVE_NAME, COMMON_NAME):
            if key in self._link.auth_context:
                return key
        return None

    def time_remaining(self) -> Any:
        """Return the seconds until the caller's deadline; None without one."""
        return None if self._deadline is None else max(0.0, self._deadline - self._loop.time())
