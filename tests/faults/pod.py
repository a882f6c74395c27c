"""A pod under faults: an engine whose cache is the truth, and publishers that follow it."""

import asyncio
import time
from collections.abc import Callable
from functools import lru_cache
from random import Random

from tests.faults.history import Held, History
from tests.indexer.engine_model import BLOCK, Block, EngineModel
from tests.indexer.shared.publisher_model import new_writer
from warmpath.indexer.engines import vllm
from warmpath.indexer.engines.event import Tier
from warmpath.indexer.follow.instance import RankSource
from warmpath.indexer.keys.key import Keyspace, chain, fingerprint, pack_tokens
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.redis.command import Redis
from warmpath.indexer.shared.writer.machine import WriterState
from warmpath.indexer.shared.writer.run import write
from warmpath.indexer.watch.pod_cache import Journal, PodCache
from warmpath.process.tasks import cancel, watched
from warmpath.publisher.assemble import COLLECT_SECONDS, collect_forever

MODEL = "m"
KEYSPACE = fingerprint(MODEL, "")
CAPACITY = 120
TIMEOUT_OF_A_LEASE = 0.2
"""The same share of the lease as in `publisher.assemble`."""

Clock = Callable[[], float]
Message = tuple[int, bytes]
"""A batch of events: its sequence, and its payload."""

_RNG = Random(1)
BASES = [[_RNG.randrange(50_000) for _ in range(2 * length)] for length in (3, 40, 60)]
TAILS = [[_RNG.randrange(50_000) for _ in range(2 * _RNG.randint(1, 30))] for _ in range(8)]
PROMPTS = [tuple(base + tail) for base in BASES for tail in TAILS]
"""All prompts that are used; many share their beginning, some are longer than a segment."""


@lru_cache(1 << 16)
def _key_of(block: Block) -> int:
    lora, salt, tokens = block
    root = Keyspace(model=MODEL, block_size=BLOCK, lora=lora, cache_salt=salt).root()
    return chain(root, pack_tokens(tokens), BLOCK)[-1]


class Engine(EngineModel):
    """The engine model, which also remembers the keys of all blocks that it computed."""

    def timestamp(self) -> float:
        return time.time()

    def truth(self) -> Held:
        tiers = {Tier.GPU: self.gpu, Tier.CPU: self.cpu}
        return {tier: {_key_of(one) for one in blocks} for tier, blocks in tiers.items()}


class Pod:
    """An engine, its messages since its start, and the publishers that follow it."""

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.engine = Engine(capacity=CAPACITY)
        self.history = History()
        self.publishers: list[Publisher] = []
        """All publishers, ended ones included."""
        self._rng = Random(seed)
        self._said: list[tuple[Message, Held]] = []
        self._followers: list[Callable[[Message, Held], object]] = []

    @property
    def publisher(self) -> "Publisher":
        """The publisher that was started last."""
        return self.publishers[-1]

    def follow(self, hear: Callable[[Message, Held], object]) -> None:
        """Tell a follower all earlier and later messages of the engine, each with what it then held."""
        for message, held in self._said:
            hear(message, held)
        self._followers.append(hear)

    def step(self) -> None:
        """Serve a request, or cause another random change of the cache."""
        before = time.monotonic()
        chance, which = self._rng.random(), self._rng.randrange(1 << 16)
        engine = self.engine
        message: Message | None
        if chance < 0.8:
            message = engine.store(self._rng.choice(PROMPTS))
        elif chance < 0.9:
            message = engine.evict(which)
        elif chance < 0.96:
            message = engine.offload(which)
        elif chance < 0.99:
            message = engine.drop_offloaded()
        else:
            message = engine.clear()
        engine.snapshots.clear()
        if message is None:
            return
        held = engine.truth()
        self._said.append((message, held))
        for hear in self._followers:
            hear(message, held)
        self.history.changed(before, time.monotonic(), held)


class Publisher:
    """One life of a pod's publisher: its copy of the engine's cache, and a running writer."""

    def __init__(
        self, pod: Pod, redis: Redis, names: KeyNames, *, lease: float, clock: Clock
    ) -> None:
        self.pod = pod
        self.redis = redis
        number = len(pod.publishers)
        self.owner = f"publisher {number} of {pod.name}"
        self.cache = PodCache(pod.name, Journal(f"life-{number}", max_bytes=4 << 20))
        source = RankSource(pod.name, 0, MODEL, vllm.decode, has_replay=False)
        self._rank = self.cache.add(source, stale_after=1e9, segmented=True, clock=lambda: 0.0)
        self._rank.connected()
        self._news = asyncio.Event()
        self.writer = new_writer(
            names, self.cache, clock, owner=self.owner, keyspace=KEYSPACE, model=MODEL, lease=lease
        )
        self.tasks: list[asyncio.Task[None]] = []
        self._clock = clock
        self._timeout = TIMEOUT_OF_A_LEASE * lease

    def start(self) -> None:
        collecting = collect_forever(
            self.cache, [self._news.set], pause=COLLECT_SECONDS, clock=self._clock
        )
        writing = write(self.redis, self.writer, self._news, timeout=self._timeout)
        self.tasks = [watched(collecting, "collecting"), watched(writing, "writing")]

    def hear(self, message: Message, truth: Held) -> None:
        """Apply one batch of the engine, after which the engine held `truth`."""
        self._rank.live("", *message)
        held = {tier: set(keys) for (tier, _), keys in self._rank.state.held().items() if keys}
        assert held == {tier: keys for tier, keys in truth.items() if keys}
        self.cache.collect()
        self._news.set()

    @property
    def sequence(self) -> int:
        return self.cache.journal.sequence

    @property
    def is_current(self) -> bool:
        """Whether all changes have been written to Redis."""
        writer = self.writer
        return (
            writer.state is WriterState.CURRENT
            and writer.applied == self.sequence
            and not writer.trouble
        )

    async def end(self, *, in_order: bool = True) -> None:
        """Stop the publisher; unless `in_order`, it does not give up its claim."""
        if not in_order:
            self.writer.farewell = list  # type: ignore[method-assign]
        await cancel(self.tasks)
        self.tasks = []
        await self.redis.close()
