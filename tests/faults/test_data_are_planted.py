"""Somebody damages keys by hand: no Score fails, what is called exact is true, and all heals by itself."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial

import pytest

from tests.faults.rig import DEFAULT_LEASE, Rig, rig
from tests.servers.redis_server import RedisServer
from warmpath.indexer.shared.layout.names import BORN, WRITES, KeyNames, checkpoint
from warmpath.indexer.shared.sweep.sweeper import SWEEP_ERRORS, Sweeper
from warmpath.process.tasks import cancel, watched

pytestmark = [pytest.mark.deep, pytest.mark.timeout(900)]


Words = tuple[str | bytes | int, ...]
Damage = tuple[Words, ...]
"""Commands to send."""

ABSURD = ("9007199254740992", "999999999999", "nan")
"""What no number of a pod's claims is."""


def wrong_types(key: str, *, hash_too: bool) -> Iterator[Damage]:
    """Yield what puts another type in the place of a key."""
    kinds: list[Words] = [("HSET", "x", "y") if hash_too else ("SET", "x"), ("RPUSH", "x")]
    # It is moved to the key, since a writer may write there between two commands.
    aside = f"{key} aside"
    for command, *words in kinds:
        yield (command, aside, *words), ("RENAME", aside, key)


def of_shared_keys(names: KeyNames) -> Iterator[Damage]:
    """Yield damage to the keys that belong to no pod."""
    for key in (names.schema, names.pods, names.routers):
        yield from wrong_types(key, hash_too=False)
    yield from wrong_types(names.sweeper, hash_too=True)
    yield (("SET", names.sweeper, "x"),)
    yield (("SET", names.sweeper, "x", "PX", 10**12),)
    yield (("HSET", names.schema, "schema", "x"),)
    yield (("HDEL", names.schema, "schema"),)
    for value in ABSURD:
        yield (("HSET", names.pods, "a", value, "gone", value, b"\xff", value),)


def of_pod_a(names: KeyNames) -> Iterator[Damage]:
    """Yield damage to pod a's record, log and fence, and to its checkpoints."""
    pod = "a"
    record, fence = names.record(pod), names.fence(pod)
    yield from wrong_types(record, hash_too=False)
    yield from wrong_types(names.log(pod), hash_too=True)
    yield from wrong_types(fence, hash_too=True)
    for value in ABSURD:
        yield (("SET", fence, value),)
        for field in ("token", "applied", "audits", "building"):
            yield (("HSET", record, field, value),)
        yield (("HSET", names.bucket(3), checkpoint(pod), f"{value}:0"),)
        yield (("HSET", names.bucket(4), checkpoint(pod), f"1:{value}"),)
        yield tuple(("HSET", names.bucket(n), checkpoint(pod), f"{value}:1") for n in range(64))
    everywhere = [("HSET", names.bucket(n), checkpoint(pod), f"{10**15 - 1}:0") for n in range(64)]
    yield ("SET", fence, 2**53), ("HSET", record, "token", 2**53), *everywhere
    for field in ("claim", "state:0", "blocks:0", "reason", "state:x", "owner"):
        yield (("HSET", record, field, b"\xff{"),)
    yield (("PERSIST", record),)


def of_buckets(names: KeyNames) -> Iterator[Damage]:
    """Yield damage to a bucket."""
    bucket = names.bucket(5)
    segment = (5).to_bytes(8, "little")
    yield from wrong_types(bucket, hash_too=False)
    for value in (b"", b"x", b"\x01\x00\x01\x00short", b"\x02\x00\x00\x00", b"\x03" * 40):
        yield (("HSET", bucket, segment, value),)
        yield (("HSET", bucket, 2 * segment, value),)
    yield (("HSET", bucket, "strange", "x", b"checkpoint of pod/\xff", "x"),)
    yield (("HSET", bucket, BORN, "x"),)
    yield (("HDEL", bucket, BORN),)
    yield (("HDEL", bucket, WRITES),)
    for value in ABSURD:
        yield (("HSET", bucket, WRITES, value),)


@contextlib.asynccontextmanager
async def swept(made: Rig) -> AsyncIterator[None]:
    """Sweep all the time, as routers and publishers do each minute."""
    sweeper = Sweeper(
        made.inspector,
        made.names,
        owner="test",
        clock=time.monotonic,
        fields_per_second=1e6,
        # Readers here read records much more often than the pause before a purge lasts.
        sleep=lambda seconds: asyncio.sleep(min(seconds, 1.0)),
    )

    async def forever() -> None:
        while True:
            with contextlib.suppress(*SWEEP_ERRORS):
                await sweeper.sweep(insist=True)
            await asyncio.sleep(0.1)

    task = watched(forever(), "sweeping")
    try:
        yield
        passes = sweeper.counts.passes
        await made.until(lambda: sweeper.counts.passes > passes + 1, "sweeps go to their end")
    finally:
        await cancel([task])


async def plant(made: Rig, server: RedisServer, damage: Damage, *, claims: bool) -> None:
    """Do the damage; with `claims` pod a is claimed anew, too, while it is there."""
    await made.exact()
    for words in damage:
        await made.work(partial(server.ask, *words))
    async with swept(made):
        if claims:
            await made.work(partial(server.ask, "DEL", made.names.record("a")))
            await made.rewritten()
        await made.goes_on()
        await made.exact()
    # Its writer may not have missed yet what the last pass removed.
    writers = [pod.publisher.writer for pod in made.pods.values()]
    audits = [writer.counts.audits + 2 for writer in writers]
    await made.until(
        lambda: all(
            writer.counts.audits >= due for writer, due in zip(writers, audits, strict=True)
        ),
        "all writers have audited",
    )


@pytest.mark.parametrize("claims", [False, True])
@pytest.mark.parametrize(
    "damages", [of_shared_keys, of_pod_a, of_buckets], ids=["shared keys", "a pod", "buckets"]
)
async def test_whatever_is_planted_all_is_exact_again(
    prefix: str, damages: Callable[[KeyNames], Iterator[Damage]], *, claims: bool
) -> None:
    with RedisServer() as server:
        async with rig(server.url, prefix) as made:
            # Pod b's record does not end by itself, however busy the machine is.
            made.lease = DEFAULT_LEASE
            await made.pods["b"].publisher.end()
            await made.publish(made.pods["b"])
            await made.begin()
            other = made.pods["b"].publisher.writer.counts
            before = other.rebuilds.total()
            for damage in damages(made.names):
                made.begin_count()
                await plant(made, server, damage, claims=claims)
            await made.healed()
            # One pod's damage is that pod's alone.
            assert damages is not of_pod_a or other.rebuilds.total() == before
