"""The gRPC server: it listens on one port, and loses no call at its end. Its calls may have spans.

Each call has a span while its method runs, from before it waits for its turn. A stream is one call, and
has one span to its end, as OpenTelemetry's conventions for RPC have it; each of its messages has a span
in that one (`router.calls.service`).
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from weakref import WeakKeyDictionary

import grpc

from warmpath.h2grpc.http2.library import LibraryError, load_library
from warmpath.h2grpc.http2.limits import Http2Limits
from warmpath.h2grpc.method import Gate, Method, RefusedError
from warmpath.process.command_line import in_words
from warmpath.process.health import HealthService
from warmpath.process.listener import HALF_OF_DESCRIPTORS, Place
from warmpath.process.tasks import Work, kept
from warmpath.process.tls import ServerTls
from warmpath.router.calls.intake import MESSAGE_SECONDS
from warmpath.router.config.schema import Config
from warmpath.router.readiness import LISTENING, Readiness
from warmpath.router.tracing.steps import Span, Tracer
from warmpath.router.transport.call import Call
from warmpath.router.transport.grpcio import GrpcioServer
from warmpath.router.transport.nghttp2 import Nghttp2Server

log = logging.getLogger(__name__)

STOP_SECONDS = 0.5
"""Time for writing the last answers; then the streams that remain, of health watchers, are ended."""
RECEIVED_BYTES = 256 << 20
"""Most bytes of all clients' messages that wait to be read, unless two of the largest have more."""


@asynccontextmanager
async def serving(
    config: Config,
    methods: Mapping[str, Method],
    checks: HealthService,
    readiness: Readiness,
    end: Callable[..., Awaitable[None]],
    *,
    gate: Gate,
    full: Callable[[str], None],
    http1: Callable[[Place], asyncio.Protocol],
    tls: ServerTls | None,
) -> AsyncIterator[str]:
    """Serve while the context is open, then end; yield host:port with the port that was bound.

    `end` takes the steps before the server stops (`router.ending`). `gate` refuses calls when their
    headers have come; `full` counts connections that are closed, since there are too many; `http1`
    returns the protocol of a connection over HTTP/1.1; `tls` is None for connections without it.
    Raises OSError if the address cannot be bound, or if the system lacks the transport's library.
    """
    server = new_server(
        config.server.transport,
        methods,
        limits_of(config),
        reuse_port=config.server.processes > 1,
        gate=gate,
        full=full,
        http1=http1,
    )
    try:
        address = await server.start(config.server.listen, tls)
    except OSError as error:
        raise OSError(
            f"server.listen: cannot bind {config.server.listen}: {in_words(error)}"
        ) from error
    notifying = kept(Work("informing health watchers", checks.keep_notifying))
    try:
        readiness.set(LISTENING, holds=True, reason="gRPC listens")
        yield address
    finally:
        await end(tell=checks.look, go_away=server.go_away)
        notifying.cancel()
        await server.stop(STOP_SECONDS)


def new_server(
    kind: str,
    methods: Mapping[str, Method],
    limits: Http2Limits,
    *,
    reuse_port: bool = False,
    gate: Gate | None = None,
    full: Callable[[str], None] = lambda _: None,
    http1: Callable[[Place], asyncio.Protocol] | None = None,
) -> Nghttp2Server | GrpcioServer:
    """Return a server of a kind (`server.transport`); auto: nghttp2 where it can be used, else grpcio.

    nghttp2 asks the `gate`, if given, as soon as a call's headers have come. grpcio cannot, and never
    asks it: there the methods alone refuse calls, and later. nghttp2 calls `full` for each connection
    that is closed, since as many as may be are open, with the client's address. Only nghttp2 serves
    HTTP/1.1, by the protocol that `http1` returns.

    Raises OSError if the kind is nghttp2 and the system lacks a library for it.
    """
    why = ", as server.transport says"
    if kind != "grpcio":
        try:
            version = load_library().version
        except LibraryError as error:
            if kind == "nghttp2":
                raise OSError(f"server.transport: {error}") from error
            why = f": {error}"
        else:
            log.info("transport: nghttp2, libnghttp2 %s", version)
            return Nghttp2Server(
                methods, limits, reuse_port=reuse_port, gate=gate, full=full, http1=http1
            )
    log.info("transport: grpcio%s", why)
    return GrpcioServer(methods, limits, reuse_port=reuse_port)


def limit_of_connections(config: Config) -> str:
    """Return the name and value of the limit on connections that is in force."""
    most = config.server.http2.max_connections
    if most <= HALF_OF_DESCRIPTORS:
        return f"server.http2.max-connections ({most})"
    return f"half of the file descriptors ({HALF_OF_DESCRIPTORS})"


def limits_of(config: Config) -> Http2Limits:
    """Return the transport's limits by a configuration."""
    http2 = config.server.http2
    return Http2Limits(
        connections=min(http2.max_connections, HALF_OF_DESCRIPTORS),
        streams=http2.max_streams,
        message_bytes=config.limits.largest_message,
        message_seconds=MESSAGE_SECONDS,
        received_bytes=max(RECEIVED_BYTES, 2 * config.limits.largest_message),
    )


def traced_methods(methods: Mapping[str, Method], tracer: Tracer) -> dict[str, Method]:
    """Return methods, by their names /SERVICE/METHOD, whose calls have spans."""
    begun: WeakKeyDictionary[Call, Span] = WeakKeyDictionary()
    """The spans of calls that could not be answered at once, until they run."""

    def span_of(name: str, call: Call) -> Span:
        of_rpc = {"rpc.system.name": "grpc", "rpc.method": name}
        return tracer.call(name, call.metadata, of_rpc)

    def at_once(
        name: str, answer: Callable[[bytes, Call], bytes | None], message: bytes, call: Call
    ) -> bytes | None:
        """Return an answer at once; a call that is sampled runs with its span instead."""
        span = span_of(name, call)
        if not span.is_sampled:
            answered = answer(message, call)
            if answered is not None:
                return answered
        begun[call] = span
        return None

    async def traced(name: str, run: Callable[[Call], Awaitable[None]], call: Call) -> None:
        with begun.pop(call, None) or span_of(name, call) as span:
            code = grpc.StatusCode.UNKNOWN
            try:
                await run(call)
                code = grpc.StatusCode.OK
            except RefusedError as error:
                code = error.refusal.code
                raise
            except asyncio.CancelledError:
                code = grpc.StatusCode.CANCELLED
                raise
            finally:
                span.ends_with(code.name)

    return {
        name: replace(
            method,
            run=partial(traced, name[1:], method.run),
            at_once=method.at_once and partial(at_once, name[1:], method.at_once),
        )
        for name, method in methods.items()
    }
