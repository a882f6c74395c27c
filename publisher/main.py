"""`warmpath publish`: the sidecar beside an engine."""

import argparse
import asyncio
import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import zmq

from warmpath.indexer.engines.table import ENGINES
from warmpath.indexer.follow.endpoint import endpoint_problem, ports_meet
from warmpath.indexer.shared.layout.names import prefix_problem
from warmpath.indexer.shared.layout.record import LEAST_LEASE, MOST_LEASE
from warmpath.indexer.shared.redis.address import AddressError, contradictions, parse
from warmpath.process.command_line import command_parser, in_words
from warmpath.process.listen import ignore_malformed_http, is_host_port
from warmpath.process.logs import FORMS, formatter, limited_handler
from warmpath.process.reread import problem_of
from warmpath.process.signals import on_signals
from warmpath.publisher.assemble import publishing
from warmpath.publisher.entrance import exposed
from warmpath.publisher.settings import Settings

MOST_RANKS = 1024

PARENT_SECONDS = 0.5
"""Pause between two checks whether the parent still runs."""


def main(argv: Sequence[str] | None = None) -> int:
    """Follow an engine and send routers the keys of its blocks, until SIGTERM or Ctrl-C."""
    parser = _parser()
    args = parser.parse_args(argv)
    handler = limited_handler(time.monotonic)
    handler.setFormatter(formatter(args.log_format))
    logging.basicConfig(handlers=[handler], level=logging.INFO)
    ignore_malformed_http()
    if bool(args.tls_cert) != bool(args.tls_key):
        parser.error("--tls-cert and --tls-key: give both or none")
    if args.tls_client_ca and not args.tls_cert:
        parser.error("--tls-client-ca: needs --tls-cert and --tls-key")
    if args.tls_client_name and not args.tls_client_ca:
        parser.error("--tls-client-name: needs --tls-client-ca")
    for option in ("listen", "metrics_listen", "advertise"):
        value = getattr(args, option)
        # Others connect to these addresses, so each needs a host.
        if (value or option == "listen") and (value[:1] == ":" or not is_host_port(value)):
            parser.error(f"--{option.replace('_', '-')}: {value!r} is not host:port")
    if not args.insecure:
        asks = bool(args.tls_client_ca)
        for option, address, lacks in exposed(
            args.listen, args.metrics_listen, has_tls=bool(args.tls_cert), asks=asks
        ):
            problem = f"{address} is reached by other machines: it needs {lacks}, or --insecure"
            parser.error(f"{option}: {problem}")
    if bool(args.engine_cert) != bool(args.engine_key):
        parser.error("--engine-cert and --engine-key: give both or none")
    for option in ("engine_ca", "engine_cert"):
        if getattr(args, option) and not args.events.startswith("https://"):
            parser.error(f"--{option.replace('_', '-')}: needs --events https://…")
    if not args.pod or not args.model:
        parser.error("--pod and --model: neither may be empty")
    if args.ranks > MOST_RANKS:
        parser.error(f"--ranks: at most {MOST_RANKS}")
    if ENGINES[args.engine].is_polled and not args.events.startswith(("http://", "https://")):
        parser.error(f"--events: {args.events!r} is not http://host:port/kv_cache_events")
    files = "tls_cert", "tls_key", "tls_client_ca", "engine_ca", "engine_cert", "engine_key"
    if problem := _file_problem(args, files):
        parser.error(problem)
    if not ENGINES[args.engine].is_polled:
        for option in ("events", "replay"):
            value = getattr(args, option)
            if value and (problem := endpoint_problem(value, args.first_rank + args.ranks)):
                parser.error(f"--{option}: {problem}")
        if problem := ports_meet(args.events, args.replay, args.ranks):
            parser.error(f"--replay: {problem}")
    for option, low in (
        ("ranks", 1), ("first_rank", 0),
        ("blocks", 0), ("block_size", 1), ("journal_bytes", 1), ("max_watchers", 1),
    ):  # fmt: skip
        if getattr(args, option) < low:
            parser.error(f"--{option.replace('_', '-')}: at least {low}")
    if args.redis:
        if problem := prefix_problem(args.redis_prefix):
            parser.error(f"--redis-prefix: {problem}")
        if not LEAST_LEASE <= args.redis_lease_seconds <= MOST_LEASE:
            parser.error(f"--redis-lease-seconds: {LEAST_LEASE} to {MOST_LEASE}")
        if problem := _redis_problem(args):
            parser.error(problem)
    if args.advertise and not args.redis:
        parser.error("--advertise: needs --redis")
    for option in ("prefix", "user", "password_file", "ca", "cert", "key", "lease_seconds"):
        name = f"redis_{option}"
        if not args.redis and getattr(args, name) != parser.get_default(name):
            parser.error(f"--redis-{option.replace('_', '-')}: needs --redis")
    options = vars(args)
    del options["log_format"]
    bound_to = os.getppid() if options.pop("exit_with_parent") else None
    try:
        asyncio.run(_publish(Settings(**options), bound_to))
    except (OSError, ValueError, zmq.ZMQError) as error:
        print(f"warmpath publish: {in_words(error)}", file=sys.stderr)  # noqa: T201  the command line
        return 1
    return 0


def _redis_problem(args: argparse.Namespace) -> str:
    try:
        address = parse(args.redis, named="--redis-")
    except AddressError as error:
        return f"--redis: {error}"
    found = contradictions(
        address,
        ca=args.redis_ca,
        cert=args.redis_cert,
        key=args.redis_key,
        user=args.redis_user,
        password_file=args.redis_password_file,
        named="--redis-",
    )
    for name, problem in found:
        return f"--redis-{name}: {problem}"
    return _file_problem(args, ("redis_password_file", "redis_ca", "redis_cert", "redis_key"))


def _file_problem(args: argparse.Namespace, options: Sequence[str]) -> str:
    for option in options:
        path = getattr(args, option)
        if path and (problem := problem_of(Path(path))):
            return f"--{option.replace('_', '-')}: {problem}"
    return ""


def _parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "publish",
        main.__doc__,
        "warmpath publish --pod pod-1 --model demo --events tcp://127.0.0.1:5557 --replay tcp://127.0.0.1:5558",
    )
    add = parser.add_argument
    add("--pod", required=True, help="the pod's id, as the routers' configuration names it")
    add(
        "--model", required=True, help="the base model's name, as the routers' configuration has it"
    )
    add("--engine", default="vllm", choices=tuple(ENGINES), help="its kind")
    add(
        "--events", required=True, help="the engine's events: tcp://host:port, or http://… (trtllm)"
    )
    add("--replay", default="", help="replay endpoint; without one a gap cannot be closed")
    add("--topic", default="", help="the exact topic of the engine's events; any by default")
    add("--ranks", type=int, default=1, help="data-parallel ranks; ports count up from rank 0's")
    add(
        "--first-rank", type=int, default=0,
        help="the engine's own number of the first rank, if this engine has only some of the ranks",
    )  # fmt: skip
    add(
        "--blocks",
        type=int,
        default=0,
        help="blocks of a rank's cache, to heal degraded trust and to notice drift; 0: unknown",
    )
    add("--block-size", type=int, default=32, help="trtllm's tokens_per_block")
    add("--hash-seed", default="", help="the routers' index.hash-seed")
    add("--listen", default="127.0.0.1:7500", help="host:port of gRPC; port 0: a free port")
    add(
        "--advertise", default="",
        help="host:port at which others (such as `warmpath check-index`) reach this publisher;"
        " by default that of --listen, if it names a host",
    )  # fmt: skip
    add("--metrics-listen", default="127.0.0.1:7501", help="host:port of /metrics; empty: none")
    add("--log-format", default="text", choices=FORMS, help="the form of log lines")
    add(
        "--journal-bytes",
        type=int,
        default=16 << 20,
        help="bytes of deltas for routers that were away",
    )
    add("--max-watchers", type=int, default=64, help="routers served at once")
    add("--exit-with-parent", action="store_true", help="end when the parent process ends")
    add("--tls-cert", type=Path, help="certificate chain, PEM; plain text without one")
    add("--tls-key", type=Path, help="the certificate's private key, PEM")
    add(
        "--tls-client-ca", type=Path,
        help="routers, and who asks for metrics, must show a certificate of this authority, PEM",
    )  # fmt: skip
    add(
        "--tls-client-name", action="append", default=[],
        help="a DNS or URI name, or the common name, in the certificates of those who may ask;"
        " may be repeated; any by default",
    )  # fmt: skip
    add(
        "--insecure", action="store_true",
        help="let other machines reach the listeners without --tls-cert or --tls-client-ca",
    )  # fmt: skip
    add(
        "--engine-ca", type=Path,
        help="authority of an engine with --events https://…, PEM; the system's by default",
    )  # fmt: skip
    add("--engine-cert", type=Path, help="certificate chain to show to the engine, PEM")
    add("--engine-key", type=Path, help="the private key of --engine-cert, PEM")
    add("--redis", default="", help="URL of the shared index: redis://host:port, redis-cluster://…")
    add("--redis-prefix", default="warmpath", help="the beginning of every key in Redis")
    add("--redis-user", default="", help="ACL user; Redis' default user if not given")
    add("--redis-password-file", default="", help="file that holds the password")
    add("--redis-ca", default="", help="authorities that sign the servers' certificates, PEM")
    add("--redis-cert", default="", help="client certificate chain, PEM")
    add("--redis-key", default="", help="the client certificate's private key, PEM")
    add(
        "--redis-lease-seconds", type=float, default=10.0,
        help="seconds after which a pod whose publisher is gone counts as holding nothing",
    )  # fmt: skip
    return parser


async def _publish(settings: Settings, bound_to: int | None) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    on_signals(loop, ended.set)
    async with publishing(settings) as running:
        ready = {"ready": True, "address": running.address, "epoch": running.epoch}
        print(json.dumps(ready), flush=True)  # noqa: T201  a starter waits for this line
        while bound_to in (None, os.getppid()) and not ended.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), PARENT_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
