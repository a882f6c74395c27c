"""Loading the tokenizers when the router starts."""

import asyncio
import logging
from contextlib import AsyncExitStack

from indexer.process.tasks import watched
from prefixstore.tokenizers.cache import TokenizerCache
from prefixstore.tokenizers.tokenizer import TokenizerUnavailableError
from router.config.schema import Config

log = logging.getLogger(__name__)


async def preload(config: Config, tokenizers: TokenizerCache, stack: AsyncExitStack) -> None:
    """Begin to load the tokenizers, and await those that need nothing but this machine."""
    local = []
    has_any = [
        model
        for model in config.models
        if model.tokenizer or model.hub.repo or model.tokenizer_urls
    ]
    for model in has_any[: config.tokenizers.most]:
        load = watched(_load_one(model.name, tokenizers), f"loading the tokenizer of {model.name}")
        stack.callback(load.cancel)
        if model.tokenizer and not model.tokenizer_urls:
            local.append(load)
    if local:
        await asyncio.wait(local)


async def _load_one(model: str, tokenizers: TokenizerCache) -> None:
    try:
        await tokenizers.get(model)
    except TokenizerUnavailableError as error:
        message = "model %r: texts are refused, and picked by their length: %s"
        log.error(message, model, error)  # noqa: TRY400  says all
