"""What the router shows publishers and engines, and recognises them by."""

import ssl
from pathlib import Path

import grpc

from router.config import Probe, Watch


def publisher_credentials(table: Watch, folder: Path) -> grpc.ChannelCredentials | None:
    """Return what publishers are shown, and recognised by; None for plain connections.

    Files are relative to `folder`. Raises OSError.
    """
    if not table.ca:
        return None
    cert, key = ((folder / name).read_bytes() if name else None for name in (table.cert, table.key))
    return grpc.ssl_channel_credentials((folder / table.ca).read_bytes(), key, cert)


def engine_credentials(table: Probe, folder: Path) -> ssl.SSLContext:
    """Return what engines that serve HTTPS are shown, and recognised by.

    Files are relative to `folder`. Raises OSError, which names the file.
    """
    name = table.ca
    try:
        context = ssl.create_default_context(cafile=folder / table.ca if table.ca else None)
        if table.cert:
            name = f"{table.cert}, {table.key}"
            context.load_cert_chain(folder / table.cert, folder / table.key)
    except OSError as error:
        raise OSError(f"probe: {name} cannot be used: {error}") from error
    return context
