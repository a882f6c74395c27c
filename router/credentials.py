"""What the router shows publishers, and recognises them by."""

from pathlib import Path

import grpc

from router.config import Watch


def publisher_credentials(table: Watch, folder: Path) -> grpc.ChannelCredentials | None:
    """Return what publishers are shown, and recognised by; None for plain connections.

    Files are relative to `folder`. Raises OSError.
    """
    if not table.ca:
        return None
    cert, key = ((folder / name).read_bytes() if name else None for name in (table.cert, table.key))
    return grpc.ssl_channel_credentials((folder / table.ca).read_bytes(), key, cert)
