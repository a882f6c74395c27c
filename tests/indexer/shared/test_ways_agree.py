"""Whatever an engine publishes, a router shows the same by whichever way it comes to know of it.

A router that follows the engine itself is the measure. Beside it a publisher follows the engine, and
three routers follow the publisher: by its watch service, by a replica of the shared index, and by
look-ups in it. The frames are hostile: names that stand for several contents, unknown parents, batches
that are lost or damaged.
"""

import asyncio
from collections.abc import Callable
from random import Random

import msgspec
import pytest

from tests.examples import examples
from tests.indexer.consistent import check
from tests.indexer.engine_model import EngineModel
from tests.indexer.followed import new_ingest
from tests.indexer.shared.asked_server import AskedServer
from tests.indexer.shared.inside import check_remote
from tests.indexer.shared.publisher_model import PublisherModel
from tests.indexer.sides import CLEARED, Event, Side, removed, stored
from warmpath.indexer.compiled.array_index import ArrayIndex
from warmpath.indexer.embedded import packed_keys
from warmpath.indexer.index.slot import Place
from warmpath.indexer.keys.key import Chain, Keyspace, pack_tokens
from warmpath.indexer.keys.segment import SEGMENT
from warmpath.indexer.rank import Rank
from warmpath.indexer.ranks import Ingest
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.query.index import RemoteIndex
from warmpath.indexer.shared.records.registry import Registry
from warmpath.indexer.shared.replica.pod_copy import CopyState
from warmpath.indexer.shared.replica.run import Replica
from warmpath.indexer.trust import Level
from warmpath.indexer.watch.watched_source import WatchedRank

SCRIPTS = examples(60)
"""Random scripts that are run; a failure names the seed of its script."""
PODS = ("a", "b")
RANKS = 2
NAMES = [*range(8), *(n << 48 for n in range(1, 4)), (1 << 64) - 1, b"", b"x" * 32]
MEDIA = ["GPU", "GPU", "GPU", None, "CPU", "DISK", "tape"]
LONG = SEGMENT + 8
"""Blocks of a store that reaches past a segment."""
PROMPTS = [
    *([n >> bit & 1 for bit in range(8)] for n in range(0, 256, 23)),
    [0] * (2 * LONG + 8),
    [0] * (2 * LONG) + [1] * 8,
]
KINDS = [("", ""), ("x", ""), ("", "salt")]
"""Adapters and salts of prompts."""

Held = dict[tuple[str, int, str, int], frozenset[int]]
"""Blocks of a prompt by pod, rank, tier and group."""


class Ways:
    """Two pods, their publishers, and a router for each way."""

    def __init__(self, server: AskedServer, names: KeyNames) -> None:
        self.now = 1000.0
        server.clock = lambda: self.now
        self.runner = asyncio.Runner()
        self.direct = Side("pure")
        engines = [EngineModel() for _ in range(RANKS)]
        self.publishers = {
            pod: PublisherModel(
                names, pod, engines, life=1 + number, do=server.do, clock=lambda: self.now
            )
            for number, pod in enumerate(PODS)
        }
        self.watch = self.ingest()
        self.watched = {pod: [self.watch.watch(pod, n) for n in range(RANKS)] for pod in PODS}
        self.told = dict.fromkeys(PODS, -1)
        self.replica = Replica(server, names, poll_seconds=0.05, clock=lambda: self.now)
        self.copied = self.ingest()
        for pod in PODS:
            for number, rank in enumerate(self.watched[pod]):
                self.direct.rank(pod, number)
                rank.connected()
            self.replica.add(pod, [self.copied.watch(pod, n) for n in range(RANKS)], "keyspace")
        registry = Registry(server, names, lambda: self.now)
        self.remote = RemoteIndex(
            server, names, registry, deadline=5.0, stale_after=60.0, clock=lambda: self.now
        )
        self.asked = self.ingest(self.remote)
        for pod in PODS:
            for number in range(RANKS):
                self.asked.add_shared(pod, number, keyspace="keyspace", ranks=RANKS)

    def ingest(self, remote: RemoteIndex | None = None) -> Ingest:
        return new_ingest(
            lambda: ArrayIndex(1 << 22), stale_after=60.0, clock=lambda: self.now, remote=remote
        )

    def frame(self, pod: str, number: int, payload: bytes) -> None:
        """Let a rank publish one batch."""
        self.publishers[pod].heard(number, (self.direct.sequence[pod, number], payload))
        self.direct.frames(pod, [payload], number=number)
        self.publishers[pod].cache.collect()

    def lose(self, pod: str, number: int) -> None:
        """Let a batch get lost."""
        self.direct.lose(pod, number)

    def restart(self, pod: str, number: int) -> None:
        """Let a rank's engine begin anew: its batches are numbered from 0 on."""
        self.direct.sequence[pod, number] = 0

    def settle(self) -> None:
        """Let all that is on its way arrive."""
        self.direct.ingest.tick(1 << 16)
        for pod, publisher in self.publishers.items():
            publisher.cache.collect()
            self.follow(pod)
        for _ in range(200):
            for publisher in self.publishers.values():
                publisher.write(20)
                publisher.audit()
            # Past the time for which an answer counts as fresh.
            self.now += 0.5
            self.runner.run(self.step())
            if all(map(self.is_current, PODS)):
                break
        else:
            raise AssertionError([rank.trust for rank in (*self.copied, *self.asked)])
        for one in (self.direct.ingest, self.watch, self.copied, self.asked):
            one.tick(1 << 16)
            check(one)
        check_remote(self.remote)

    async def step(self) -> None:
        await self.replica.step()
        await self.remote.poll()

    def is_current(self, pod: str) -> bool:
        """Whether Redis and both of its readers are where a pod's publisher is, and are sure of it."""
        publisher, copy = self.publishers[pod], self.replica._copies[pod]
        return (
            publisher.is_current
            and copy.state is CopyState.FOLLOWING
            and copy.position == publisher.cache.journal.sequence
            and all(
                rank_of(ingest, pod, told.number).trust.level is told.trust.level
                for told in publisher.cache.ranks
                for ingest in (self.copied, self.asked)
            )
        )

    def follow(self, pod: str) -> None:
        """Let the watching router take what its publisher has sent since."""
        cache, ranks = self.publishers[pod].cache, self.watched[pod]
        deltas = cache.journal.after(self.told[pod], 1 << 20) if self.told[pod] >= 0 else None
        if deltas is None:
            self.load(ranks, pod)
        for delta in deltas or ():
            ranks[delta.state.rank].take_delta(delta)
            self.told[pod] = delta.sequence

    def load(self, ranks: list[WatchedRank], pod: str) -> None:
        """Let the watching router take a snapshot."""
        for rank in ranks:
            rank.begin_snapshot()
        for message in self.publishers[pod].cache.snapshot():
            if message.WhichOneof("kind") == "part":
                ranks[message.part.rank].take_part(message.part)
            else:
                for state in message.end.ranks:
                    ranks[state.rank].take_state(state)
                self.told[pod] = message.end.sequence

    def close(self) -> None:
        self.runner.run(self.remote.close())
        self.runner.close()

    # What each shows

    def held(self, ingest: Ingest, chain: Chain) -> Held:
        found: Held = {}
        for place, start, stop in self.runner.run(self.match(ingest, chain)):
            name = place.pod, place.rank, str(place.tier), place.group
            found[name] = found.get(name, frozenset()) | frozenset(range(start, stop))
        return found

    async def match(self, ingest: Ingest, chain: Chain) -> list[tuple[Place, int, int]]:
        found = ingest.match(chain)
        if ingest.remote is not None:
            await ingest.remote.refresh([packed_keys(chain)], 5.0)
            found += ingest.remote.match(chain)[0]
        return found


class Script:
    """A random history; some are tame, so that most of it is plain."""

    def __init__(self, seed: int, ways: Ways) -> None:
        self.rng = rng = Random(seed)
        self.ways = ways
        self.sizes = rng.choice([[2], [2], [2, 4]])
        self.names = rng.sample(NAMES, rng.choice([3, 6, len(NAMES)]))
        self.oddities = rng.choice([[], [], ["salt"], ["lora", "salt", "image"], ["group"]])
        self.media = rng.choice([["GPU"], MEDIA])
        self.mishaps: list[Callable[[str, int], None]] = [
            ways.lose,
            ways.restart,
            lambda pod, number: ways.frame(pod, number, b"\x93"),
        ]

    def step(self) -> None:
        """Let one thing happen to one rank."""
        rng = self.rng
        pod, number = rng.choice(PODS), rng.randrange(RANKS)
        if rng.random() < 0.06:
            rng.choice(self.mishaps)(pod, number)
            return
        events = [self.event() for _ in range(rng.choice([1, 1, 2, 4]))]
        self.ways.frame(pod, number, msgspec.msgpack.encode([0.5, events, number]))

    def event(self) -> Event:
        rng = self.rng
        if rng.random() < 0.01:
            return CLEARED
        medium = rng.choice(self.media)
        if rng.random() < 0.05:
            return stored(range(100, 100 + LONG), [0] * 2 * LONG, None, 2, medium=medium)
        names = list(dict.fromkeys(rng.choice(self.names) for _ in range(rng.choice([1, 2, 3, 5]))))
        odd = rng.choice([*self.oddities, *[""] * 4])
        group = {"group_idx": rng.randrange(2)} if odd == "group" else {}
        if rng.random() < 0.35:
            some = rng.choice([names, names, list(range(100 + rng.randrange(LONG), 100 + LONG))])
            return removed(some, medium, **group)
        size = rng.choice(self.sizes)
        tokens = [rng.randrange(2) for _ in range(size * len(names))]
        parent = rng.choice([*self.names, 99 + LONG]) if rng.random() < 0.6 else None
        rest = [None] * (len(names) - 1)
        more: dict[str, object] = {
            "lora": {"lora_name": "x", "lora_id": 1},
            "salt": {"extra_keys": [["salt"], *rest]},
            "image": {"extra_keys": [[["image", 1]], *rest]},
            "group": {
                **group,
                "kv_cache_spec_kind": rng.choice(["full_attention", "sliding_window"]),
                "kv_cache_spec_sliding_window": 5,
            },
        }.get(odd, {})
        return stored(names, tokens, parent, size, medium=medium, **more)


@pytest.mark.random
@pytest.mark.parametrize("seed", range(SCRIPTS))
def test_each_way_shows_what_the_engine_published(asked_server: AskedServer, seed: int) -> None:
    ways = Ways(asked_server, KeyNames("ways", buckets=3))
    script = Script(seed, ways)
    try:
        for _ in range(script.rng.choice([1, 3, 6])):
            for _ in range(script.rng.choice([1, 5, 15])):
                script.step()
            ways.settle()
            compare(ways)
    finally:
        ways.close()


def compare(ways: Ways) -> None:
    direct = ways.direct.ingest
    others = {"watch": ways.watch, "replica": ways.copied, "shared": ways.asked}
    for lora, salt in KINDS:
        for size in (2, 4):
            for tokens in PROMPTS:
                root = Keyspace("m", size, lora, salt).root()
                chain = Chain(root, pack_tokens(tokens), size, len(tokens) // size)
                truth = ways.held(direct, chain)
                for way, ingest in others.items():
                    assert (way, ways.held(ingest, chain)) == (way, truth)
    for pod in PODS:
        for number in range(RANKS):
            own = rank_of(direct, pod, number)
            for way, ingest in others.items():
                other = rank_of(ingest, pod, number)
                assert (way, other.trust.level) == (way, own.trust.level), other.trust.reason
                assert (way, blocks(other)) == (way, blocks(own))
                if own.layout.block_size:
                    assert (way, other.layout.groups) == (way, own.layout.groups)


def rank_of(ingest: Ingest, pod: str, number: int) -> Rank:
    rank = ingest.rank(pod, number)
    assert rank is not None
    return rank


def blocks(rank: Rank) -> dict[object, int]:
    return {tier: count for tier, count in rank.blocks().items() if count}


def test_some_scripts_leave_ranks_exact_and_some_do_not(asked_server: AskedServer) -> None:
    """Let the comparison above be one of both."""
    levels: set[Level] = set()
    for seed in range(12):
        asked_server.client.flushall()
        ways = Ways(asked_server, KeyNames("ways", buckets=3))
        script = Script(seed, ways)
        for _ in range(10):
            script.step()
        levels |= {rank.trust.level for rank in ways.direct.ingest}
        ways.close()
    assert {Level.EXACT, Level.DEGRADED} <= levels
