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
from dataclasses import dataclass
from pathlib import Path

import grpc

from warmpath.cli.asking import print_rich, seconds
from warmpath.cli.index import stats as index_stats
from warmpath.cli.index.access import (
    Access,
    AccessError,
    AccessOptionError,
    problem_of,
)
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
    """Open the index that the options name. Raises AccessError and AccessOptionError."""
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
        await access.check_schema()
        if access.lacking and not may_be_empty:
            raise AccessError(access.lacking)
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


Act = Callable[[argparse.Namespace, Access], Awaitable[int]]
"""What a command does with the index; returns its exit status."""
ASK_AGAIN = 0.2


def main(argv: Sequence[str] | None = None) -> int:
    """Look into the shared index in Redis: stats, sweep, dump."""
    args = _parser().parse_args(argv)
    return act_on_index("index", args.act, args)


def act_on_index(command: str, act: Act, args: argparse.Namespace) -> int:
    """Open the index that the options name and do `act`; return its exit status, or an error's."""
    try:
        return asyncio.run(_act(act, args))
    except BrokenPipeError:
        # The reader has closed the pipe (`| head`); flushing the rest at exit would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FINE
    except (AccessOptionError, OSError) as error:
        print(f"warmpath {command}: {in_words(error)}", file=sys.stderr)
        return USAGE
    except AccessError as error:
        print(f"warmpath {command}: {error}", file=sys.stderr)
        return NO_ANSWER


async def _act(act: Act, args: argparse.Namespace) -> int:
    async with opened(args) as access:
        return await act(args, access)


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("index", main.__doc__, "warmpath index stats --config router.toml")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(act: Act, summary: str) -> argparse.ArgumentParser:
        name = act.__name__.removeprefix("_")
        command = commands.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            formatter_class=Help,
            epilog=f"example:\n  warmpath index {name} --config router.toml",
        )
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
    if args.out is None:
        async for line in dump(access, args.pod):
            print(line)
        sys.stdout.flush()
    else:
        is_whole = False
        file = args.out.open("x", encoding="utf-8")
        try:
            with file:
                async for line in dump(access, args.pod):
                    file.write(f"{line}\n")
            is_whole = not access.lacks()
        finally:
            # An empty file would be in the way of the next attempt.
            if not is_whole and not args.out.stat().st_size:
                args.out.unlink()
    if lacks := access.lacks():
        print(f"warmpath index: {lacks}", file=sys.stderr)
        return NO_ANSWER
    return FINE
