"""Asks an engine over HTTP what it is: its kind, version, models, ranks, cache, events and tokenizer."""

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp

from warmpath.cli.deployment.check import Answer, ask
from warmpath.cli.engines.place import Place
from warmpath.cli.engines.port import Ports, find
from warmpath.indexer.engines.kind import EngineKind, Told
from warmpath.indexer.engines.table import ENGINES
from warmpath.indexer.engines.vllm import VLLM
from warmpath.process.address import HostPort
from warmpath.router.config.files import REFUSALS, EngineKeyError, read_engine_key
from warmpath.router.load.engine_metrics import lines

ASK_SECONDS = 5.0
MODELS = "/v1/models"
TOKENIZE = "/tokenize"
TEXT = "Hello"
CHAT = [{"role": "user", "content": TEXT}]
EVENTS_PATH = "/kv_cache_events"
MOST_VERSION = 64


class Found(NamedTuple):
    """An engine that answered."""

    at: HostPort
    kind: EngineKind
    is_known: bool
    """Whether it showed its kind; otherwise it counts as vLLM, whose API most servers have."""
    version: str
    model: str
    aliases: tuple[str, ...]
    """Further names of the model."""
    ranks: tuple[int, ...]
    told: Told
    ports: Ports
    makes_tokens: bool
    """Whether its /tokenize takes texts."""
    renders_chats: bool
    """Whether its /tokenize takes chats."""
    has_metrics: bool

    @property
    def sends_events(self) -> bool:
        """Whether it sends events as far as its port and kind show, before any has come."""
        return bool(self.ports.events) or self.kind.is_polled

    @property
    def title(self) -> str:
        """The engine's kind and version in words, such as `vLLM 0.32.0`."""
        name = self.kind.title if self.is_known else "an unknown server"
        return f"{name} {self.version}".rstrip()


class Away(NamedTuple):
    """An engine that cannot be used now."""

    at: str
    problem: str
    """Why, and what to do about it."""


async def ask_engine(place: Place, at: HostPort, *, is_alone: bool) -> Found | Away:
    """Return what the engine at an address of a place is; HTTPS trusts the system's authorities.

    `is_alone` says that no other engine that is asked has its host.
    """
    try:
        file = place.key_file
        key = await asyncio.to_thread(read_engine_key, Path(file)) if file else ""
    except EngineKeyError as error:
        return Away(str(at), str(error))
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    url = f"{'https' if place.https else 'http'}://{at}"
    wait = aiohttp.ClientTimeout(total=ASK_SECONDS)
    async with aiohttp.ClientSession(url, headers=headers, timeout=wait) as session:
        return await _ask(place, at, partial(ask, session), is_alone=is_alone)


async def _ask(place: Place, at: HostPort, tell: Any, *, is_alone: bool) -> Found | Away:
    paths = dict.fromkeys(
        path for one in ENGINES.values() for path in (one.version_path, *one.metrics.paths)
    )
    said = dict(
        zip(
            ("/health", MODELS, *paths),
            await asyncio.gather(*map(tell, ("/health", MODELS, *paths))),
            strict=True,
        )
    )
    health, listed = said["/health"], said[MODELS]
    if not listed.status:
        return Away(str(at), listed.problem.removeprefix(f"cannot connect to {at}: "))
    if health.status == 503:
        return Away(str(at), "it is not ready yet (/health answers 503)")
    if listed.status in REFUSALS:
        option = "`key-file` of its table" if place.is_configured else "--api-key-file FILE"
        key = f"it wants an API key: give a file with it, {option}"
        if place.key_file:
            key = f"the key in {place.key_file} is not its own: write the engine's there"
        return Away(str(at), f"{MODELS} answers {listed.status}; {key}")
    names = _models(listed)
    if not names:
        return Away(str(at), f"it is no engine: {MODELS} lists no model")
    kind = _kind(said)
    of_kind = kind or VLLM
    info = said[of_kind.version_path].fields
    page = b"".join(said[path].body for path in of_kind.metrics.paths[:1])
    told = of_kind.told(page, info)
    ranks = told.ranks or (0,)
    text, chat = await asyncio.gather(
        tell(TOKENIZE, {"model": names[0], "prompt": TEXT}),
        tell(TOKENIZE, {"model": names[0], "messages": CHAT}),
    )
    ports = Ports()
    if not of_kind.is_polled:
        look = partial(find, at, ranks, is_alone=is_alone)
        if place.events:
            ports = await look({"endpoint": place.events, "replay_endpoint": place.replay})
        if not ports.events:
            # Since the configuration was written, the engine may have got others.
            now = await look(told.events)
            ports = now if now.events or not place.events else ports
    version = info.get("version")
    return Found(
        at=at, kind=of_kind, is_known=kind is not None,
        version=version[:MOST_VERSION] if isinstance(version, str) else "",
        model=names[0], aliases=tuple(names[1:]), ranks=ranks, told=told, ports=ports,
        makes_tokens=_makes_tokens(text), renders_chats=_makes_tokens(chat),
        has_metrics=_kind_of_metrics(said) is not None,
    )  # fmt: skip


def _models(listed: Answer) -> list[str]:
    """Return the names of the base model, without adapters, which have a parent."""
    names = [one.get("id") for one in listed.models if not one.get("parent")]
    return [name for name in names if isinstance(name, str) and name]


def _kind_of_metrics(said: Mapping[str, Answer]) -> EngineKind | None:
    for kind in ENGINES.values():
        if any(any(lines(said[path].body, kind.metrics.prefix)) for path in kind.metrics.paths):
            return kind
    return None


def _kind(said: Mapping[str, Answer]) -> EngineKind | None:
    """Return the kind whose names the metrics have, or else the one that `owned_by` names."""
    if kind := _kind_of_metrics(said):
        return kind
    owners = {str(one.get("owned_by")) for one in said[MODELS].models}
    return next((kind for kind in ENGINES.values() if kind.owner in owners), None)


def _makes_tokens(answer: Answer) -> bool:
    tokens = answer.fields.get("tokens")
    return isinstance(tokens, list) and bool(tokens)
