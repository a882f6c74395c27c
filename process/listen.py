"""Limits on the connections of gRPC servers."""

import resource


def _half_of_descriptors() -> int:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1 << 20 if most == resource.RLIM_INFINITY else most // 2


HALF_OF_DESCRIPTORS = _half_of_descriptors()
"""Half of the file descriptors that this process may have; the rest is for its other connections."""
MOST_GRPC_CONNECTIONS = min(2048, HALF_OF_DESCRIPTORS)
"""The most connections of a gRPC server, unless it is told another number."""

GRPC_OPTIONS = (
    # Further connections are closed at once; idle ones are closed to make room.
    ("grpc.max_allowed_incoming_connections", MOST_GRPC_CONNECTIONS),
    ("grpc.max_connection_idle_ms", 300_000),
    # A connection without an HTTP/2 handshake is closed after this (the default is 120 s).
    ("grpc.server_handshake_timeout_ms", 10_000),
    # Pings find peers that have vanished or do not read from their socket.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Routers ping publishers every 2 s to detect dead ones, and gateways ping routers, with calls or
    # without; without the latter option a client may ping every two hours while it has no call.
    ("grpc.http2.min_ping_interval_without_data_ms", 100),
    ("grpc.keepalive_permit_without_calls", 1),
)
"""Options of each gRPC server."""
