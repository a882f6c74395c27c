"""Makes all checks of a deployment: of every pod at once, each for a bounded time.

Besides the pods these are the certificates' dates, and Redis. No event is taken from another reader: a
subscription has its own copy, and the replay that is asked for begins after every batch. TensorRT-LLM's
events are not asked for, as each is given to one reader only.
"""

import argparse
import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from socket import gaierror
from typing import Any, NamedTuple

import aiohttp
import zmq
import zmq.asyncio

from warmpath.cli.deployment import engine as of_engine
from warmpath.cli.deployment.check import Answer, Check, Placed, ask
from warmpath.cli.deployment.engine import FORMS, Form, Ours, body, compare, tokenizer
from warmpath.cli.index.access import HEALS, MOST_NAMED, AccessError, damage
from warmpath.cli.index.command import FILES, opened
from warmpath.cli.index.stats import read_servers
from warmpath.indexer.engines.table import ENGINES
from warmpath.indexer.follow.dial import Tap
from warmpath.indexer.follow.endpoint import rank_endpoint
from warmpath.indexer.shared.redis.command import OUT_OF_MEMORY, Fault, hint_of
from warmpath.process.address import HostPort
from warmpath.process.command_line import in_words
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.config.files import EngineKeyError, dated, engine_credentials, read_engine_key
from warmpath.router.config.mistakes import dotted
from warmpath.router.config.schema import Config, ModelSpec
from warmpath.router.pods.look import look, sources

AFTER_ALL = (2**63 - 1).to_bytes(8, "big")
"""A batch's number that is never reached: its replay has no batch, only the end."""


async def check_events(
    pod: Placed, context: zmq.asyncio.Context, seconds: float
) -> AsyncIterator[Check]:
    """Yield a check of each rank's events and replay, or of the publisher: it answers in `seconds`."""
    spec = pod.spec
    option = ENGINES[spec.engine].events_option_at(spec.events, spec.replay)
    if spec.watch:
        yield await _publisher(pod, seconds)
        return
    if ENGINES[spec.engine].is_polled or not spec.events:
        return
    for number in range(spec.first_rank, spec.first_rank + spec.ranks):
        for key, of_ranks, done in (
            ("events", spec.events, "is connected"),
            ("replay", spec.replay, "answers"),
        ):
            if not of_ranks:
                continue
            endpoint = rank_endpoint(of_ranks, number)
            try:
                async with asyncio.timeout(seconds):
                    await _ask(context, key, endpoint)
                yield pod.ok(key, f"{endpoint} {done}")
            except (OSError, zmq.ZMQError) as error:
                other = f"the engine's {option}, or {pod.key(key)}"
                if isinstance(error, gaierror):
                    other = pod.key(key)
                yield pod.wrong(key, _silent(endpoint, error, seconds), other)
    if not spec.replay:
        yield pod.wrong(
            "replay",
            "there is none, so that a gap in the events stays open",
            f"{pod.key('replay')}, and replay_endpoint in the engine's {option}",
        )


def _silent(endpoint: str, error: Exception, seconds: float) -> str:
    if isinstance(error, TimeoutError):
        return f"nothing answers at {endpoint} within {seconds:g} s"
    return f"{endpoint}: {in_words(error)}"


async def _ask(context: zmq.asyncio.Context, key: str, endpoint: str) -> None:
    """Return once a subscription is connected, or once the end of an empty replay has come."""
    tap = Tap(context)
    try:
        if key == "events":
            await tap.connected(endpoint)
            return
        async for _ in tap.replayed(endpoint, AFTER_ALL):
            pass
    finally:
        tap.close()


async def _publisher(pod: Placed, seconds: float) -> Check:
    """Check that a publisher listens; whether it serves this router is in the router's findings."""
    try:
        async with asyncio.timeout(seconds):
            _, writer = await asyncio.open_connection(*HostPort.of(pod.spec.watch))
        writer.close()
    except (TimeoutError, OSError) as error:
        said = (
            in_words(error) if isinstance(error, OSError) and error.errno else "no answer in time"
        )
        return pod.wrong(
            "publisher",
            f"{pod.spec.watch}: {said}",
            f"start 'warmpath publish', or {pod.key('watch')}",
        )
    return pod.ok("publisher", f"listens at {pod.spec.watch}")


POLICY = "noeviction"
RULE = "docs/guides/shared-index.md#the-acl-rule"
REDIS = "Redis"
NO_INFO = "the user may not call INFO, which the ACL rule does not give"
CHANGES = {
    Fault.SILENCE: "start Redis, or change shared-index.url",
    Fault.RIGHT: f"give shared-index.user the ACL rule ({RULE})",
    Fault.KIND: "a Redis of another kind answers: the scheme of shared-index.url",
    Fault.OTHER: "look at Redis' log, or change shared-index.url",
}
"""What to do about each fault where its error has no hint."""


def certificates(config: Config, folder: Path, now: datetime) -> Iterator[Check]:
    """Yield a check for each certificate: it is valid, and does not expire soon."""
    for one in dated(config, folder):
        key = dotted(one.at)
        if said := one.problem(now) or one.warning(now):
            yield Check("certificate", key, "WRONG", said, f"put a new one into {one.path}")
        else:
            yield Check("certificate", key, "ok", f"valid until {one.validity.ends:%Y-%m-%d}")


async def shared_index(config: Path, url: str, seconds: float) -> list[Check]:
    """Return checks that Redis answers, lets the user read, and keeps the index whole."""
    options = argparse.Namespace(
        config=config, url="", user="", prefix=None, timeout=seconds, **dict.fromkeys(FILES, "")
    )
    try:
        async with opened(options, may_be_empty=True) as access:
            # These four calls use the rights that a router needs to read.
            damaged = await damage(access)
            pods = await access.pods()
            empty, found = access.lacking, await read_servers(access)
    except AccessError as error:
        # The hint stands at the error's end, and would be said twice.
        hint = hint_of(error, "shared-index.")
        said = str(error).removesuffix(f" ({hint})")
        return [Check(REDIS, "answer", "WRONG", said, hint or CHANGES[error.fault])]
    names = ", ".join(sorted({one["server"] for one in found if one["server"]}))
    if empty:
        change = "shared-index.prefix, or start publishers with --redis"
        answer = Check(REDIS, "answer", "WRONG", empty, change)
    else:
        text = f"{url} answers, and the user may read {names}".rstrip()
        answer = Check(REDIS, "answer", "ok", text)
    records = {pod: seen.record for pod, seen in pods.items() if seen.record}
    reasons = {pod: record.reason for pod, record in records.items() if not record.sound}
    return [answer, _keys(damaged), _policy(found), _memory(found, reasons)]


def _keys(damaged: Sequence[str]) -> Check:
    if not damaged:
        return Check(REDIS, "keys", "ok", "all are as warmpath writes them")
    more = len(damaged) - MOST_NAMED
    text = "; ".join(damaged[:MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")
    return Check(REDIS, "keys", "WRONG", text, HEALS)


def _policy(servers: Sequence[Mapping[str, Any]]) -> Check:
    policies = {one["policy"] for one in servers if one["policy"]}
    if not policies:
        return Check(REDIS, "maxmemory-policy", "not known", NO_INFO)
    if policies == {POLICY}:
        return Check(REDIS, "maxmemory-policy", "ok", POLICY)
    text = f"{', '.join(sorted(policies))} deletes parts of the index when memory is short"
    return Check(REDIS, "maxmemory-policy", "WRONG", text, f"maxmemory-policy {POLICY} in Redis")


def _memory(servers: Sequence[Mapping[str, Any]], reasons: Mapping[str, str]) -> Check:
    """Check that Redis takes writes: by its own figures, else by what publishers say of theirs.

    `reasons` says why each pod's part of the index may differ from its engine's cache.
    """
    name, change = "maxmemory", "raise maxmemory in Redis, or give Redis more nodes"
    full = [one for one in servers if one["is_full"] and one["policy"] == POLICY]
    if full:
        used = "; ".join(
            f"{one['address']} uses {one['used_bytes']:,} of {one['limit_bytes']:,} bytes"
            for one in full
        )
        return Check(REDIS, name, "WRONG", f"Redis is full and refuses writes: {used}", change)
    if refused := [pod for pod, reason in reasons.items() if reason.startswith(OUT_OF_MEMORY)]:
        text = f"Redis is full and refuses the writes of {', '.join(refused[:MOST_NAMED])}"
        return Check(REDIS, name, "WRONG", text, change)
    if all(one["is_full"] is None for one in servers):
        return Check(REDIS, name, "not known", NO_INFO)
    return Check(REDIS, name, "ok", "there is room")


AT_ONCE = 32


class Seen(NamedTuple):
    """The answers of the running router; `pods` are by id."""

    pods: Mapping[str, pb.Pod]
    ours: Mapping[str, Mapping[Form, Ours]]
    """The router's tokens of the prompts of `cli.deployment.engine`, by model and form."""


def inspect(
    config: Config, file: Path, seen: Seen, *, model: str, seconds: float, now: datetime
) -> list[Check]:
    """Return all checks of the deployment that `file` describes, of `model` or, if empty, of all.

    Each answer is waited for at most `seconds`.
    """
    of_models = {one.name: one for one in config.models}
    checks = [
        check for name, ours in seen.ours.items() for check in tokenizer(of_models[name], ours)
    ]
    checks += certificates(config, file.parent, now)
    placed, problems = _find(config, file.parent, seconds)
    those = [pod for pod in placed if not model or pod.spec.model == model]
    if not placed:
        text = "the configuration leads to none"
        problems.append(
            Check("pods", "found", "WRONG", text, "[[pods]], pods-file or [[pod-sets]]")
        )
    return [*checks, *problems, *asyncio.run(_ask_all(config, file, seen, those, seconds))]


def _find(config: Config, folder: Path, seconds: float) -> tuple[list[Placed], list[Check]]:
    # As in a running router, the first description of a pod counts.
    placed = {pod.id: Placed(pod, f"pods[{number}]") for number, pod in enumerate(config.pods)}
    tables = [f"pod-sets[{number}]" for number in range(len(config.pod_sets))]
    problems = []
    found = look(sources(config, folder), seconds)
    for table, looked in zip([*tables, "pods-file"], found, strict=False):
        for spec in looked.pods:
            placed.setdefault(spec.id, Placed(spec, table))
        said = filter(None, (looked.problem, *looked.mistakes))
        change = f"correct {table}, or let this machine reach the source that it names"
        problems += [Check(table, "pods", "WRONG", problem, change) for problem in said]
    return list(placed.values()), problems


async def _ask_all(
    config: Config, file: Path, seen: Seen, placed: Sequence[Placed], seconds: float
) -> list[Check]:
    engine_tls = engine_credentials(config.probe, file.parent)
    models = {one.name: one for one in config.models}
    room = asyncio.Semaphore(AT_ONCE)
    context = zmq.asyncio.Context()
    wait = aiohttp.ClientTimeout(total=seconds)

    async def one(pod: Placed) -> list[Check]:
        model, tls = models[pod.spec.model], engine_tls if pod.spec.https else None
        key = _key(pod, model, file.parent)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        async with room, aiohttp.ClientSession(_url(pod), headers=headers, timeout=wait) as session:
            asked = _ask_engine(pod, model, partial(ask, session, tls=tls), seen)
            both = await asyncio.gather(asked, _all(check_events(pod, context, seconds)))
            return [check for checks in both for check in checks]

    try:
        found = await asyncio.gather(*map(one, placed))
    finally:
        context.destroy(linger=0)
    checks = [check for of_pod in found for check in of_pod]
    if url := config.shared_index.url:
        checks += await shared_index(file, url, seconds)
    return checks


async def _all(checks: AsyncIterator[Check]) -> list[Check]:
    return [check async for check in checks]


def _url(pod: Placed) -> str:
    return f"{'https' if pod.spec.https else 'http'}://{pod.spec.address}"


def _key(pod: Placed, model: ModelSpec, folder: Path) -> str:
    """Return the API key for a pod; empty if there is none that can be read.

    A model's own key is sent only to where the router sends it too: `tokenizer-urls`.
    """
    file = pod.spec.key_file
    if not file and _url(pod) in (url.rstrip("/") for url in model.tokenizer_urls):
        file = model.tokenizer_key_file
    try:
        return read_engine_key(folder / file) if file else ""
    except EngineKeyError:
        return ""


async def _ask_engine(
    pod: Placed, model: ModelSpec, ask: Callable[..., Awaitable[Answer]], seen: Seen
) -> list[Check]:
    health = await ask("/health")
    if not health.status:
        return [of_engine.reachable(pod, health)]
    models, metrics, info, *tokens = await asyncio.gather(
        ask("/v1/models"),
        ask("/metrics"),
        ask(ENGINES[pod.spec.engine].version_path),
        *(ask("/tokenize", body(model.name, form)) for form in FORMS),
    )
    known, ours = seen.pods.get(pod.spec.id), seen.ours.get(model.name, {})
    sizes = {rank.rank: rank.block_size for rank in known.ranks} if known else {}
    compared = [
        compare(pod, model, form, ours[form], answer)
        for form, answer in zip(FORMS, tokens, strict=True)
        if form in ours
    ]
    return [
        of_engine.reachable(pod, health), of_engine.clock(pod, health),
        of_engine.served(pod, models, model), of_engine.kind(pod, metrics),
        *of_engine.cache(pod, metrics, info, sizes),
        *(check for check in compared if check is not None),
    ]  # fmt: skip
