"""Phases of single prompts: by text and by ids, salts, adapters, options of what is looked up or announced."""

from random import Random
from typing import Any

from tests.engines.vllm.driver import BLOCK, Driver
from tests.engines.vllm.fleet import PLUGIN, SIDECAR, Rank
from tests.vllm.engine import text

RANKS: tuple[Rank, ...] = ((PLUGIN, 0), (PLUGIN, 1), (SIDECAR, 0))
VOCABULARY = range(7, 2048)
"""Ids that are no special tokens."""
FULL = {"vllm_xargs": {"kv_cache_report_mode": "full"}}


def ids(rng: Random, count: int) -> list[int]:
    return rng.choices(VOCABULARY, k=count)


def somewhere(rng: Random) -> Rank | None:
    """Return a rank to send a request to, or None for Envoy, which most requests go through."""
    return rng.choice(RANKS) if rng.random() < 0.35 else None


async def texts(driver: Driver, rng: Random) -> None:
    """Send completions by text that share beginnings."""
    known = [text(rng, 80) for _ in range(4)]
    for number in range(56):
        prompt = rng.choice(known)
        if rng.random() < 0.6:
            prompt += " " + text(rng, rng.randint(1, 90))
            known.append(prompt[:2500])
        body: dict[str, Any] = {"prompt": prompt, "max_tokens": rng.randint(1, 40)}
        if number % 14 == 13:
            body |= {"prompt": f"It's naïve: 日本語、と。 👩‍👩‍👧 <s>x</s>\r\n\t{prompt}"}
        if number % 8 == 7:
            body["add_special_tokens"] = False
        await driver.ask(body, somewhere(rng))


async def token_ids(driver: Driver, rng: Random) -> None:
    """Send completions by ids, many of them as long as whole blocks, or a token more or less."""
    known = [ids(rng, 4 * BLOCK) for _ in range(3)]
    for _ in range(60):
        prompt = rng.choice(known)
        if rng.random() < 0.6:
            length = BLOCK * rng.randint(1, 8) + rng.choice((-1, 0, 0, 1, 13))
            prompt = (prompt + ids(rng, length))[: rng.choice((length, 24 * BLOCK))]
            known.append(prompt)
        await driver.ask({"prompt": prompt, "max_tokens": rng.randint(1, 40)}, somewhere(rng))


async def salts(driver: Driver, rng: Random) -> None:
    """Send the same prompts and chats with several cache salts and without one."""
    await _told_apart(driver, rng, "cache_salt", ("", "tenant-a", "tenant-b", "träger é"))


async def adapters(driver: Driver, rng: Random) -> None:
    """Send the same prompts and chats to the model and to its adapter, with a salt and without."""
    await _told_apart(driver, rng, "model", ("tiny", "tuned"))


async def _told_apart(driver: Driver, rng: Random, field: str, values: tuple[str, ...]) -> None:
    shared = [text(rng, 100) for _ in range(2)]
    for number in range(48):
        words = f"{rng.choice(shared)} {text(rng, rng.choice((0, 0, 30)))}"
        prompt = (
            {"messages": [{"role": "user", "content": words}]} if number % 2 else {"prompt": words}
        )
        body: dict[str, Any] = {**prompt, "max_tokens": rng.randint(1, 34)}
        if value := rng.choice(values):
            body[field] = value
        if field == "model" and number % 3 == 2:
            body["cache_salt"] = "tenant-a"
        await driver.ask(body, somewhere(rng))


async def truncated(driver: Driver, rng: Random) -> None:
    """Send prompts from which the engine keeps only the last tokens, or the first."""
    words, chosen = text(rng, 200), ids(rng, 9 * BLOCK)
    for number in range(36):
        body: dict[str, Any] = [
            {"prompt": words}, {"prompt": chosen}, {"messages": [{"role": "user", "content": words}]},
        ][number % 3]  # fmt: skip
        kept = rng.choice((BLOCK, 3 * BLOCK, 3 * BLOCK, 100, 150, 5000 if number % 2 else 200))
        body = body | {"truncate_prompt_tokens": min(kept, 900)}
        if rng.random() < 0.3:
            body["truncation_side"] = rng.choice(("left", "right"))
        await driver.ask(body, somewhere(rng))


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
