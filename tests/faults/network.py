"""Faults of the network to a server: cut, slow and narrow connections.

Writers and readers have separate relays, so that one group can be cut off without the other.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

from tests.faults.rig import BEHIND, DEFAULT_LEASE, Outcome, Rig, rig
from tests.servers.redis_server import RedisServer
from tests.servers.relay import Relay

CUTS = 6
"""Least number of cuts of each kind."""
LATENCY = 0.2
"""Seconds each way; a round trip then exceeds the deadline of a look-up but not that of a poll."""
NARROW, THIN = 40_000, 6_000
"""Bytes per second, for each direction of each connection. Over a thin line publishers fall behind."""
PATIENT_LEASE = 4.0
"""Lease of distant publishers, in seconds; an audit comes each tenth of it, a timeout is a fifth."""


@asynccontextmanager
async def relayed(prefix: str, lease: float = 2.0) -> AsyncIterator[tuple[Rig, list[Relay]]]:
    """Yield a rig whose writers and readers use relays, and these two relays in that order."""
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
                    # With 0 the first reply is cut: the command is done, but its caller gets no reply.
                    setattr(relay, way, rng.choice([0, rng.randrange(200), rng.randrange(5000)]))
                    cuts = relay.cuts
                    await made.until(lambda c=cuts, r=relay: r.cuts > c, "it is cut")
        await made.lasts(hold)
        return await made.healed()


async def slow(prefix: str, hold: float) -> Outcome:
    """Delay requests and replies by 0.2 s each, so a round trip by 0.4 s."""
    async with relayed(prefix, PATIENT_LEASE) as (made, relays):
        for relay in relays:
            relay.latency = LATENCY
        await made.doubted(made.readers[1])
        await made.lasts(hold)
        for relay in relays:
            relay.latency = 0.0
        return await made.healed()


async def far(
    prefix: str,
    hold: float,
    *,
    latency: float = 0.0,
    rate: int = 0,
    lease: float = DEFAULT_LEASE,
    lasts: float = BEHIND,
) -> Outcome:
    """Put publishers alone far away: seconds each way, or bytes per second each way."""
    async with relayed(prefix, lease) as (made, [writers, _]):
        writers.latency, writers.bytes_per_second = latency, rate
        await made.lasts(lasts + hold)
        writers.latency, writers.bytes_per_second = 0.0, 0
        return await made.healed()


async def silent(prefix: str, hold: float) -> Outcome:
    """Let nothing of publishers through for a time; their connections stay, and their leases hold."""
    async with relayed(prefix, DEFAULT_LEASE) as (made, [writers, _]):
        writers.pause()
        await made.lasts(BEHIND + hold)
        writers.resume()
        return await made.healed()


async def narrow(prefix: str, hold: float) -> Outcome:
    """Limit connections to 40 kB per second."""
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
    """Cut the readers off while publishers go on writing."""
    async with relayed(prefix) as (made, [_, readers]):
        readers.refuse()
        readers.cut()
        await made.doubted()
        await made.lasts(hold)
        readers.refuse(False)
        return await made.healed()


async def writers_cut_off(prefix: str, hold: float) -> Outcome:
    """Cut publishers off until their leases have ended, while readers go on reading."""
    async with relayed(prefix) as (made, [writers, _]):
        writers.refuse()
        writers.cut()
        await made.gone()
        await made.lasts(hold)
        writers.refuse(False)
        return await made.healed()
