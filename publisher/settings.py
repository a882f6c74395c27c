"""The options of `warmpath publish`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from warmpath.indexer.follow.instance import Engine
from warmpath.indexer.shared.redis.address import ACCESS


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(Engine):
    """The engine to follow and the other options, each of which `HELP` explains."""

    hash_seed: str = ""
    listen: str = "127.0.0.1:7500"
    advertise: str = ""
    metrics_listen: str = "127.0.0.1:7501"
    journal_bytes: int = 16 << 20
    max_watchers: int = 64
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    tls_client_name: Sequence[str] = ()
    insecure: bool = False
    engine_ca: Path | None = None
    engine_cert: Path | None = None
    engine_key: Path | None = None
    redis: str = ""
    redis_prefix: str = "warmpath"
    redis_user: str = ""
    redis_password_file: str = ""
    redis_ca: str = ""
    redis_cert: str = ""
    redis_key: str = ""
    redis_lease_seconds: float = 10.0

    def redis_access(self) -> dict[str, str]:
        return {name: getattr(self, f"redis_{name}") for name in ACCESS}


HELP = {
    "pod": "the pod's id, as the routers' configuration names it",
    "model": "the base model's name, as the routers' configuration has it",
    "engine": "its kind",
    "events": "the engine's events: tcp://host:port, or http://… (trtllm)",
    "replay": "replay endpoint; without one a gap cannot be closed",
    "topic": "the exact topic of the engine's events; any by default",
    "ranks": "data-parallel ranks; ports count up from rank 0's",
    "first_rank": "the engine's own number of the first rank, if this engine has only some of the ranks",
    "blocks": "blocks of a rank's cache, to heal degraded trust and to notice drift; 0: unknown",
    "block_size": "trtllm's tokens_per_block",
    "hash_seed": "the routers' index.hash-seed",
    "listen": "host:port of gRPC; port 0: a free port",
    "advertise": "host:port at which others (such as `warmpath check-index`) reach this publisher;"
    " by default that of --listen, if it names a host",
    "metrics_listen": "host:port of /metrics; empty: none",
    "log_format": "the form of log lines",
    "journal_bytes": "bytes of deltas for routers that were away",
    "max_watchers": "routers served at once",
    "exit_with_parent": "end when the parent process ends",
    "tls_cert": "certificate chain, PEM; plain text without one",
    "tls_key": "the certificate's private key, PEM",
    "tls_client_ca": "routers, and who asks for metrics, must show a certificate of this authority, PEM",
    "tls_client_name": "a DNS or URI name, or the common name, in the certificates of those who may ask;"
    " may be repeated; any by default",
    "insecure": "let other machines reach the listeners without --tls-cert or --tls-client-ca",
    "engine_ca": "authority of an engine with --events https://…, PEM; the system's by default",
    "engine_cert": "certificate chain to show to the engine, PEM",
    "engine_key": "the private key of --engine-cert, PEM",
    "redis": "URL of the shared index: redis://host:port, redis-cluster://…",
    "redis_prefix": "the beginning of every key in Redis",
    "redis_user": "ACL user; Redis' default user if not given",
    "redis_password_file": "file that holds the password",
    "redis_ca": "authorities that sign the servers' certificates, PEM",
    "redis_cert": "client certificate chain, PEM",
    "redis_key": "the client certificate's private key, PEM",
    "redis_lease_seconds": "seconds after which a pod whose publisher is gone counts as holding nothing",
}
"""What each option is for, in the order of the help."""
