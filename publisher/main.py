"""`warmpath publish`: the sidecar beside an engine."""

import argparse
import asyncio
import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import zmq

from warmpath.indexer.engines.table import ENGINES
from warmpath.indexer.follow.endpoint import endpoint_problem, ports_meet
from warmpath.indexer.shared.layout.names import prefix_problem
from warmpath.indexer.shared.layout.record import LEAST_LEASE, MOST_LEASE
from warmpath.indexer.shared.redis.address import AddressError, contradictions, parse
from warmpath.process.address import is_host_port
from warmpath.process.command_line import command_parser, in_words
from warmpath.process.http_listener import ignore_malformed_http
from warmpath.process.logs import FORMS, formatter, limited_handler
from warmpath.process.reread import problem_of
from warmpath.process.signals import on_signals
from warmpath.publisher.assemble import exposed, publishing
from warmpath.publisher.settings import HELP, Settings

MOST_RANKS = 1024

PARENT_SECONDS = 0.5

OF_ITS_OWN: Mapping[str, Mapping[str, Any]] = {
    "pod": {"required": True}, "model": {"required": True},
    "engine": {"default": "vllm", "choices": tuple(ENGINES)}, "events": {"required": True},
    "log_format": {"default": "text", "choices": FORMS},
    "exit_with_parent": {"action": "store_true"},
    "tls_client_name": {"action": "append", "default": []}, "insecure": {"action": "store_true"},
}  # fmt: skip
"""Options that are more than a value with a default, as `argparse` takes them."""


def main(argv: Sequence[str] | None = None) -> int:
    """Follow an engine and send routers the keys of its blocks, until SIGTERM or Ctrl-C."""
    parser = _parser()
    options = vars(parser.parse_args(argv))
    handler = limited_handler(time.monotonic)
    handler.setFormatter(formatter(options.pop("log_format")))
    logging.basicConfig(handlers=[handler], level=logging.INFO)
    ignore_malformed_http()
    bound_to = os.getppid() if options.pop("exit_with_parent") else None
    settings = Settings(**options)
    if problem := next(_problems(settings), ""):
        parser.error(problem)
    for option in ("prefix", "user", "password_file", "ca", "cert", "key", "lease_seconds"):
        name = f"redis_{option}"
        if not settings.redis and options[name] != parser.get_default(name):
            parser.error(f"{_flag(name)}: needs --redis")
    try:
        asyncio.run(_publish(settings, bound_to))
    except (OSError, ValueError, zmq.ZMQError) as error:
        print(f"warmpath publish: {in_words(error)}", file=sys.stderr)  # noqa: T201  the command line
        return 1
    return 0


def _flag(option: str) -> str:
    return f"--{option.replace('_', '-')}"


def _problems(settings: Settings) -> Iterator[str]:
    for of in ("tls", "engine"):
        if bool(getattr(settings, f"{of}_cert")) != bool(getattr(settings, f"{of}_key")):
            yield f"--{of}-cert and --{of}-key: give both or none"
    if settings.tls_client_ca and not settings.tls_cert:
        yield "--tls-client-ca: needs --tls-cert and --tls-key"
    if settings.tls_client_name and not settings.tls_client_ca:
        yield "--tls-client-name: needs --tls-client-ca"
    for option in ("listen", "metrics_listen", "advertise"):
        value = getattr(settings, option)
        # Others connect to these addresses, so each needs a host.
        if (value or option == "listen") and (value[:1] == ":" or not is_host_port(value)):
            yield f"{_flag(option)}: {value!r} is not host:port"
    for flag, address, lacks in () if settings.insecure else exposed(settings):
        yield f"{flag}: {address} is reached by other machines: it needs {lacks}, or --insecure"
    for option in ("engine_ca", "engine_cert"):
        if getattr(settings, option) and not settings.events.startswith("https://"):
            yield f"{_flag(option)}: needs --events https://…"
    if not settings.pod or not settings.model:
        yield "--pod and --model: neither may be empty"
    if settings.ranks > MOST_RANKS:
        yield f"--ranks: at most {MOST_RANKS}"
    is_polled = ENGINES[settings.engine].is_polled
    if is_polled and not settings.events.startswith(("http://", "https://")):
        yield f"--events: {settings.events!r} is not http://host:port/kv_cache_events"
    yield from _file_problems(
        settings, ("tls_cert", "tls_key", "tls_client_ca", "engine_ca", "engine_cert", "engine_key")
    )
    if not is_polled:
        for option in ("events", "replay"):
            value = getattr(settings, option)
            if value and (problem := endpoint_problem(value, settings.first_rank + settings.ranks)):
                yield f"--{option}: {problem}"
        if problem := ports_meet(settings.events, settings.replay, settings.ranks):
            yield f"--replay: {problem}"
    for option, low in (
        ("ranks", 1), ("first_rank", 0),
        ("blocks", 0), ("block_size", 1), ("journal_bytes", 1), ("max_watchers", 1),
    ):  # fmt: skip
        if getattr(settings, option) < low:
            yield f"{_flag(option)}: at least {low}"
    if settings.redis:
        yield from _redis_problems(settings)
    elif settings.advertise:
        yield "--advertise: needs --redis"


def _redis_problems(settings: Settings) -> Iterator[str]:
    if problem := prefix_problem(settings.redis_prefix):
        yield f"--redis-prefix: {problem}"
    if not LEAST_LEASE <= settings.redis_lease_seconds <= MOST_LEASE:
        yield f"--redis-lease-seconds: {LEAST_LEASE} to {MOST_LEASE}"
    try:
        address = parse(settings.redis, named="--redis-")
    except AddressError as error:
        yield f"--redis: {error}"
        return
    for name, problem in contradictions(address, settings.redis_access(), named="--redis-"):
        yield f"--redis-{name}: {problem}"
    files = ("redis_password_file", "redis_ca", "redis_cert", "redis_key")
    yield from _file_problems(settings, files)


def _file_problems(settings: Settings, options: Sequence[str]) -> Iterator[str]:
    for option in options:
        path = getattr(settings, option)
        if path and (problem := problem_of(Path(path))):
            yield f"{_flag(option)}: {problem}"


def _parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "publish",
        main.__doc__,
        "warmpath publish --pod pod-1 --model demo --events tcp://127.0.0.1:5557 --replay tcp://127.0.0.1:5558",
    )
    defaults = {field.name: field.default for field in fields(Settings)}
    for name, text in HELP.items():
        default = defaults.get(name)
        kind: Mapping[str, Any] = OF_ITS_OWN.get(name) or {
            # The options without a default in this table are paths.
            "type": Path if default is None else type(default),
            "default": default,
        }
        parser.add_argument(_flag(name), help=text, **kind)
    return parser


async def _publish(settings: Settings, bound_to: int | None) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    on_signals(loop, ended.set)
    async with publishing(settings) as running:
        ready = {"ready": True, "address": running.address, "epoch": running.cache.journal.epoch}
        print(json.dumps(ready), flush=True)  # noqa: T201  a starter waits for this line
        while bound_to in (None, os.getppid()) and not ended.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), PARENT_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
