"""The options of `warmpath publish`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from warmpath.indexer.follow.instance import Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(Engine):
    """The engine to follow and the other options, which `--help` explains (`publisher.main`)."""

    hash_seed: str
    listen: str
    metrics_listen: str
    journal_bytes: int
    max_watchers: int
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    tls_client_name: Sequence[str] = ()
    """Names in callers' certificates; empty: any name will do."""
    insecure: bool = False
    engine_ca: Path | None = None
    """None: the system's authorities vouch for an engine that serves its events over HTTPS."""
    engine_cert: Path | None = None
    engine_key: Path | None = None
    advertise: str = ""
    """The address at which others reach the publisher; empty: `listen`, unless that is a wildcard."""
    redis: str = ""
    """URL of the shared index; empty: the publisher writes to none."""
    redis_prefix: str = "warmpath"
    redis_user: str = ""
    redis_password_file: str = ""
    redis_ca: str = ""
    redis_cert: str = ""
    redis_key: str = ""
    redis_lease_seconds: float = 10.0
