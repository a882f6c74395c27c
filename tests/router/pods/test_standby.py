"""Routers that follow an engine and could write it: one writes and is killed, the others stand by."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.lab.simworker.local_worker import LocalWorker
from tests.router.shared_stand import IDS, LEASE, Router, generate, page, router, seen, until
from tests.servers.redis_server import RedisServer
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.lab.local.cluster import MODEL
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.pods.own_view import BY_INDEX

OWN = 'warmpath_shared_index_own_view{pod="w",rank="0"} %d.0'


@asynccontextmanager
async def killed_later(
    folder: Path, url: str, prefix: str, pod: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a router that writes, in a process of its own."""
    config = folder / "writer.toml"
    config.write_text(
        f'[server]\nlisten = "127.0.0.1:0"\nmetrics-listen = ""\n[shared-index]\nurl = "{url}"\n'
        f'prefix = "{prefix}"\nlease-seconds = {LEASE}\nwrite = true\n'
        f'[[models]]\nname = "{MODEL}"\n{pod}'
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "warmpath.cli",
        "serve",
        "--config",
        str(config),
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert b"serves" in await process.stdout.readline()
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def cached(worker: LocalWorker, ids: list[int]) -> int:
    """Return how many tokens of a prompt the engine itself finds cached."""
    answer = await worker.generate(model=MODEL, prompt=ids, max_tokens=1, return_token_ids=False)
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


async def is_right(one: Router, worker: LocalWorker, number: int) -> None:
    """Assert that a router is exact and right about a new prompt, and then about an older one."""
    ids = list(range(1000 + number, 1160 + number))
    await generate(worker, ids)
    while await one.score(ids) != {"w": 144}:
        assert await one.is_believed(), await one.trust()
        await asyncio.sleep(0.02)
    older = list(range(1000 + number // 2, 1160 + number // 2))
    claimed = await one.score(older)
    assert await one.is_believed(), await one.trust()
    assert claimed == {"w": await cached(worker, older)}


@pytest.mark.parametrize("mode", ["replica", "shared"])
async def test_a_router_that_stands_by_is_exact_and_right_while_the_one_that_writes_is_killed(
    tmp_path: Path, worker: LocalWorker, redis_server: RedisServer, prefix: str, mode: str
) -> None:
    url, record = redis_server.url, KeyNames(prefix).record("w")
    events = seen(worker) + f'events = "{worker.events}"\nreplay = "{worker.replay}"\n'
    writes = f'mode = "{mode}"\nwrite = true'
    await generate(worker, IDS)
    async with (
        killed_later(tmp_path, url, prefix, events) as writer,
        router(tmp_path, url, prefix, seen(worker)) as reader,
    ):
        await until(reader.is_believed)
        owner = redis_server.ask("HGET", record, "owner")
        async with router(tmp_path, url, prefix, events, writes) as second:
            await until(second.is_believed)
            assert OWN % 1 in await page(second)
            assert redis_server.ask("HGET", record, "owner") == owner
            number = 0
            writer.kill()
            while redis_server.ask("HGET", record, "owner") in {owner, None}:
                number += 1
                await is_right(second, worker, number)
            await until(reader.is_believed)
            for one in (second, reader):
                number += 1
                await is_right(one, worker, number)


@pytest.mark.parametrize("mode", ["replica", "shared"])
async def test_a_new_router_whose_engine_replays_nothing_answers_from_the_shared_index(
    tmp_path: Path, worker: LocalWorker, redis_server: RedisServer, prefix: str, mode: str
) -> None:
    url = redis_server.url
    events = seen(worker) + f'events = "{worker.events}"\n'
    writes = f'mode = "{mode}"\nwrite = true'
    await generate(worker, IDS)
    async with router(
        tmp_path, url, prefix, f'{events}replay = "{worker.replay}"\n', "write = true"
    ) as first:
        await until(first.is_believed)
        async with router(tmp_path, url, prefix, events, writes) as second:
            await until(second.is_believed)
            assert await second.score() == {"w": 144}
            assert (await second.trust()).reason.startswith(BY_INDEX)
            assert OWN % 0 in await page(second)
            await is_right(second, worker, 1)
            # A clear shows its own events to be complete.
            await worker.post("/reset_prefix_cache")
            while (await second.trust()).reason.startswith(BY_INDEX):
                await generate(worker, IDS)
            await until(second.is_believed)
            assert OWN % 1 in await page(second)
            await is_right(second, worker, 2)
        assert (await first.trust()).level == pb.Trust.EXACT
