"""Opens the shared index for `warmpath index`, where its options or a router's configuration say."""

import argparse
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc

from warmpath.cli.asking import seconds
from warmpath.cli.index.access import Access, AccessOptionError, EmptyIndexError
from warmpath.indexer.shared.layout.names import KeyNames, prefix_problem
from warmpath.indexer.shared.redis.address import AddressError
from warmpath.process.grpc_tls import channel_credentials
from warmpath.router.config.files import publisher_credentials
from warmpath.router.config.read import ConfigError, load

TIMEOUT = 10.0
FILES = ("password_file", "ca", "cert", "key")


def add_access(parser: argparse.ArgumentParser) -> None:
    """Add the options for the index's address and credentials."""
    add = parser.add_argument
    add("--config", type=Path, metavar="ROUTER.toml", help="take all from its [shared-index]")
    add("--url", default="", help="redis://, redis-cluster:// or redis-sentinel://, or rediss…")
    add("--prefix", type=_prefix, help="prefix of the deployment's keys; warmpath by default")
    add("--user", default="", help="ACL user")
    add("--password-file", default="", help="file with the password")
    add("--ca", default="", help="PEM of the authority that the servers are recognised by")
    add("--cert", default="", help="PEM of the certificate to show")
    add("--key", default="", help="PEM of its private key")
    add("--timeout", type=seconds, default=TIMEOUT, help="seconds that an answer may take")


def _prefix(text: str) -> str:
    if problem := prefix_problem(text):
        raise argparse.ArgumentTypeError(f"{text!r} {problem}")
    return text


@asynccontextmanager
async def opened(args: argparse.Namespace, *, may_be_empty: bool = False) -> AsyncIterator[Access]:
    """Open the index that the options name. Raises AccessError and AccessOptionError.

    Unless `may_be_empty`, EmptyIndexError too.
    """
    try:
        # An extra of the package, which routers without a shared index need not install.
        from warmpath.indexer.shared.redis.connect import RedisSettings, SettingsError, connect  # noqa: PLC0415
    except ImportError as error:
        raise AccessOptionError(f"needs warmpath-router[redis]: {error}") from error
    where = _where(args)
    try:
        settings = RedisSettings(where.url, where.user, **where.files, named=where.named)
        redis = await connect(settings)
    except (AddressError, SettingsError) as error:
        raise AccessOptionError(str(error)) from error
    try:
        access = Access(
            redis, KeyNames(where.prefix), where.url, named=where.named, timeout=args.timeout
        )
        access.credentials = where.credentials
        access.configured = where.pods
        try:
            await access.check_schema()
        except EmptyIndexError as error:
            if not may_be_empty:
                raise
            access.lacking = str(error)
        yield access
    finally:
        await redis.close()


@dataclass(frozen=True, slots=True)
class _Where:
    url: str
    user: str
    prefix: str
    files: dict[str, str]
    named: str
    """The prefix of these settings' names where the user can change them."""
    credentials: grpc.ChannelCredentials | None = None
    pods: tuple[str, ...] = ()


def _where(args: argparse.Namespace) -> _Where:
    """Return the settings from the options and the --config file; options take precedence."""
    files = {name: getattr(args, name) for name in FILES}
    if args.config is None:
        if not args.url:
            raise AccessOptionError("where is the index? Give --config ROUTER.toml or --url")
        return _Where(args.url, args.user, args.prefix or "warmpath", files, "--")
    folder = args.config.parent
    try:
        config = load(args.config, os.environ)
        publishers = publisher_credentials(config.watch, folder)
    except (ConfigError, OSError) as error:
        raise AccessOptionError(str(error)) from error
    table = config.shared_index
    if not table.url and not args.url:
        raise AccessOptionError(f"{args.config}: [shared-index] has no url, and no --url is given")
    is_overridden = any((args.url, args.user, args.prefix, *files.values()))
    for name in FILES:
        if not files[name] and getattr(table, name):
            files[name] = os.fspath(folder / getattr(table, name))
    return _Where(
        args.url or table.url,
        args.user or table.user,
        args.prefix or table.prefix,
        files,
        # An option may hide a key of the file, and any of them can be given as an option.
        "--" if is_overridden else "shared-index.",
        channel_credentials(publishers)() if publishers else None,
        tuple(pod.id for pod in config.pods if not pod.events and not pod.watch),
    )
