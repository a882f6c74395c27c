"""The publisher as it runs, writing to the shared index: beside a worker, with a real Redis."""

import asyncio

import aiohttp
import grpc.aio
import pytest
from prometheus_client.parser import text_string_to_metric_families as families

from tests.indexer.shared.writer_model import read_bucket
from tests.publisher.published_pod import IDS, Pod
from tests.servers.redis_server import RedisServer
from tests.until import until
from warmpath.indexer.engines.event import Tier
from warmpath.indexer.keys.key import Keyspace, chain, fingerprint, pack_tokens
from warmpath.indexer.keys.segment import SEGMENT
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.layout.record import Record, read_record
from warmpath.lab.local.cluster import MODEL
from warmpath.proto.pb.warmpath.watch.v1 import cache_watch_pb2 as watch_pb
from warmpath.proto.pb.warmpath.watch.v1 import cache_watch_pb2_grpc
from warmpath.publisher.main import main
from warmpath.publisher.metrics import DECLARED

LEASE = 2
KEYS = chain(Keyspace(model=MODEL, block_size=16).root(), pack_tokens(IDS), 16)


def options(server: RedisServer, prefix: str) -> tuple[str, ...]:
    return (f"--redis={server.url}", f"--redis-prefix={prefix}", f"--redis-lease-seconds={LEASE}")


def record_of(server: RedisServer, names: KeyNames) -> Record | None:
    return read_record(server.ask("HGETALL", names.record("p")))


def holds(server: RedisServer, names: KeyNames, keys: list[int]) -> bool:
    """Whether a sound record says so, and its slots are where readers look for these keys."""
    record = record_of(server, names)
    if record is None or not record.sound or record.claim is None:
        return False
    slots = {record.claim.slot(n) for n, spot in enumerate(record.claim.places) if spot}
    found: dict[int, set[int]] = {}
    for segment in keys[::SEGMENT]:
        bucket = server.ask("HGETALL", names.bucket(names.bucket_of(segment)))
        value = bucket.get(segment.to_bytes(8, "little"))
        if value is not None:
            found |= read_bucket({segment.to_bytes(8, "little"): value})[1]
    return all(found.get(key, set()) & slots for key in keys)


async def test_what_the_worker_caches_is_in_redis_and_gone_within_the_lease_of_its_publisher(
    pod: Pod, redis_server: RedisServer, prefix: str
) -> None:
    names = KeyNames(prefix)
    await pod.publish(*options(redis_server, prefix))
    await pod.generate(IDS)
    await until(lambda: holds(redis_server, names, KEYS[:-1]), "the prompt is in Redis")
    record = record_of(redis_server, names)
    assert record is not None
    assert record.claim is not None
    assert record.claim.watch == pod.address
    assert record.claim.model == MODEL
    assert record.claim.keyspace == fingerprint(MODEL, "")
    assert record.blocks[0][Tier.GPU] >= len(KEYS) - 1
    pod.publisher.kill()
    await until(lambda: record_of(redis_server, names) is None, "the lease is over")


async def test_where_others_reach_it_is_told_as_it_is_advertised(
    pod: Pod, redis_server: RedisServer, prefix: str
) -> None:
    names = KeyNames(prefix)
    await pod.publish(*options(redis_server, prefix), "--advertise=publisher.example:7500")
    await until(lambda: (record := record_of(redis_server, names)) and record.claim, "it claims")
    record = record_of(redis_server, names)
    assert record is not None
    assert record.claim is not None
    assert record.claim.watch == "publisher.example:7500"


async def test_it_starts_and_serves_watchers_while_redis_is_away_and_writes_when_it_is_there(
    pod: Pod, prefix: str, held_port: int
) -> None:
    names = KeyNames(prefix)
    with RedisServer("redis") as server:
        server.stop()
        await pod.publish(*options(server, prefix), f"--metrics-listen=127.0.0.1:{held_port}")
        await pod.generate(IDS)
        async with grpc.aio.insecure_channel(pod.address) as channel:
            stub = cache_watch_pb2_grpc.CacheWatchStub(channel)
            request = watch_pb.WatchRequest(keyspace=fingerprint(MODEL, ""))
            parts = 0
            async for response in stub.Watch(request):  # type: ignore[attr-defined]
                if response.HasField("part") or response.HasField("delta"):
                    parts += 1
                    break
            assert parts
        url = f"http://127.0.0.1:{held_port}/metrics"
        async with aiohttp.ClientSession() as http:

            async def metrics() -> str:
                async with http.get(url) as response:
                    return await response.text()

            while "warmpath_publisher_redis_trouble 1.0" not in await metrics():
                await asyncio.sleep(0.02)
            server.restart()
            await until(lambda: holds(server, names, KEYS[:-1]), "the prompt is in Redis")
            text = ""
            while (
                "warmpath_publisher_redis_audits_total 0.0" in text
                or 'warmpath_publisher_redis_state{state="current"} 1.0' not in text
            ):
                await asyncio.sleep(0.02)
                text = await metrics()
    assert 'warmpath_publisher_redis_rebuilds_total{cause="start"} 1.0' in text
    shown = {one.name.removeprefix("warmpath_publisher_") for one in families(text)}
    assert shown >= DECLARED.keys()


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("--redis=http://h:1", "--redis:"),
        ("--redis=redis://u:secret@h:1", "`--redis-user` and the password in a file by `--redis-p"),
        ("--redis-user=u", "publish: --redis-user: needs a --redis-password-file"),
        ("--redis-password-file=/nowhere/x", "publish: --redis-password-file: there is no file /nowhere/x"),
        ("--redis-ca=/dev/null", "publish: --redis-ca: is for TLS"),
    ],
)  # fmt: skip
def test_what_redis_cannot_be_reached_with_is_said_at_the_start(
    given: str, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--pod=p", "--model=m", "--events=tcp://127.0.0.1:1", "--listen=127.0.0.1:0"]
    options += ["--metrics-listen=", "--redis=redis://127.0.0.1:1", given]
    with pytest.raises(SystemExit, match="2"):
        main(options)
    assert named in capsys.readouterr().err


def test_a_file_for_redis_that_is_there_may_be_right_at_the_next_start(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ["--pod=p", "--model=m", "--events=tcp://127.0.0.1:1", "--listen=127.0.0.1:0"]
    options += ["--metrics-listen=", "--redis=rediss://127.0.0.1:1", f"--redis-ca={__file__}"]
    assert main(options) == 1
    assert __file__ in capsys.readouterr().err
