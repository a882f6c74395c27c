"""The seam between services and transports: a server that takes gRPC's handlers and listens."""

import ssl
from collections.abc import Iterable
from typing import Protocol

import grpc


class ServerTls(Protocol):
    """A server's certificate and the authority of its clients, for either transport."""

    @property
    def context(self) -> ssl.SSLContext:
        """For servers that read their sockets through asyncio."""

    @property
    def credentials(self) -> grpc.ServerCredentials:
        """For gRPC's own server."""


class Server(Protocol):
    """A gRPC server: `router.transport.nghttp2_server`, or gRPC's own in `grpcio_server`.

    Handlers are asynchronous: coroutines, or asynchronous iterators.
    """

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """Serve these methods, too; called before `start`."""

    async def start(self, address: str, tls: ServerTls | None = None) -> str:
        """Listen at host:port or unix:PATH; return the address with the port that was bound.

        Raises OSError if the address cannot be bound.
        """

    async def stop(self, grace: float) -> None:
        """Take no more calls; cut off those that have not ended after `grace` seconds."""
