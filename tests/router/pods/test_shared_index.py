"""Routers that follow pods through the shared index, beside workers, publishers and a real Redis."""

import asyncio
import logging
from pathlib import Path

import pytest

from tests.lab.simworker.local_worker import LocalWorker
from tests.router.shared_stand import IDS, OTHER, generate, page, publisher, router, seen, until
from tests.servers.redis_server import RedisServer
from warmpath.indexer.keys.key import pack_tokens
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.sweep.sweeper import Sweeper
from warmpath.lab.local.cluster import MODEL
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.publisher.assemble import publishing


async def test_router_and_publisher_say_once_which_index_they_use(
    tmp_path: Path,
    worker: LocalWorker,
    redis_server: RedisServer,
    prefix: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    url = redis_server.url
    with caplog.at_level(logging.INFO):
        async with (
            publishing(publisher(worker, url, prefix)),
            router(tmp_path, url, prefix, seen(worker), 'mode = "shared"\nshare-bookings = true'),
        ):
            while "writing to the shared index" not in caplog.text:
                await asyncio.sleep(0.02)
    place = url.removeprefix("redis://")
    told = [line for line in caplog.messages if f" {place}" in line and prefix in line]
    assert sorted(told) == [
        f"pod w: writing to the shared index at {place} under prefix {prefix}",
        f"shared index at {place}, prefix {prefix}, mode shared, bookings are shared",
    ]


async def test_two_routers_score_alike_from_one_publishers_data(
    tmp_path: Path, worker: LocalWorker, redis_server: RedisServer, prefix: str
) -> None:
    url = redis_server.url
    await generate(worker, IDS)
    async with (
        router(tmp_path, url, prefix, seen(worker)) as first,
        publishing(publisher(worker, url, prefix)),
        router(tmp_path, url, prefix, seen(worker)) as second,
    ):
        for one in (first, second):
            await until(one.is_believed)
            assert await one.score() == {"w": 144}
        await generate(worker, OTHER)
        for one in (first, second):
            while await one.score(OTHER) != {"w": 96}:
                await asyncio.sleep(0.02)
            assert await one.is_believed()
            assert one.running.readiness.ready()
        figures = await page(first)
        assert 'warmpath_shared_index_resyncs_total{reason="start"} 1.0' in figures
        assert 'warmpath_shared_index_lag_deltas{pod="w"} 0.0' in figures
        assert "warmpath_shared_index_log_entries_total" in figures


async def test_a_router_knows_the_prompts_that_another_one_has_on_their_way(
    tmp_path: Path, worker: LocalWorker, redis_server: RedisServer, prefix: str
) -> None:
    url, shares = redis_server.url, "share-bookings = true"
    asked = pb.PickRequest(prompt=pb.Prompt(model=MODEL, token_ids_packed=pack_tokens(OTHER)))
    async with (
        publishing(publisher(worker, url, prefix)),
        router(tmp_path, url, prefix, seen(worker), shares) as first,
        router(tmp_path, url, prefix, seen(worker), shares) as second,
    ):
        # Events tell the size of blocks.
        await generate(worker, IDS)
        for one in (first, second):
            await until(one.is_believed)
            while await one.score() != {"w": 144}:
                await asyncio.sleep(0.02)
        [candidate] = (await first.stub.Pick(asked, timeout=30)).candidates
        assert candidate.believed_tokens == 0, "nobody has sent it before"
        shadow = pb.PickRequest(prompt=asked.prompt, shadow=True)
        while not (await second.stub.Pick(shadow, timeout=30)).candidates[0].believed_tokens:
            await asyncio.sleep(0.02)


@pytest.mark.deep
@pytest.mark.parametrize("mode", ["replica", "shared"])
async def test_a_pod_without_a_publisher_is_gone_when_its_lease_is_over(
    tmp_path: Path, worker: LocalWorker, redis_server: RedisServer, prefix: str, mode: str
) -> None:
    url = redis_server.url
    async with router(tmp_path, url, prefix, seen(worker), f'mode = "{mode}"') as one:
        assert not await one.is_believed()
        async with publishing(publisher(worker, url, prefix, redis_lease_seconds=1.0)):
            await generate(worker, IDS)
            await until(one.is_believed)
            while await one.score() != {"w": 144}:
                await asyncio.sleep(0.02)
        while (await one.trust()).level != pb.Trust.COLD:
            await asyncio.sleep(0.02)
        assert "no publisher" in (await one.trust()).reason
        assert await one.score() == {"w": 0}


@pytest.mark.parametrize("mode", ["replica", "shared"])
async def test_a_router_starts_and_answers_without_redis_and_heals_when_it_is_there(
    tmp_path: Path, worker: LocalWorker, prefix: str, mode: str, held_port: int
) -> None:
    url = f"redis://127.0.0.1:{held_port}"
    async with (
        publishing(publisher(worker, url, prefix)),
        router(tmp_path, url, prefix, seen(worker), f'mode = "{mode}"') as one,
    ):
        await generate(worker, IDS)
        while f"127.0.0.1:{held_port}" not in (await one.trust()).reason:
            assert await one.score() == {"w": 0}
            await asyncio.sleep(0.02)
        while not one.running.readiness.ready():
            await asyncio.sleep(0.02)
        assert (await one.trust()).level == pb.Trust.COLD
        # The alert WarmpathRedisAway looks at it.
        assert "\nwarmpath_shared_index_poll_age_seconds " in await page(one)
        with RedisServer(port=held_port) as server:
            await until(one.is_believed)
            while await one.score() != {"w": 144}:
                await asyncio.sleep(0.02)
            server.kill()
            while (await one.trust()).level != pb.Trust.DEGRADED:
                assert await one.score() == {"w": 144}
                await asyncio.sleep(0.02)
            assert await one.score() == {"w": 144}
            # It comes back with nothing: until all is written anew nobody is believed.
            server.restart()
            await until(one.is_believed)
            while await one.score() != {"w": 144}:
                await asyncio.sleep(0.02)


async def test_the_log_says_why_redis_is_away_also_once_the_cause_has_changed(
    tmp_path: Path,
    worker: LocalWorker,
    prefix: str,
    held_port: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    url = f"redis://127.0.0.1:{held_port}"
    parts = (
        "pod w: the shared index: ",
        "pod w: shared index: ",
        "bookings are not shared with other routers: ",
    )

    def told(cause: str) -> bool:
        said = [one.message for one in caplog.records if cause in one.message]
        return all(any(line.startswith(part) for line in said) for part in parts)

    async with (
        publishing(publisher(worker, url, prefix)),
        router(tmp_path, url, prefix, seen(worker), "share-bookings = true"),
    ):
        while not told(f"127.0.0.1:{held_port}"):
            await asyncio.sleep(0.02)
        with RedisServer(port=held_port, users=("user default on >secret ~* +@all",)):
            while not told("wants a password"):
                await asyncio.sleep(0.02)


async def test_another_hash_seed_is_named_and_nothing_is_matched(
    tmp_path: Path, worker: LocalWorker, redis_server: RedisServer, prefix: str
) -> None:
    url = redis_server.url
    await generate(worker, IDS)
    async with (
        publishing(publisher(worker, url, prefix, hash_seed="another")),
        router(tmp_path, url, prefix, seen(worker)) as one,
    ):
        while "hash-seed" not in (await one.trust()).reason:
            await asyncio.sleep(0.02)
        assert (await one.trust()).level == pb.Trust.COLD
        assert await one.score() == {"w": 0}


async def test_another_versions_data_are_refused_by_name(
    tmp_path: Path, worker: LocalWorker, redis_server: RedisServer, prefix: str
) -> None:
    redis_server.ask("HSET", KeyNames(prefix).schema, "schema", "99")
    async with router(tmp_path, redis_server.url, prefix, seen(worker)) as one:
        while "schema 99" not in (await one.trust()).reason:
            await asyncio.sleep(0.02)
        assert await one.score() == {"w": 0}


@pytest.mark.parametrize(
    "options",
    ['mode = "shared"', 'mode = "replica"', 'mode = "replica"\nshare-bookings = true'],
)
async def test_a_router_sweeps_once_however_it_uses_the_index(
    tmp_path: Path,
    redis_server: RedisServer,
    prefix: str,
    options: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    owners: list[str] = []

    async def run(sweeper: Sweeper) -> None:
        owners.append(sweeper._owner)
        await asyncio.Event().wait()

    monkeypatch.setattr(Sweeper, "run", run)
    async with router(tmp_path, redis_server.url, prefix, "", options):
        pass
    assert len(owners) == 1
