"""A publisher whose loop turns when a test says so, an engine, a model of Redis and a reader, by virtual time.

`World.now` is the true time, which nobody knows. The publisher, Redis and the reader have clocks of
their own.
"""

from collections import deque
from collections.abc import Callable

from tests.indexer.engine_model import EngineModel
from tests.indexer.followed import published
from tests.indexer.shared.publisher_model import Driven, new_writer
from tests.indexer.shared.redis_model import RedisModel
from warmpath.indexer.engines.event import Tier
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.records.registry import Registry
from warmpath.indexer.shared.redis.command import Call, Command, Reply, UnreachableError
from warmpath.indexer.trust import Level
from warmpath.indexer.watch.pod_cache import Journal, PodCache
from warmpath.indexer.watch.watched_source import STEP

POD = "p"
LEASE = 10.0
Held = frozenset[tuple[Tier, int]]
"""The keys of the engine's blocks, each with its tier."""


class Follower:
    """What somebody knows of the engine who has heard some of its messages."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.cache = PodCache(POD, Journal("epoch", max_bytes=1500))
        # Else a block that is announced again leaves doubt about its copies.
        capacity = EngineModel().capacity
        self.rank, self.resolver = published(self.cache, POD, clock=clock, capacity=capacity)

    def heard(self, message: tuple[int, bytes]) -> None:
        self.rank.live("", *message)

    @property
    def held(self) -> Held:
        held = self.resolver.names.held()
        return frozenset((tier, key) for (tier, _), keys in held.items() for key in keys)


class World(Driven):
    """All of it. `publisher_rate` and `reader_rate` are how fast their clocks go."""

    def __init__(self, publisher_rate: float = 1.0, reader_rate: float = 1.0) -> None:
        self.now = 1000.0
        self.publisher_clock = lambda: self.now * publisher_rate + 5_000.0
        self.reader_clock = lambda: self.now * reader_rate - 300.0
        self.names = KeyNames("t", buckets=3)
        self.redis = RedisModel(lambda: self.now)
        self.engine = EngineModel()
        self.truth = Follower(lambda: self.now)
        """Hears each message at once."""
        self.truths: deque[tuple[float, Held]] = deque([(self.now, frozenset())], maxlen=500)
        """What the engine held from when on."""
        self.follower = Follower(self.publisher_clock)
        self.sent: deque[tuple[float, tuple[int, bytes]]] = deque()
        """Messages that the publisher has not heard yet, and when each was sent."""
        self.turns: deque[float] = deque([self.now, self.now], maxlen=2)
        """The last turns of the publisher's loop."""
        self.bases = 0
        writer = new_writer(
            self.names, self.follower.cache, self.publisher_clock,
            lease=LEASE, bucket_life=1e6, random_base=self.base,
        )  # fmt: skip
        super().__init__(writer, self.publisher_clock)
        self.registry = Registry(Nowhere(), self.names, self.reader_clock)
        # Nobody believes anything of an engine before its first message.
        self.publish(self.engine.store((0, 0)))

    def base(self) -> int:
        self.bases += 1
        return self.bases

    # The engine and the publisher's loop

    def publish(self, message: tuple[int, bytes] | None) -> None:
        """Let the engine publish what it did."""
        if message is not None:
            self.truth.heard(message)
            self.sent.append((self.now, message))
            self.truths.append((self.now, self.truth.held))

    def turn(self) -> None:
        """Let the publisher's loop turn once.

        It hears what ZeroMQ's thread had taken from the socket by its last turn. That thread may have
        needed all the time since the turn before that one, and no less than `STEP`.
        """
        if self.now - self.turns[-1] >= STEP:
            before = self.turns[0]
            while self.sent and self.sent[0][0] <= before:
                self.follower.heard(self.sent.popleft()[1])
            self.turns.append(self.now)
        self.follower.rank.tick()
        self.follower.cache.collect()
        self.follower.cache.pulse.beat(self.publisher_clock())

    # The writer

    def write(self) -> None:
        """Let the writer do all that is due now; Redis answers at once."""
        while self.is_due:
            self.go_on([self.redis.run(one) for one in self.asked])

    # The reader

    def record(self) -> Reply:
        """Return the reply to HGETALL for the record."""
        self.redis.expire()
        words: list[bytes] = []
        for name, value in self.redis.keys.get(self.names.record(POD), {}).items():
            words += [name.encode(), value if isinstance(value, bytes) else str(value).encode()]
        return words

    def read(self, reply: Reply, asked_at: float) -> None:
        """Let the reader take a reply that it asked for then, by its clock."""
        self.registry._take([POD], [reply], 0, asked_at)

    @property
    def is_believed(self) -> bool:
        """Whether the reader calls the pod's rank exact."""
        return self.registry.trust_of(POD, 0)[0] is Level.EXACT

    @property
    def found(self) -> Held:
        """What is in Redis now, under the claim that the reader knows."""
        record = self.registry.reading(POD).record
        assert record is not None
        assert record.claim is not None
        found = self.redis.found(self.names, record.claim)
        return frozenset((spot.tier, key) for spot, key in found)

    def is_of_the_last(self, seconds: float, found: Held) -> bool:
        """Whether each block that is found, and each that is not, was so at some moment of that time."""
        since = self.now - seconds
        times = [at for at, _ in self.truths]
        begun = max((n for n, at in enumerate(times) if at <= since), default=0)
        recent = [held for n, (_, held) in enumerate(self.truths) if n >= begun]
        return frozenset.intersection(*recent) <= found <= frozenset.union(*recent)


class Nowhere:
    """A Redis that nobody asks."""

    disruptions = 0

    async def run(self, asked: "list[Command | Call]", *, timeout: float) -> list[Reply]:
        del timeout
        return [UnreachableError("nobody is there")] * len(asked)

    async def close(self) -> None:
        pass
