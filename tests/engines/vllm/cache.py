"""Phases in which caches lose blocks: evictions, resets, sleep."""

from random import Random

from tests.engines.vllm.driver import Driver
from tests.engines.vllm.fleet import SIDECAR, Rank
from tests.engines.vllm.prompts import RANKS, ids, somewhere


async def evictions(driver: Driver, rng: Random) -> None:
    """Send prompts that need several times the blocks of a cache, some far more often than others."""
    prompts = [ids(rng, rng.randint(200, 800)) for _ in range(30)]
    weights = [1 / (place + 1) for place in range(len(prompts))]
    for _ in range(100):
        [prompt] = rng.choices(prompts, weights)
        kept = prompt[: rng.choice((len(prompt), len(prompt), 150))]
        await driver.ask({"prompt": kept, "max_tokens": rng.randint(1, 60)}, somewhere(rng))


async def resets(driver: Driver, rng: Random) -> None:
    """Reset prefix caches; what that took away is shown until the engine's next step."""
    for number in range(6):
        warm = await _warm(driver, rng)
        for pod, engine in driver.fleet.engines.items():
            for _ in range(1 + number % 2):
                answer = await driver.post(f"{engine.base}/reset_prefix_cache")
                assert answer == {"success": True}, answer
            if number == 0 and pod == SIDECAR:
                # The one request of the phase that is promised too much.
                await driver.ask({"prompt": warm[pod, 0]}, (pod, 0))
        await _announce(driver, rng)
        for rank, prompt in warm.items():
            await driver.ask({"prompt": prompt}, rank)
            await driver.ask({"prompt": prompt})


async def sleep(driver: Driver, rng: Random) -> None:
    """Let engines sleep and wake up: level 0 pauses one, level 1 also empties its cache."""
    driver.notes.append(
        "vLLM's workers on a CPU ignore sleep (no memory is given back); its scheduler pauses and resets"
    )
    for number in range(4):
        warm = await _warm(driver, rng)
        for engine in driver.fleet.engines.values():
            await driver.post(f"{engine.base}/sleep?level={number % 2}")
            assert (await driver.get(f"{engine.base}/is_sleeping"))["is_sleeping"]
            await driver.post(f"{engine.base}/wake_up")
        if number % 2:
            await _announce(driver, rng)
        for rank, prompt in warm.items():
            answer = await driver.ask({"prompt": prompt}, rank)
            assert (answer.cached == 0) == bool(number % 2)


async def _warm(driver: Driver, rng: Random) -> dict[Rank, list[int]]:
    """Have each rank compute a prompt of its own, twice; return these."""
    warm = {rank: ids(rng, 200) for rank in RANKS}
    for rank, prompt in warm.items():
        await driver.ask({"prompt": prompt}, rank)
        await driver.ask({"prompt": prompt}, rank)
    return warm


async def _announce(driver: Driver, rng: Random) -> None:
    """Have each rank make a step, with a prompt that it does not hold."""
    for rank in RANKS:
        await driver.ask({"prompt": ids(rng, 40)}, rank)
