"""Reads the TLS files of [server.tls], [watch] and [probe].

Those of Redis are read in `indexer.shared.redis.connect`.
"""

from pathlib import Path

from indexer.follow.engine_tls import EngineTls
from indexer.process.tls_files import ClientTls, ServerTls, TlsFilesError, TlsPaths
from router.config import schema as config


class CredentialsError(OSError):
    """A file cannot be used; `at` is the path of the key that names the file."""

    def __init__(self, at: tuple[str, ...], problem: str) -> None:
        super().__init__(f"{'.'.join(at)}: {problem}")
        self.at = at
        self.problem = problem


def server_tls(table: config.ServerTlsTable, folder: Path) -> ServerTls | None:
    """Return the TLS of the listeners; None for plain connections.

    Files are relative to `folder`. Raises CredentialsError.
    """
    if not table.cert:
        return None
    paths = _paths(folder, table.client_ca, table.cert, table.key)
    try:
        return ServerTls("server.tls", paths, http_optional=True)
    except TlsFilesError as error:
        key = "client-ca" if error.part == "ca" else error.part
        raise CredentialsError(("server", "tls", key), error.problem) from error


def publisher_credentials(table: config.WatchTable, folder: Path) -> ClientTls | None:
    """Return the TLS of connections to publishers; None for plain connections.

    Files are relative to `folder`. Raises CredentialsError.
    """
    return _client_tls("watch", table, folder) if table.ca else None


def engine_credentials(table: config.ProbeTable, folder: Path) -> EngineTls:
    """Return the TLS of connections to engines that serve HTTPS.

    Files are relative to `folder`. Raises CredentialsError.
    """
    return EngineTls(_client_tls("probe", table, folder), table.server_name or None)


def _client_tls(name: str, table: config.WatchTable | config.ProbeTable, folder: Path) -> ClientTls:
    try:
        return ClientTls(name, _paths(folder, table.ca, table.cert, table.key))
    except TlsFilesError as error:
        raise CredentialsError((name, error.part), error.problem) from error


def _paths(folder: Path, *names: str) -> TlsPaths:
    return TlsPaths(*(folder / name if name else None for name in names))
