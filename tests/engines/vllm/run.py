"""warmpath between Envoy and two real vLLM engines on this CPU: `make test-engines`.

    WARMPATH_VLLM_FOLDER=out/vllm .venv/bin/python -m tests.engines.vllm.run out/engines

Each phase sends seeded requests. Before each one both routers say what its rank holds of the prompt, and
the engine's own `cached_tokens` are compared with that. A finished phase leaves a file in the folder, and
is passed over after an interruption; a run that has finished all of them is begun anew the next time.
"""

import asyncio
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import aiohttp

from tests.engines.vllm import cache, chats, prompts, restarts
from tests.engines.vllm.driver import Driver
from tests.engines.vllm.fleet import Fleet
from tests.engines.vllm.needs import check
from tests.engines.vllm.results import PhaseResult, Results, print_table, verdict

SEED = 26
REQUEST_SECONDS = 600
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
    "samples": prompts.samples,
    "prompt_logprobs": prompts.prompt_logprobs,
    "full reports": prompts.full_reports,
    "engines restart": restarts.engines,
    "routers restart": restarts.routers,
    "publishers restart": restarts.publishers,
    "redis restarts": restarts.redis,
}
"""The phases by their names, in the order in which they run."""


async def run_phases(names: list[str], results: Results, folder: Path) -> None:
    running = asyncio.current_task()
    assert running
    # The processes of the fleet end with this one.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    async with Fleet(folder / "processes") as fleet:
        await fleet.gateway_serves()
        timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout) as http:
            # Each rank publishes a first batch, without which no router has seen it.
            for number, rank in enumerate(prompts.RANKS):
                await Driver(fleet, http).ask({"prompt": [number + 7] * 64}, rank, exact=False)
            for name in names:
                begun = time.monotonic()
                result = await _run(name, PHASES[name], Driver(fleet, http))
                results.write(result)
                equal = sum(one.is_equal for one in result.outcomes)
                print(
                    f"{name}: {equal} of {len(result.outcomes)} equal, "
                    f"{time.monotonic() - begun:.0f} s", flush=True,
                )  # fmt: skip


async def _run(name: str, phase: Phase, driver: Driver) -> PhaseResult:
    # A phase asks the same whether or not others ran before it.
    await phase(driver, Random(f"{SEED} {name}"))
    return PhaseResult(name, driver.outcomes, len(driver.renderings.forms), driver.notes)


def main() -> int:
    folder = Path(sys.argv[1]).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    check(folder)
    results = Results(folder)
    left = [name for name in PHASES if results.read(name) is None]
    if not left:
        results.clear()
        left = list(PHASES)
    if len(left) < len(PHASES):
        print(f"{len(PHASES) - len(left)} phases are finished already (rm -r {folder}: none is)")
    begun = time.monotonic()
    try:
        asyncio.run(run_phases(left, results, folder))
    except (asyncio.CancelledError, KeyboardInterrupt):
        sys.exit("test-engines was broken off: the next run goes on behind the last finished phase")
    found = [result for name in PHASES if (result := results.read(name))]
    print_table(found)
    print(f"{time.monotonic() - begun:.0f} s")
    return verdict(found)


if __name__ == "__main__":
    sys.exit(main())
