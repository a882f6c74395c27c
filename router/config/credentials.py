"""Reads the TLS files of [watch] and [probe]: certificates to show publishers and engines, and CAs.

Those of Redis are read in `indexer.shared.redis.connect`. The router's own gRPC port has no TLS.
"""

import ssl
from pathlib import Path

import grpc

from indexer.follow.engine_tls import EngineTls
from router.config.schema import Probe, Watch


class CredentialsError(OSError):
    """A file of [probe] cannot be used; `key` is the table's key that names the file."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"probe.{key}: {problem}")
        self.key = key
        self.problem = problem


def publisher_credentials(table: Watch, folder: Path) -> grpc.ChannelCredentials | None:
    """Return the credentials for connections to publishers; None for plain connections.

    Files are relative to `folder`. Raises OSError.
    """
    if not table.ca:
        return None
    cert, key = ((folder / name).read_bytes() if name else None for name in (table.cert, table.key))
    return grpc.ssl_channel_credentials((folder / table.ca).read_bytes(), key, cert)


def engine_credentials(table: Probe, folder: Path) -> EngineTls:
    """Return the credentials for connections to engines that serve HTTPS.

    Files are relative to `folder`. Raises CredentialsError.
    """
    key, files = "ca", table.ca
    try:
        context = ssl.create_default_context(cafile=folder / table.ca if table.ca else None)
        if table.cert:
            key, files = "cert", f"{table.cert} with {table.key}"
            # Without a given password, OpenSSL would ask for one at the terminal.
            context.load_cert_chain(folder / table.cert, folder / table.key, password="")
    except OSError as error:
        raise CredentialsError(key, f"{files} cannot be used: {error}") from error
    return EngineTls(context, table.server_name or None)
