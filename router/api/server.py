"""The gRPC server: it listens on one port, and loses no call at its end."""

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import grpc
import grpc.aio

from indexer.process.grpc_health import HealthService
from indexer.process.listen import GRPC_OPTIONS
from indexer.process.tasks import Work, kept
from router.config.schema import Config
from router.drain import Drain

log = logging.getLogger(__name__)

STOP_SECONDS = 0.5
"""For answers that were given and are not written yet; it ends who watches the health, too."""


@asynccontextmanager
async def serving(
    config: Config,
    handlers: Sequence[grpc.GenericRpcHandler],
    checks: HealthService,
    drain: Drain,
) -> AsyncIterator[str]:
    """Serve for as long as the context is open, and drain then; yield host:port, as really bound.

    Raises OSError for an address that cannot be bound.
    """
    server = grpc.aio.server(
        options=[
            *GRPC_OPTIONS,
            ("grpc.max_receive_message_length", config.limits.largest_message),
            ("grpc.so_reuseport", int(config.server.processes > 1)),
            # What comes of a call before it is read: with probes it grows to megabytes. In less room
            # than this, calls of one connection wait for the room of those before.
            ("grpc.http2.bdp_probe", 0),
            ("grpc.http2.lookahead_bytes", 256 << 10),
        ]
    )
    server.add_generic_rpc_handlers(handlers)
    try:
        port = server.add_insecure_port(config.server.listen)
    except RuntimeError as error:
        raise OSError(f"server.listen: cannot bind {config.server.listen}") from error
    await server.start()
    telling = kept(Work("telling who watches the health", checks.keep_telling))
    try:
        yield f"{config.server.listen.rpartition(':')[0]}:{port}"
    finally:
        telling.cancel()
        checks.end()
        seconds = config.server.drain_seconds
        log.info("the process was asked to end: calls that were begun have %g s", seconds)
        await drain.run(seconds)
        log.info("it ends with %d calls and streams cut off", drain.open)
        await server.stop(STOP_SECONDS)
