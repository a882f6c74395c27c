"""What happens between the parts and a server: connections are cut, slow and narrow.

Writers and readers have a relay of their own each, so that one can be cut off without the other.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

from tests.faults.rig import Outcome, Rig, rig
from tests.servers.redis_server import RedisServer
from tests.servers.relay import Relay

CUTS = 6
"""Of each kind, at least."""
LATENCY = 0.2
"""Seconds each way: a round trip takes longer than a look-up may, and less than a poll may."""
NARROW = 40_000
"""Bytes per second, each way and connection."""
PATIENT_LEASE = 4.0
"""Of publishers that are far away: a tenth is an audit, a fifth a round trip's timeout."""


@asynccontextmanager
async def relayed(prefix: str, lease: float = 2.0) -> AsyncIterator[tuple[Rig, list[Relay]]]:
    """Have a rig whose writers and readers reach the server through relays: theirs, in this order."""
    with RedisServer() as server, Relay(server.port) as writers, Relay(server.port) as readers:
        urls = {"writers": writers.url, "readers": readers.url}
        async with rig(server.url, prefix, lease=lease, **urls) as made:
            await made.begin()
            yield made, [writers, readers]


async def cut(prefix: str, hold: float) -> Outcome:
    """Cut connections in the middle of requests and replies, and between the two."""
    rng = Random(3)
    async with relayed(prefix) as (made, relays):
        for relay in relays:
            for _ in range(CUTS + round(hold)):
                for way in ("requests_left", "replies_left"):
                    # With 0 the first reply is cut: what was asked is done, and nobody is told.
                    setattr(relay, way, rng.choice([0, rng.randrange(200), rng.randrange(5000)]))
                    cuts = relay.cuts
                    await made.until(lambda c=cuts, r=relay: r.cuts > c, "it is cut")
        await made.lasts(hold)
        return await made.healed()


async def slow(prefix: str, hold: float) -> Outcome:
    """Let everything take 0.4 s there and back."""
    async with relayed(prefix, PATIENT_LEASE) as (made, relays):
        for relay in relays:
            relay.latency = LATENCY
        await made.doubted(made.looking)
        await made.lasts(hold)
        for relay in relays:
            relay.latency = 0.0
        return await made.healed()


async def narrow(prefix: str, hold: float) -> Outcome:
    """Let 40 kB pass each second."""
    async with relayed(prefix, PATIENT_LEASE) as (made, relays):
        for relay in relays:
            relay.bytes_per_second = NARROW
        await made.lasts(hold)
        applied = {one: pod.publisher.writer.applied for one, pod in made.pods.items()}
        await made.until(
            lambda: all(
                pod.publisher.writer.applied > applied[one] for one, pod in made.pods.items()
            ),
            "publishers go on writing",
        )
        for relay in relays:
            relay.bytes_per_second = 0
        return await made.healed()


async def readers_cut_off(prefix: str, hold: float) -> Outcome:
    """Let readers reach nothing, while publishers write on."""
    async with relayed(prefix) as (made, [_, readers]):
        readers.refuse()
        readers.cut()
        await made.doubted()
        await made.lasts(hold)
        readers.refuse(False)
        return await made.healed()


async def writers_cut_off(prefix: str, hold: float) -> Outcome:
    """Let publishers reach nothing until their leases are over, while readers read on."""
    async with relayed(prefix) as (made, [writers, _]):
        writers.refuse()
        writers.cut()
        await made.until(
            lambda: all(
                any("no publisher" in reason for reason in reader.reasons)
                for reader in made.readers
            ),
            "the pods are gone",
        )
        await made.lasts(hold)
        writers.refuse(False)
        return await made.healed()
