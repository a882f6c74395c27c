"""The phases by their names, in the order in which they run."""

from collections.abc import Awaitable, Callable
from random import Random

from tests.engines.vllm import cache, chats, options, prompts, restarts
from tests.engines.vllm.driver import Driver

Phase = Callable[[Driver, Random], Awaitable[None]]
PHASES: dict[str, Phase] = {
    "turns": chats.turns,
    "parts": chats.parts,
    "tools": chats.tools,
    "texts": prompts.texts,
    "token ids": prompts.token_ids,
    "salts": prompts.salts,
    "adapters": prompts.adapters,
    "truncated": prompts.truncated,
    "evictions": cache.evictions,
    "resets": cache.resets,
    "sleep": cache.sleep,
    "samples": options.samples,
    "prompt_logprobs": options.prompt_logprobs,
    "full reports": options.full_reports,
    "engines restart": restarts.engines,
    "routers restart": restarts.routers,
    "publishers restart": restarts.publishers,
    "redis restarts": restarts.redis,
}


async def begin(driver: Driver) -> None:
    """Have each rank publish a first batch, without which no router has seen it."""
    for number, rank in enumerate(prompts.RANKS):
        await driver.ask({"prompt": [number + 7] * 64}, rank, exact=False)
