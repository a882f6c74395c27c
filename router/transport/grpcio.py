"""gRPC's own server, for systems without a libnghttp2 that can be used.

Its limits on resets and control frames cannot be set. Its limit of calls per connection is not set
either: gRPC's server would reset the calls beyond the limit, instead of letting them wait.

gRPC's library reads a unary call's message before it calls the handler, with no limit on the bytes of
all calls. A stream's handler asks for each message, and on the wire a unary call is a stream of one
message. So every method is registered as a stream of messages. It has one answer where the answer may go
out with the status; each further write takes a tenth of a millisecond.
"""

import asyncio
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import grpc
import grpc.aio

from warmpath.h2grpc.http2.limits import Http2Limits
from warmpath.h2grpc.method import Method, RefusedError
from warmpath.process.grpc_tls import server_credentials
from warmpath.process.listener import GRPC_OPTIONS
from warmpath.process.tls import ServerTls, names

MOST_PENDING = 8192
"""The most calls of which the thread that answers has not heard yet; more are cancelled."""


class GrpcioCall:
    """A call over gRPC's own context, which tells no message's length and sends one at a time."""

    next_bytes = None
    window = 0

    def __init__(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        self._context = context
        self.peer = context.peer() or ""
        self._put: list[bytes] = []

    @property
    def names(self) -> list[str]:
        return [*names(self._context.auth_context())]

    @property
    def metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return tuple((key, value) for key, value in self._context.invocation_metadata() or ())

    @property
    def seconds_left(self) -> float:
        # Without a deadline gRPC returns None, which the stubs do not declare.
        left: float | None = self._context.time_remaining()
        return math.inf if left is None else left

    def take(self) -> None:
        """Return None: nobody knows whether a message has come."""

    async def read(self) -> bytes | None:
        if self._put:
            await self.drain()
        try:
            message: Any = await self._context.read()
        except grpc.aio.InternalError as error:
            raise asyncio.CancelledError("the call has ended") from error
        return None if message is grpc.aio.EOF else message

    def put(self, message: bytes) -> int:
        """Keep a message until `drain`; return the bytes that are kept."""
        self._put.append(message)
        return sum(map(len, self._put))

    def last(self) -> bytes:
        """Return the one answer that was put, to be sent with the status."""
        (message,) = self._put
        return message

    async def drain(self) -> None:
        put, self._put = self._put, []
        try:
            for message in put:
                await self._context.write(message)
        except grpc.aio.InternalError as error:
            raise asyncio.CancelledError("the call has ended") from error

    async def write(self, message: bytes) -> None:
        self.put(message)
        await self.drain()

    def if_gone(self, call: Callable[[], None]) -> None:
        """Do nothing: gRPC's server does not tell whether a client has read its answer."""


async def _handle(
    method: Method, _: object, context: grpc.aio.ServicerContext[Any, Any]
) -> bytes | None:
    # gRPC's library keeps the exception of `abort` in a reference cycle with the call. `abort` is
    # therefore called outside the frames of the method, which would keep its messages alive.
    try:
        call = GrpcioCall(context)
        refusal = method.refusal(call) if method.refusal is not None else None
        if refusal is None:
            await method.run(call)
            if method.is_unary:
                return call.last()
            await call.drain()
            return None
    except RefusedError as error:
        refusal = error.refusal
    return await context.abort(refusal.code, refusal.text, refusal.metadata)


class _Handlers(grpc.GenericRpcHandler):
    def __init__(self, methods: Mapping[str, Method]) -> None:
        self._of: dict[str, Any] = {
            name: (
                grpc.stream_unary_rpc_method_handler
                if method.is_unary
                else grpc.stream_stream_rpc_method_handler
            )(partial(_handle, method))
            for name, method in methods.items()
        }

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        return self._of.get(str(details.method))


class GrpcioServer:
    """Serves methods with gRPC's own library."""

    def __init__(
        self, methods: Mapping[str, Method], limits: Http2Limits, *, reuse_port: bool = False
    ) -> None:
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
        self._server = grpc.aio.server(
            handlers=(_Handlers(methods),), options=tuple(options.items())
        )

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
        """Return 0: gRPC's server sends GOAWAY only in `stop`, which cancels calls not begun."""
        return 0

    async def stop(self, grace: float) -> None:
        """Take no more calls; cut off those that have not ended after `grace` seconds."""
        await self._server.stop(grace)
