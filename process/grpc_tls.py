"""TLS of gRPC's library: credentials that follow changed files (`process.tls`)."""

from collections.abc import Callable

import grpc

from warmpath.process.tls import ClientTls, Pem, ServerTls


def server_credentials(tls: ServerTls) -> grpc.ServerCredentials:
    """Return a listener's credentials; each handshake uses the newest files."""
    taken = tls.pem

    def fetch() -> "grpc.ServerCertificateConfiguration | None":
        # gRPC asks at each handshake, one at a time; None: nothing has changed.
        nonlocal taken
        newest = tls.pem
        if newest is taken:
            return None
        taken = newest
        return _configuration(newest)

    # The stubs do not know that `fetch` may return None.
    return grpc.dynamic_ssl_server_credentials(
        _configuration(taken),
        fetch,  # type: ignore[arg-type]
        require_client_authentication=tls.asks,
    )


def _configuration(pem: Pem) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pem.key, pem.cert)], pem.ca or None)


def channel_credentials(tls: ClientTls) -> Callable[[], grpc.ChannelCredentials]:
    """Return a function that returns the newest credentials of a channel.

    It returns the same object until the files change: a channel keeps the one that it was made with.
    """
    made: tuple[Pem, grpc.ChannelCredentials] | None = None

    def newest() -> grpc.ChannelCredentials:
        nonlocal made
        pem = tls.pem
        if made is None or made[0] is not pem:
            given = [content or None for content in (pem.ca, pem.key, pem.cert)]
            made = pem, grpc.ssl_channel_credentials(*given)
        return made[1]

    return newest
