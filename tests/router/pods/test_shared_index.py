"""Routers that follow pods through the shared index of a real Redis, also pods that sleep."""

import asyncio
import logging
from pathlib import Path

import pytest

from tests.lab.simworker.local_worker import LocalWorker
from tests.router.shared_stand import IDS, OTHER, Router, generate, page, publisher, router, seen
from tests.servers.redis_server import RedisServer
from tests.waiting import until
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
            await until(lambda: "writing to the shared index" in caplog.text)
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
            await one.holds(96, OTHER)
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
            await one.holds(144)
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
            await one.holds(144)
        await one.until_trust(pb.Trust.COLD)
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
        await until(one.running.readiness.ready)
        assert (await one.trust()).level == pb.Trust.COLD
        # The alert WarmpathRedisAway looks at it.
        assert "\nwarmpath_shared_index_poll_age_seconds " in await page(one)
        with RedisServer(port=held_port) as server:
            await until(one.is_believed)
            await one.holds(144)
            server.kill()
            while (await one.trust()).level != pb.Trust.DEGRADED:
                assert await one.score() == {"w": 144}
                await asyncio.sleep(0.02)
            assert await one.score() == {"w": 144}
            # It comes back with nothing: until all is written anew nobody is believed.
            server.restart()
            await until(one.is_believed)
            await one.holds(144)


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
        await until(lambda: told(f"127.0.0.1:{held_port}"))
        with RedisServer(port=held_port, users=("user default on >secret ~* +@all",)):
            await until(lambda: told("wants a password"))


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
    "options", ['mode = "shared"', 'mode = "replica"', 'mode = "replica"\nshare-bookings = true']
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


async def is_ready(one: Router, *, ready: bool = True) -> None:
    while (await one.pod()).ready is not ready:
        await asyncio.sleep(0.02)


async def call(worker: LocalWorker, path: str) -> None:
    async with worker.http.post(path) as response:
        assert response.status == 200, await response.text()


@pytest.mark.parametrize("mode", ["replica", "shared"])
async def test_a_pod_behind_a_publisher_is_degraded_from_its_sleep_until_its_next_batch(
    tmp_path: Path, worker: LocalWorker, redis_server: RedisServer, prefix: str, mode: str
) -> None:
    url = redis_server.url
    async with (
        publishing(publisher(worker, url, prefix)),
        router(tmp_path, url, prefix, seen(worker), f'mode = "{mode}"', probe_seconds=0.05) as one,
    ):
        await generate(worker, IDS)
        await until(one.is_believed)
        await one.holds(144)
        await call(worker, "/sleep?level=1")
        await is_ready(one, ready=False)
        trust = await one.until_trust(pb.Trust.DEGRADED)
        assert "it sleeps" in trust.reason
        await call(worker, "/wake_up?tags=weights")
        await call(worker, "/wake_up?tags=kv_cache")
        await is_ready(one)
        assert (await one.trust()).level == pb.Trust.DEGRADED, "no batch has said what is gone"
        await generate(worker, OTHER)
        await until(one.is_believed)
        await one.holds(0)
        assert await one.score(OTHER) == {"w": 96}


async def test_a_router_that_starts_while_a_pod_sleeps_takes_no_blocks_of_it_from_its_state(
    tmp_path: Path, worker: LocalWorker, redis_server: RedisServer, prefix: str
) -> None:
    pod = f'{seen(worker)}events = "{worker.events}"\nreplay = "{worker.replay}"\n'
    state = '[index]\nstate-file = "state"'
    url = redis_server.url
    async with router(tmp_path, url, prefix, pod, state, probe_seconds=0.05) as one:
        await until(one.is_believed)
        await generate(worker, IDS)
        await one.holds(144)
    assert (tmp_path / "state").is_file()
    await call(worker, "/sleep?level=2")
    async with router(tmp_path, url, prefix, pod, state, probe_seconds=0.05) as one:
        await is_ready(one, ready=False)
        await one.holds(0)
        await call(worker, "/wake_up")
        await is_ready(one)
        assert await one.score() == {"w": 0}
