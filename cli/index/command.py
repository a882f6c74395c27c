"""`warmpath index`: survey the shared index, sweep it, dump it.

Its options or a router's configuration say where the index is.
"""

import argparse
import asyncio
import json
import os
import secrets
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from warmpath.cli.asking import print_rich, seconds
from warmpath.cli.index import stats as index_stats
from warmpath.cli.index.access import Access, AccessError, problem_of
from warmpath.cli.index.dump import dump
from warmpath.indexer.shared.layout.names import KeyNames, prefix_problem
from warmpath.indexer.shared.redis.address import AddressError
from warmpath.indexer.shared.sweep.sweeper import AT_REST, SWEEP_ERRORS, Sweeper
from warmpath.process.command_line import (
    FINE,
    FOUND,
    NO_ANSWER,
    USAGE,
    Help,
    command_parser,
    in_words,
)
from warmpath.process.grpc_tls import channel_credentials
from warmpath.process.tls import ClientTls
from warmpath.router.config.files import publisher_credentials
from warmpath.router.config.read import ConfigError, load
from warmpath.router.config.schema import Config

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
    """Open the options' index. Raises AccessError, for an empty one unless `may_be_empty`, too."""
    try:
        # An extra of the package, which routers without a shared index need not install.
        from warmpath.indexer.shared.redis.connect import RedisSettings, SettingsError, connect  # noqa: PLC0415
    except ImportError as error:
        raise AccessError(f"needs warmpath-router[redis]: {error}", status=USAGE) from error
    named, publishers = "--", None
    pods: tuple[str, ...] = ()
    url, user, prefix = args.url, args.user, args.prefix
    files = {name: getattr(args, name) for name in FILES}
    if args.config is not None:
        config, publishers = _configured(args.config)
        table = config.shared_index
        if not any((url, user, prefix, *files.values())):
            # Else an option may hide a key of the file, and any of them can be given as an option.
            named = "shared-index."
        url, user, prefix = url or table.url, user or table.user, prefix or table.prefix
        for name in FILES:
            if not files[name] and getattr(table, name):
                files[name] = os.fspath(args.config.parent / getattr(table, name))
        pods = tuple(pod.id for pod in config.pods if not pod.events and not pod.watch)
    if not url:
        lacks = "where is the index? Give --config ROUTER.toml or --url"
        if args.config is not None:
            lacks = f"{args.config}: [shared-index] has no url, and no --url is given"
        raise AccessError(lacks, status=USAGE)
    try:
        redis = await connect(RedisSettings(url, user, **files, named=named))
    except (AddressError, SettingsError) as error:
        raise AccessError(str(error), status=USAGE) from error
    try:
        credentials = channel_credentials(publishers)() if publishers else None
        names = KeyNames(prefix or "warmpath")
        access = Access(redis, names, url, args.timeout, named, credentials, pods)
        await access.check_schema()
        if access.lacking and not may_be_empty:
            raise AccessError(access.lacking)
        yield access
    finally:
        await redis.close()


def _configured(file: Path) -> tuple[Config, ClientTls | None]:
    try:
        config = load(file, os.environ)
        return config, publisher_credentials(config.watch, file.parent)
    except (ConfigError, OSError) as error:
        raise AccessError(str(error), status=USAGE) from error


Act = Callable[[argparse.Namespace, Access], Awaitable[int]]
"""A subcommand's work on the index, by its options; returns the exit status."""
ASK_AGAIN = 0.2


def main(argv: Sequence[str] | None = None) -> int:
    """Look into the shared index in Redis: stats, sweep, dump."""
    args = _parser().parse_args(argv)
    return act_on_index("index", args.act, args)


def act_on_index(command: str, act: Act, args: argparse.Namespace) -> int:
    """Open the index that the options name and do `act`; return its exit status, or an error's."""

    async def acted() -> int:
        async with opened(args) as access:
            return await act(args, access)

    try:
        return asyncio.run(acted())
    except BrokenPipeError:
        raise  # `main` ends quietly
    except (AccessError, OSError) as error:
        print(f"warmpath {command}: {in_words(error)}", file=sys.stderr)
        return error.status if isinstance(error, AccessError) else USAGE


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("index", main.__doc__, "warmpath index stats --config router.toml")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(act: Act, summary: str) -> argparse.ArgumentParser:
        name = act.__name__.removeprefix("_")
        command = commands.add_parser(
            name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.",
            formatter_class=Help, epilog=f"example:\n  warmpath index {name} --config router.toml",
        )  # fmt: skip
        command.set_defaults(act=act)
        add_access(command)
        return command

    stats = add(_stats, "count its content by pod, tier and server")
    stats.add_argument("--json", action="store_true", help="print one JSON object")
    sweep = add(_sweep, "remove the entries that no claim names any more")
    sweep.add_argument(
        "--wait", action="store_true", help="if another process sweeps, wait for its end"
    )
    dumped = add(_dump, "write its content as lines of JSON")
    dumped.add_argument("--pod", default="", help="only the entries of this pod")
    dumped.add_argument("--out", type=Path, help="write into this file, which must not exist")
    return parser


async def _stats(args: argparse.Namespace, access: Access) -> int:
    found = await index_stats.stats(access)
    if args.json:
        print(json.dumps(found))
    else:
        print_rich(index_stats.shown(found))
    return NO_ANSWER if access.lacks() else FINE


async def _sweep(args: argparse.Namespace, access: Access) -> int:
    owner = f"warmpath index on {socket.gethostname()} {secrets.token_hex(4)}"
    sweeper = Sweeper(
        access.redis, access.names, owner=owner, clock=time.monotonic, timeout=access.timeout
    )
    try:
        while holder := await sweeper.sweep(insist=True):
            if not args.wait:
                who = holder.removeprefix(AT_REST)
                print(f"warmpath index: {who} is sweeping now (--wait waits)", file=sys.stderr)
                return FOUND
            await asyncio.sleep(ASK_AGAIN)
    except SWEEP_ERRORS as error:
        problem = problem_of(error, access.url)
        raise AccessError(f"not swept to the end: {problem}") from error
    counts = sweeper.counts
    print(
        f"{counts.fields:,} fields looked at, dead slots taken out of {counts.purged:,}; "
        f"{counts.retired:,} checkpoints of pods that are gone deleted, "
        f"{counts.forgotten:,} pods forgotten"
    )
    if counts.doubted:
        print(f"{counts.doubted:,} buckets were left alone: a pod was claimed again meanwhile")
    if counts.healed:
        print(f"{counts.healed:,} keys and fields removed that warmpath cannot have written")
    return FINE


async def _dump(args: argparse.Namespace, access: Access) -> int:
    file = sys.stdout if args.out is None else args.out.open("x", encoding="utf-8")
    is_whole = False
    try:
        async for line in dump(access, args.pod):
            print(line, file=file)
        file.flush()
        is_whole = not access.lacks()
    finally:
        if args.out is not None:
            file.close()
            # An empty file would be in the way of the next attempt.
            if not is_whole and not args.out.stat().st_size:
                args.out.unlink()
    if not is_whole:
        print(f"warmpath index: {access.lacks()}", file=sys.stderr)
    return FINE if is_whole else NO_ANSWER
