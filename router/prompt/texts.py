"""Builds and closes the parts that turn texts and chats into tokens.

`prefixstore.pool` runs them; `prefixstore.tokenizers.tokenizer` computes the ids.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from warmpath.indexer.follow.instance import EngineTls
from warmpath.prefixstore.chats.chat import ModelTemplate
from warmpath.prefixstore.chats.published import published
from warmpath.prefixstore.chats.render_worker import RenderLimits
from warmpath.prefixstore.chats.renderer import ProcessRenderer
from warmpath.prefixstore.pool import TokenizerPool
from warmpath.prefixstore.store import LruStore, PrefixStore, TrieStore
from warmpath.prefixstore.tokenizers.cache import TokenizerCache
from warmpath.prefixstore.tokenizers.engine import Tracing
from warmpath.prefixstore.tokenizers.tokenizer import TokenizerUnavailableError
from warmpath.prefixstore.workers import Workers
from warmpath.process.tasks import watched
from warmpath.router.config.schema import Config, PrefixStoreTable
from warmpath.router.prompt.models import Model, ModelTable
from warmpath.router.prompt.tokenizer_sources import NO_PODS, Sources, TokenizingPods, with_template

log = logging.getLogger(__name__)

MOST_OUTPUT_BYTES = 16 << 20
"""Largest rendered chat: twice the longest body, since templates add JSON and tags of their own."""
MOST_MEMORY_BYTES = 512 << 20
"""Largest address space of a rendering process: a body of 8 MiB of only small objects took 200 MB."""
MOST_QUEUED = 1024
"""Maximum texts that wait for a thread, and maximum chats that wait for a process."""
RENDER_SECONDS = 5.0
"""Maximum time to render one chat; the process is then replaced."""
HANG_SECONDS = 30.0
"""A thread that spends longer on one text is replaced; 8 MB of text take about 5 s."""
ASKING = 16
"""Threads that wait for engines to tokenise, one text each."""
RETRY_SECONDS = 10.0
"""Pause before a tokenizer that failed to load is tried again."""
MOST_TOKENIZERS = 32
"""Maximum loaded tokenizers, 50 to 200 MB each; beyond it the least recently used goes."""


@dataclass(frozen=True, slots=True)
class Texts:
    """The parts that turn the texts and chats of all models into tokens."""

    models: ModelTable
    sources: Sources
    tokenizers: TokenizerCache
    renderer: ProcessRenderer
    pool: TokenizerPool


@asynccontextmanager
async def texts(
    config: Config,
    folder: Path,
    tls: EngineTls,
    pods: TokenizingPods = NO_PODS,
    tracing: Tracing | None = None,
) -> AsyncIterator[Texts]:
    """Provide the parts while the context is open; relative paths begin at `folder`.

    `pods` tokenise for models without a tokenizer. `tls` is for engines that tokenise and serve HTTPS;
    `tracing` makes the spans of requests to them.
    """
    async with AsyncExitStack() as stack:
        # The sources outlive the pool, whose last work may still ask an engine.
        of_sources = stack.enter_context(ExitStack())
        sources = Sources(of_sources, folder, tls, pods, tracing)
        table = config.prefix_store
        pool = TokenizerPool(
            partial(_new_store, table),
            Workers(table.workers, hang_seconds=HANG_SECONDS, most_lost=table.workers),
            max_prompts=MOST_QUEUED,
            max_bytes=config.limits.max_queued_bytes,
            asking=Workers(ASKING, hang_seconds=HANG_SECONDS, most_lost=ASKING),
        )
        stack.push_async_callback(pool.close)
        tokenizers = TokenizerCache(
            most=MOST_TOKENIZERS, retry_after=RETRY_SECONDS, clock=time.monotonic
        )
        stack.push_async_callback(tokenizers.close)
        limits = RenderLimits(
            seconds=RENDER_SECONDS,
            max_output_bytes=MOST_OUTPUT_BYTES,
            max_memory_bytes=MOST_MEMORY_BYTES,
            max_waiting=MOST_QUEUED,
            max_waiting_bytes=config.limits.max_queued_bytes,
        )
        renderer = ProcessRenderer(workers=config.templates.workers, limits=limits)
        stack.push_async_callback(renderer.close)
        models = _models(config, sources, tokenizers, renderer)
        await _preload(config, tokenizers, stack)
        await renderer.start()
        yield Texts(models, sources, tokenizers, renderer, pool)


def _new_store(table: PrefixStoreTable) -> PrefixStore:
    if table.kind == "trie":
        return TrieStore(table.max_bytes)
    return LruStore(table.max_bytes, secrets.randbits(64))


def _models(
    config: Config, sources: Sources, tokenizers: TokenizerCache, renderer: ProcessRenderer
) -> ModelTable:
    """Return all models; each chat template is registered when its tokenizer is loaded."""
    table = ModelTable()
    loop = asyncio.get_running_loop()

    def register(name: str, template: ModelTemplate) -> None:
        # The loading thread calls this; the loop registers before callers that wait can go on.
        known = published(template, MOST_OUTPUT_BYTES)
        loop.call_soon_threadsafe(renderer.register, name, template, known)

    for model in config.models:
        tokenizers.register(model.name, with_template(sources.of(model), model, register))
        known = Model(model.name, model.vocab_size, tokenizer=model.name)
        table.add(known, model.aliases, model.adapters)
    return table


async def _preload(config: Config, tokenizers: TokenizerCache, stack: AsyncExitStack) -> None:
    local = {one.name for one in config.models if one.tokenizer and not one.tokenizer_urls}
    waited_for = []
    for model in [*tokenizers.lacking()][:MOST_TOKENIZERS]:
        load = watched(_load(model, tokenizers), f"loading the tokenizer of {model}")
        stack.callback(load.cancel)
        if model in local:
            waited_for.append(load)
    if waited_for:
        await asyncio.wait(waited_for)


async def _load(model: str, tokenizers: TokenizerCache) -> None:
    try:
        await tokenizers.get(model)
    except TokenizerUnavailableError as error:
        message = "model %r: Score refuses texts, and Pick is blind: %s"
        log.error(message, model, error)  # noqa: TRY400  the text suffices
