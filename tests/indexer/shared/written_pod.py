"""A pod as its publisher writes it to Redis, step by step as a test wants."""

from collections.abc import Mapping, Sequence

import msgspec

from warmpath.indexer.engines.event import Tier
from warmpath.indexer.keys.key import Chain, pack_words
from warmpath.indexer.keys.segment import SEGMENT
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.layout.record import Claim, SpotOf
from warmpath.indexer.shared.redis.command import Call, Command, Redis
from warmpath.indexer.shared.writer.calls import Status, apply_calls, fence_call, outcome
from warmpath.proto.pb.warmpath.watch.v1 import cache_watch_pb2 as pb

KEYSPACE = "test"
BLOCK_SIZE = 16
GPU = SpotOf(0, Tier.GPU, 0)
SECONDS = 10.0
TTL_MS = 3_600_000

EXACT = pb.RankState(
    trust="exact",
    reason="all is well",
    groups=[pb.Group(number=0, kind="full_attention", block_size=BLOCK_SIZE)],
)


def prompt_of(keys: Sequence[int]) -> Chain:
    """Return a prompt that has these keys."""
    return Chain(0, b"", BLOCK_SIZE, len(keys), (), pack_words(keys))


class WrittenPod:
    """One pod of one rank. `base` is that of its claim, which is random in the product."""

    def __init__(self, redis: Redis, names: KeyNames, pod: str, base: int) -> None:
        self.pod = pod
        self.base = base
        self.token = 1
        self.places: list[SpotOf | None] = [GPU]
        self.audits = 0
        self.confirmations = 0
        self._redis = redis
        self._names = names
        self._counts: dict[int, int] = {}

    @property
    def slot(self) -> int:
        """The slot of its last place."""
        return self._claim.slot(len(self.places) - 1)

    @property
    def _claim(self) -> Claim:
        return Claim("o", self.base, self.places, KEYSPACE, "m", 1)

    def claim_anew(self) -> None:
        """Take a new claim; no bucket is fenced and nothing is written under it yet."""
        self.base += 1
        self.token += 1
        self._counts = {}

    async def tell(self, state: pb.RankState = EXACT, *, sound: bool = True) -> None:
        """Write the pod's record, with enough new audits that routers do not doubt it.

        If `sound`, it confirms that the index has what the engine holds at this moment, and then says that
        this confirmation was not late.
        """
        self.audits += 3
        self.confirmations += 2
        fields = {
            "token": self.token,
            "claim": msgspec.json.encode(self._claim),
            "applied": 1,
            "audits": self.audits,
            "state:0": state.SerializeToString(),
            "blocks:0": b'{"gpu": 1}',
        } | ({"sound": f"{self.confirmations}:0"} if sound else {})
        words = [word for pair in fields.items() for word in pair]
        record = self._names.record(self.pod)
        await self._do(Command(("DEL", record)), Command(("HSET", record, *words)))

    async def go(self) -> None:
        """End the pod's lease."""
        await self._do(Command(("DEL", self._names.record(self.pod))))

    async def empty(self) -> None:
        """Begin a new, empty cache: all places are dropped, and a new one is added."""
        self.places = [*(None for _ in self.places), GPU]
        await self.tell()

    async def hold(self, keys: Sequence[int]) -> None:
        """Hold a prompt's blocks."""
        parts = {
            keys[start]: (keys[start : start + SEGMENT], ())
            for start in range(0, len(keys), SEGMENT)
        }
        await self.change(parts)

    async def change(
        self, parts: Mapping[int, tuple[Sequence[int], Sequence[int]]], slot: int = 0
    ) -> None:
        """Add and remove keys: segment -> (added keys, removed keys); mostly in its last place's slot."""
        changes = {(segment, slot or self.slot): both for segment, both in parts.items()}
        calls = apply_calls(self._names, self.pod, self.token, self._counts, changes, TTL_MS)
        for bucket, call in calls:
            [reply] = await self._do(call)
            assert outcome(reply).status is Status.APPLIED
            self._counts[bucket] = self._counts.get(bucket, 0) + 1

    async def fence(self) -> None:
        """Fence every bucket, as a claim does."""
        calls = [
            fence_call(self._names, bucket, self.pod, self.token, TTL_MS)
            for bucket in range(self._names.buckets)
        ]
        await self._do(*calls)

    async def _do(self, *asked: Command | Call) -> list[object]:
        replies = await self._redis.run(asked, timeout=SECONDS)
        for reply in replies:
            assert not isinstance(reply, Exception), reply
        return replies
