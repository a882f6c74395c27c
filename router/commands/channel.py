"""The connection of commands to a router: TLS, and the token that says who asks."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

from indexer.process.grpc_tls import channel_credentials
from indexer.process.listen import is_loopback
from indexer.process.tls_files import ClientTls, TlsFilesError, TlsPaths
from router.config.token_file import TokenError, read_token


class ChannelError(Exception):
    """The options do not fit each other, or a file cannot be used; the message names the option."""


def add_channel(parser: argparse.ArgumentParser) -> None:
    """Add the options of the connection."""
    add = parser.add_argument_group("who asks, and whom").add_argument
    add("--tls-ca", type=Path, help="PEM of the router's authority; a plain connection without it")
    add("--tls-cert", type=Path, help="PEM of the certificate to show")
    add("--tls-key", type=Path, help="PEM of its private key")
    add("--token-file", type=Path, help="file with the token to send")


def open_channel(args: argparse.Namespace) -> grpc.Channel:
    """Return the channel that the options describe. Raises ChannelError."""
    channel = _channel(args)
    if args.token_file is None:
        return channel
    try:
        token = read_token(args.token_file)
    except TokenError as error:
        raise ChannelError(f"--token-file: {error}") from None
    return grpc.intercept_channel(channel, _Bearer(token))


def _channel(args: argparse.Namespace) -> grpc.Channel:
    if bool(args.tls_cert) != bool(args.tls_key):
        raise ChannelError("--tls-cert and --tls-key: give both or none")
    if args.tls_ca is None:
        if args.tls_cert:
            raise ChannelError("--tls-cert: needs --tls-ca")
        if args.token_file and not is_loopback(args.router):
            raise ChannelError(
                f"--token-file: would go to {args.router} in plain text; give --tls-ca"
            )
        return grpc.insecure_channel(args.router)
    try:
        tls = ClientTls("the router", TlsPaths(args.tls_ca, args.tls_cert, args.tls_key))
    except TlsFilesError as error:
        raise ChannelError(f"--tls-{error.part}: {error.problem}") from error
    return grpc.secure_channel(args.router, channel_credentials(tls)())


class _Bearer(grpc.UnaryUnaryClientInterceptor):
    """Sends the token with each call."""

    def __init__(self, token: str) -> None:
        self._header = "authorization", f"Bearer {token}"

    def intercept_unary_unary(
        self,
        continuation: Callable[[grpc.ClientCallDetails, Any], Any],
        client_call_details: grpc.ClientCallDetails,
        request: Any,
    ) -> Any:
        """Make the call with the header."""
        given: Any = client_call_details
        sent = given._replace(metadata=[*(given.metadata or ()), self._header])
        return continuation(sent, request)
