"""Phases of requests with options that change what an engine looks up or announces."""

from random import Random
from typing import Any

from tests.engines.vllm.driver import Driver
from tests.engines.vllm.prompts import RANKS, ids, somewhere
from tests.vllm.words import text

FULL = {"vllm_xargs": {"kv_cache_report_mode": "full"}}


async def samples(driver: Driver, rng: Random) -> None:
    """Send requests for several samples of one prompt."""
    prompts = [ids(rng, 170) for _ in range(3)]
    many = {"n": 3, "temperature": 0.8, "seed": 1}
    # The one request of the phase whose samples find what the first of them computes.
    await driver.ask({"prompt": ids(rng, 170), **many}, RANKS[0])
    for prompt in prompts:
        for rank in RANKS:
            await driver.ask({"prompt": prompt}, rank)
            await driver.ask({"prompt": prompt, **many, "max_tokens": 40}, rank)
            await driver.ask({"prompt": prompt, "n": 2, "temperature": 1.0, "seed": 2})


async def prompt_logprobs(driver: Driver, rng: Random) -> None:
    """Send requests that need every token computed; they look nothing up, and store the prompt again."""
    prompts = [ids(rng, 32 * 4 + extra) for extra in (0, 1, 20)]
    for number in range(24):
        asked: dict[str, Any] = {"prompt": rng.choice(prompts)}
        if number % 6 == 5:
            asked = {"messages": [{"role": "user", "content": text(Random(1), 90)}]}
        if number % 2 == 0:
            asked["prompt_logprobs"] = 1
        await driver.ask(asked, somewhere(rng))


async def full_reports(driver: Driver, rng: Random) -> None:
    """Send requests whose hits are announced as stores; routers must not call such a view exact."""
    prompts = [ids(rng, rng.randint(100, 400)) for _ in range(8)]
    for number in range(40):
        body = {"prompt": rng.choice(prompts)} | (FULL if number % 2 else {})
        await driver.ask(body, somewhere(rng), exact=False)
    degraded = sum(one.trust.startswith("DEGRADED") for one in driver.outcomes)
    driver.notes.append(f"{degraded} of {len(driver.outcomes)} answers were degraded")
    for engine in driver.fleet.engines.values():
        assert (await driver.post(f"{engine.base}/reset_prefix_cache"))["success"]
    for rank in RANKS:
        await driver.ask({"prompt": ids(rng, 40)}, rank, exact=False)
    # After a clear all is exact again.
    for rank in RANKS:
        await driver.ask({"prompt": prompts[0]}, rank)
