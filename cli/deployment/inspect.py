"""Makes all checks of a deployment: of every pod at once, each for a bounded time."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import aiohttp
import zmq.asyncio

from warmpath.cli.deployment import engine as of_engine
from warmpath.cli.deployment.ask import Answer, Engine
from warmpath.cli.deployment.check import Check, Placed
from warmpath.cli.deployment.events import check_events
from warmpath.cli.deployment.parts import certificates, shared_index
from warmpath.cli.deployment.tokens import Form, Ours, body, compare
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.config.engine_key_file import EngineKeyError, read_engine_key
from warmpath.router.config.files import engine_credentials
from warmpath.router.config.schema import Config, ModelSpec
from warmpath.router.pods.look import look
from warmpath.router.pods.probe import VERSIONS
from warmpath.router.pods.sources import sources

AT_ONCE = 32
"""Pods that are asked at the same time."""
FORMS: Sequence[Form] = ("text", "chat")


class Seen(NamedTuple):
    """The answers of the running router."""

    pods: Mapping[str, pb.Pod]
    ours: Mapping[str, Mapping[Form, Ours]]
    """Its tokens, by model."""


def inspect(
    config: Config, file: Path, seen: Seen, *, model: str, seconds: float, now: datetime
) -> list[Check]:
    """Return all checks of the deployment that `file` describes, of `model` or, if empty, of all.

    No answer is waited for longer than so many seconds.
    """
    checks = [*certificates(config, file.parent, now)]
    placed, problems = _find(config, file.parent, seconds)
    those = [pod for pod in placed if not model or pod.spec.model == model]
    if not placed:
        text = "the configuration leads to none"
        problems.append(
            Check("pods", "found", "WRONG", text, "[[pods]], pods-file or [[pod-sets]]")
        )
    return [*checks, *problems, *asyncio.run(_ask_all(config, file, seen, those, seconds))]


def _find(config: Config, folder: Path, seconds: float) -> tuple[list[Placed], list[Check]]:
    """Return the pods of the file and of its sources, and checks of sources that give none."""
    # As in a running router, the first description of a pod counts.
    placed = {pod.id: Placed(pod, f"pods[{number}]") for number, pod in enumerate(config.pods)}
    tables = [f"pod-sets[{number}]" for number in range(len(config.pod_sets))]
    problems = []
    found = look(sources(config, folder), seconds)
    for table, looked in zip([*tables, "pods-file"], found, strict=False):
        for spec in looked.specs:
            placed.setdefault(spec.id, Placed(spec, table))
        said = filter(None, (looked.problem, *looked.mistakes))
        change = f"correct {table}, or let this machine reach the source that it names"
        problems += [Check(table, "pods", "WRONG", problem, change) for problem in said]
    return list(placed.values()), problems


async def _ask_all(
    config: Config, file: Path, seen: Seen, placed: Sequence[Placed], seconds: float
) -> list[Check]:
    tls = engine_credentials(config.probe, file.parent)
    models = {one.name: one for one in config.models}
    room = asyncio.Semaphore(AT_ONCE)
    context = zmq.asyncio.Context()
    wait = aiohttp.ClientTimeout(total=seconds)
    connections = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=wait, connector=connections) as session:

        async def one(pod: Placed) -> list[Check]:
            async with room:
                spec = pod.spec
                model = models[spec.model]
                key = _key(pod, model, file.parent)
                engine = Engine(session, spec.address, tls if spec.https else None, key)
                asked = _ask(pod, model, engine, seen), check_events(pod, context, seconds)
                both = await asyncio.gather(*(_all(checks) for checks in asked))
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


def _key(pod: Placed, model: ModelSpec, folder: Path) -> str:
    """Return the API key for a pod; empty if there is none that can be read.

    A model's own key is sent only to where the router sends it too: `tokenizer-urls`.
    """
    base = f"{'https' if pod.spec.https else 'http'}://{pod.spec.address}"
    file = pod.spec.key_file
    if not file and base in (url.rstrip("/") for url in model.tokenizer_urls):
        file = model.tokenizer_key_file
    try:
        return read_engine_key(folder / file) if file else ""
    except EngineKeyError:
        return ""


async def _ask(pod: Placed, model: ModelSpec, engine: Engine, seen: Seen) -> AsyncIterator[Check]:
    """Yield the checks of one engine's answers."""
    health = await engine.ask("/health")
    yield of_engine.reachable(pod, health)
    if not health.status:
        return
    yield of_engine.clock(pod, health)
    models, metrics, info, *tokens = await asyncio.gather(
        engine.ask("/v1/models"),
        engine.ask("/metrics"),
        engine.ask(VERSIONS[pod.spec.engine]),
        *(engine.ask("/tokenize", body(model.name, form)) for form in FORMS),
    )
    yield of_engine.served(pod, models, model)
    yield of_engine.kind(pod, metrics)
    known = seen.pods.get(pod.spec.id)
    sizes = {rank.rank: rank.block_size for rank in known.ranks} if known else {}
    for check in of_engine.cache(pod, metrics, info, sizes):
        yield check
    for check in _tokens(pod, model, seen, tokens):
        yield check


def _tokens(pod: Placed, model: ModelSpec, seen: Seen, answers: Sequence[Answer]) -> list[Check]:
    ours = seen.ours.get(model.name, {})
    compared = (
        compare(pod, model, form, ours[form], answer)
        for form, answer in zip(FORMS, answers, strict=True)
        if form in ours
    )
    return [check for check in compared if check is not None]
