"""`warmpath index`: survey the shared index, compare it with the publishers, sweep it, dump it."""

import argparse
import asyncio
import json
import os
import secrets
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from warmpath.cli.asking import print_rich
from warmpath.cli.index import check as index_check
from warmpath.cli.index import stats as index_stats
from warmpath.cli.index.access import Access, AccessError, AccessOptionError, problem_of
from warmpath.cli.index.dump import dump
from warmpath.cli.index.open import add_access, opened
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

ASK_AGAIN = 0.2
"""Seconds between two attempts to take the sweep's lease."""


def main(argv: Sequence[str] | None = None) -> int:
    """Look into the shared index in Redis: stats, check, sweep, dump."""
    args = _parser().parse_args(argv)
    act: Callable[[argparse.Namespace, Access], Awaitable[int]] = args.act
    try:
        return asyncio.run(_run(act, args))
    except BrokenPipeError:
        # The reader has closed the pipe (`| head`); flushing the rest at exit would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FINE
    except (AccessOptionError, OSError) as error:
        print(f"warmpath index: {in_words(error)}", file=sys.stderr)
        return USAGE
    except AccessError as error:
        print(f"warmpath index: {error}", file=sys.stderr)
        return NO_ANSWER


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("index", main.__doc__, "warmpath index stats --config router.toml")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for act, summary, options in (
        (_stats, "count its content by pod, tier and server", ("--json",)),
        (
            _check,
            "compare it with the publishers' snapshots; exit status 1 if they differ",
            ("--json",),
        ),
        (_sweep, "remove the entries that no claim names any more", ("--wait",)),
        (_dump, "write its content as lines of JSON", ("--pod", "--out")),
    ):
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
        for option in options:
            _add(command, option)
    return parser


def _add(parser: argparse.ArgumentParser, option: str) -> None:
    more: dict[str, dict[str, Any]] = {
        "--json": {"action": "store_true", "help": "print one JSON object"},
        "--wait": {
            "action": "store_true",
            "help": "if another process sweeps, wait for its end",
        },
        "--pod": {"default": "", "help": "only the entries of this pod"},
        "--out": {"type": Path, "help": "write into this file, which must not exist"},
    }
    parser.add_argument(option, **more[option])


async def _run(act: Callable[[argparse.Namespace, Access], Awaitable[int]], args: Any) -> int:
    async with opened(args) as access:
        return await act(args, access)


async def _stats(args: argparse.Namespace, access: Access) -> int:
    found = await index_stats.stats(access)
    if args.json:
        print(json.dumps(found))
    else:
        print_rich(index_stats.shown(found))
    return NO_ANSWER if access.lacks() else FINE


async def _check(args: argparse.Namespace, access: Access) -> int:
    checked = await index_check.check(access)
    if args.json:
        print(json.dumps(index_check.as_json(checked)))
    else:
        print_rich(index_check.shown(checked))
    if not checked.is_well:
        return FOUND
    return FINE if checked.is_whole else NO_ANSWER


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
