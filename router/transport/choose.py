"""Chooses the transport of a server: libnghttp2 where the system has one that limits floods."""

import logging
from collections.abc import Callable, Mapping
from typing import Literal

from warmpath.h2grpc.http2.library import LibraryError, load_library
from warmpath.h2grpc.http2.limits import Http2Limits
from warmpath.h2grpc.method import Gate, Method
from warmpath.router.transport.call import Server
from warmpath.router.transport.grpcio import GrpcioServer
from warmpath.router.transport.nghttp2 import Nghttp2Server

log = logging.getLogger(__name__)

Kind = Literal["auto", "nghttp2", "grpcio"]


def new_server(
    kind: Kind,
    methods: Mapping[str, Method],
    limits: Http2Limits,
    *,
    reuse_port: bool = False,
    gate: Gate | None = None,
    full: Callable[[str], None] = lambda _: None,
) -> Server:
    """Return a server of a kind for methods by name; auto: nghttp2 where it can be used, or else grpcio.

    nghttp2 asks the `gate`, if given, as soon as a call's headers have come. grpcio cannot, and never
    asks it: there the methods alone refuse calls, and later. nghttp2 calls `full` for each connection
    that is closed, since as many as may be are open, with the client's address.

    Raises LibraryError if the kind is nghttp2 and the system lacks a library for it.
    """
    if kind == "grpcio":
        log.info("transport: grpcio, as server.transport says")
        return GrpcioServer(methods, limits, reuse_port=reuse_port)
    try:
        version = load_library().version
    except LibraryError as error:
        if kind == "nghttp2":
            raise
        log.info("transport: grpcio: %s", error)
        return GrpcioServer(methods, limits, reuse_port=reuse_port)
    log.info("transport: nghttp2, libnghttp2 %s", version)
    return Nghttp2Server(methods, limits, reuse_port=reuse_port, gate=gate, full=full)
