"""gRPC's own server, for systems without a libnghttp2 that can be used.

Its limits on resets and control frames cannot be set. Its limit of calls per connection is not set
either: gRPC's server would reset the calls beyond the limit, instead of letting them wait.
"""

from collections.abc import Iterable

import grpc
import grpc.aio

from warmpath.h2grpc.http2.limits import Http2Limits
from warmpath.process.grpc_tls import server_credentials
from warmpath.process.listen import GRPC_OPTIONS
from warmpath.process.tls import ServerTls

MOST_PENDING = 8192
"""The most calls of which the thread that answers has not heard yet; more are cancelled."""


class GrpcioServer:
    """Serves asynchronous handlers."""

    def __init__(self, limits: Http2Limits, *, reuse_port: bool = False) -> None:
        options = dict[str, int](GRPC_OPTIONS) | {
            "grpc.max_receive_message_length": limits.message_bytes,
            "grpc.max_metadata_size": limits.header_bytes,
            # By default gRPC refuses some calls above the former, and all above 1.25 times that.
            "grpc.absolute_max_metadata_size": limits.header_bytes,
            "grpc.so_reuseport": int(reuse_port),
            "grpc.max_allowed_incoming_connections": limits.connections,
            "grpc.max_connection_idle_ms": round(1000 * limits.idle_seconds),
            "grpc.server_handshake_timeout_ms": round(1000 * limits.handshake_seconds),
            "grpc.keepalive_time_ms": round(1000 * limits.ping_seconds),
            "grpc.keepalive_timeout_ms": round(1000 * limits.ping_seconds),
            # By default gRPC cancels calls at random once 1,000 wait for the thread that answers.
            "grpc.server.max_pending_requests": MOST_PENDING,
            "grpc.server.max_pending_requests_hard_limit": MOST_PENDING,
            # These bound the bytes of a call that arrive before it is read. BDP probes would raise
            # that to megabytes; with fewer than 256 KiB a connection's calls wait for each other.
            "grpc.http2.bdp_probe": 0,
            "grpc.http2.lookahead_bytes": 256 << 10,
        }
        self._server = grpc.aio.server(options=tuple(options.items()))

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """Serve these methods, too."""
        self._server.add_generic_rpc_handlers(tuple(handlers))

    async def start(self, address: str, tls: ServerTls | None = None) -> str:
        """Listen at host:port or unix:PATH; return the address with the port that was bound."""
        try:
            if tls is None:
                port = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(address, server_credentials(tls))
        except RuntimeError as error:
            raise OSError(str(error)) from error
        await self._server.start()
        is_path = address.startswith("unix:")
        return address if is_path else f"{address.rpartition(':')[0]}:{port}"

    def go_away(self) -> int:
        """Tell nobody: gRPC's server sends GOAWAY only in `stop`, which cancels calls not begun."""
        return 0

    async def stop(self, grace: float) -> None:
        """Take no more calls; cut off those that have not ended after `grace` seconds."""
        await self._server.stop(grace)
