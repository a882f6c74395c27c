"""The gRPC server: it listens on one port, and loses no call at its end."""

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import grpc
import grpc.aio

from indexer.process.grpc_health import HealthService
from indexer.process.grpc_tls import server_credentials
from indexer.process.listen import GRPC_OPTIONS
from indexer.process.tasks import Work, kept
from indexer.process.tls_files import ServerTls
from router.config.schema import Config
from router.drain import Drain

log = logging.getLogger(__name__)

STOP_SECONDS = 0.5
"""Time for writing the last answers; then the streams that remain, of health watchers, are ended."""


@asynccontextmanager
async def serving(
    config: Config,
    handlers: Sequence[grpc.GenericRpcHandler],
    checks: HealthService,
    drain: Drain,
    tls: ServerTls | None,
) -> AsyncIterator[str]:
    """Serve while the context is open, then drain; yield host:port with the port that was bound.

    `tls` is None for plain connections.
    Raises OSError if the address cannot be bound.
    """
    server = grpc.aio.server(
        options=[
            *GRPC_OPTIONS,
            ("grpc.max_receive_message_length", config.limits.largest_message),
            ("grpc.so_reuseport", int(config.server.processes > 1)),
            # These bound how much of a call arrives before it is read: BDP probes would raise it to
            # megabytes, and with less than this the calls of one connection wait for each other.
            ("grpc.http2.bdp_probe", 0),
            ("grpc.http2.lookahead_bytes", 256 << 10),
        ]
    )
    server.add_generic_rpc_handlers(handlers)
    try:
        if tls is None:
            port = server.add_insecure_port(config.server.listen)
        else:
            port = server.add_secure_port(config.server.listen, server_credentials(tls))
    except RuntimeError as error:
        raise OSError(f"server.listen: cannot bind {config.server.listen}") from error
    await server.start()
    telling = kept(Work("informing health watchers", checks.keep_telling))
    try:
        yield f"{config.server.listen.rpartition(':')[0]}:{port}"
    finally:
        telling.cancel()
        checks.end()
        seconds = config.server.drain_seconds
        log.info("the process was asked to end: calls in progress have %g s", seconds)
        await drain.run(seconds)
        log.info("the process ends; %d calls and streams are cut off", drain.open)
        await server.stop(STOP_SECONDS)
