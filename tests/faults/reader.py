"""Routers under faults: they score prompts, and every answer with exact trust is checked."""

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence

from indexer.compiled.array_index import ArrayIndex
from indexer.engines.event import Tier
from indexer.index.slot import Place
from indexer.ingest import Ingest
from indexer.keys.key import Chain
from indexer.keys.segment import SEGMENT
from indexer.keys.token import pack_tokens
from indexer.process.tasks import cancel, watched
from indexer.rank import Rank
from indexer.shared.layout.names import KeyNames
from indexer.shared.query.index import FRESH_SECONDS, SLACK_SECONDS, RemoteIndex
from indexer.shared.records.registry import Registry
from indexer.shared.records.remote_rank import RemoteRank
from indexer.shared.redis.command import Redis
from indexer.shared.replica.pod_copy import CopyState
from indexer.shared.replica.run import Replica
from indexer.trust import Level, Trust
from indexer.watch.watched_rank import WatchedRank
from router.match.scorer import NOTHING, Scorer
from router.prompt.token_prompt import TokenPrompt
from scorer.strategies.longest_prefix import longest_prefix
from tests.faults.pod import KEYSPACE, MODEL, Clock, Held, Pod
from tests.indexer.engine_model import BLOCK

DEADLINE = 0.25
"""Deadline of a look-up in seconds: short enough for faults to show, long enough on a busy machine."""
LATE = 20.0
"""Seconds after which a Score counts as hanging, since it should have ended at its deadline."""
STALE_AFTER = 3.0


Found = list[tuple[Place, int, int]]
"""Places with the blocks that each holds: (place, first, past the last)."""


def prompt_of(tokens: Sequence[int]) -> TokenPrompt:
    """Return a prompt of `tokens` whose last block counts too."""
    return TokenPrompt(MODEL, pack_tokens([*tokens, 0]))


class WrongError(AssertionError):
    """An answer with exact trust differs from the engine's cache."""


class Reader(ABC):
    """A router's ingest and scorer, with statistics of their answers."""

    def __init__(self, name: str, pods: Mapping[str, Pod], ingest: Ingest) -> None:
        self.name = name
        self.ingest = ingest
        self.levels: Counter[Level] = Counter()
        """Number of answers by trust level."""
        self.reasons: Counter[str] = Counter()
        """Reasons of answers that were not exact, by their first words."""
        self.marks: list[tuple[float, bool]] = []
        """Times of the event loop at which answers became exact for all pods, or ceased to be."""
        self._pods = pods
        self._scorer = Scorer(ingest, "")
        self._ranks: list[Rank] = []
        self.tasks: list[asyncio.Task[None]] = []

    @property
    def is_exact(self) -> bool:
        """Whether the last answer was exact for every pod."""
        return bool(self.marks) and self.marks[-1][1]

    async def ask(self, tokens: Sequence[int]) -> dict[str, Held]:
        """Score a prompt; return the blocks of it that each pod holds according to the answer.

        Raises WrongError if the answer for a pod with exact trust differs from its engine's cache.
        """
        loop = asyncio.get_running_loop()
        prompt = prompt_of(tokens)
        begun = loop.time()
        self.note(begun)
        await self._scorer.refresh(prompt, self._ranks, DEADLINE)
        took = loop.time() - begun
        if took > LATE:
            raise WrongError(f"{self.name}: Score took {took:.1f} s")
        matches = self._scorer.matches(prompt, self._ranks, longest_prefix)
        sought = prompt.chain(BLOCK, "")
        found, doubt = self._find(sought)
        held = _held(found, sought.keys())
        levels = set()
        for rank in self._ranks:
            trust = matches.trust(rank)
            if doubt is not None and trust.level is Level.EXACT:
                # Only the leading blocks are certain.
                trust = doubt
            self.levels[trust.level] += 1
            levels.add(trust.level)
            if trust.level is Level.EXACT:
                of_pod = held.get(rank.pod, {})
                self._judge(rank, sought, of_pod, begun)
                leading = _leading(sought.keys(), of_pod) * BLOCK
                matched = matches.get(rank, NOTHING).matched_tokens
                if matched != leading:
                    raise WrongError(f"{self.name}: {matched} of {leading} tokens")
            else:
                self.reasons[f"{trust.level}: {trust.reason[:60]}"] += 1
        now_exact = levels == {Level.EXACT}
        if now_exact != self.is_exact or not self.marks:
            self.marks.append((loop.time(), now_exact))
        return held

    def _find(self, sought: Chain) -> tuple[Found, Trust | None]:
        """Return the holders of all blocks, and the doubt about them."""
        return self.ingest.match(sought), None

    def _judge(self, rank: Rank, sought: Chain, held: Held, begun: float) -> None:
        truths = self._truths(rank, begun)
        keys = sought.keys()
        # Segments are read one by one, so each may be from another moment.
        for start in range(0, len(keys), SEGMENT):
            part = set(keys[start : start + SEGMENT])
            for tier in (Tier.GPU, Tier.CPU):
                found = held.get(tier, set()) & part
                if not any(found == truth[tier] & part for truth in truths):
                    self._wrong(rank, tier, found, [truth[tier] & part for truth in truths])

    def _wrong(self, rank: Rank, tier: Tier, found: set[int], truths: list[set[int]]) -> None:
        raise WrongError(
            f"{self.name}: {rank.pod} is exact and holds {len(found)} blocks in {tier}; "
            f"true were {sorted({len(truth) for truth in truths})}; "
            f"missing {[len(truth - found) for truth in truths][-5:]}, "
            f"too many {[len(found - truth) for truth in truths][-5:]}"
        )

    @abstractmethod
    def _truths(self, rank: Rank, begun: float) -> list[Held]:
        """Return all holdings that are correct for a rank with exact trust."""

    def note(self, now: float) -> None:
        """Record the times at which Redis confirmed changes."""
        for pod in self._pods.values():
            for publisher in pod.publishers:
                publisher.note(now)

    def check(self) -> None:
        """Raise BrokenInvariantError if a part contradicts itself."""
        self.ingest.check()

    async def close(self) -> None:
        """Stop the router's tasks."""
        await cancel(self.tasks)


class Copying(Reader):
    """A router in replica mode; an exact answer must be the engine's cache at the copy's position."""

    def __init__(
        self, pods: Mapping[str, Pod], redis: Redis, names: KeyNames, clock: Clock
    ) -> None:
        ingest = Ingest(
            ArrayIndex(1 << 20), hash_seed="", pending_bytes=1, stale_after=STALE_AFTER, clock=clock
        )
        super().__init__("replica", pods, ingest)
        self.redis = redis
        self._heard: dict[str, tuple[float | None, float]] = {}
        """For each pod, the time of its last read record, and the loop's time when that was noticed."""
        self.replica = Replica(redis, names, poll_seconds=0.05, clock=clock)
        for pod in pods:
            ranks: list[WatchedRank] = [ingest.watch(pod, 0)]
            self._ranks += ranks
            self.replica.add(pod, ranks, KEYSPACE)
        self.tasks = [
            watched(self.replica.run(), "copying"),
            watched(self._tick(), "time passes"),
        ]

    async def _tick(self) -> None:
        while True:
            self.ingest.tick(10_000)
            await asyncio.sleep(0.05)

    def _truths(self, rank: Rank, begun: float) -> list[Held]:
        del begun
        now = asyncio.get_running_loop().time()
        read_at = self.replica._registry.read_at(rank.pod)
        if self._heard.get(rank.pod, (None, now))[0] != read_at:
            self._heard[rank.pod] = read_at, now
        elif now - self._heard[rank.pod][1] > LATE:
            raise WrongError(
                f"{self.name}: {rank.pod} is exact, but its record was not read for {LATE:.0f} s"
            )
        copy = self.replica._copies[rank.pod]
        if (
            copy.state is not CopyState.FOLLOWING
            or copy._begun is None
            or copy._begun.claim is None
        ):
            raise WrongError(f"{self.name}: {rank.pod} is exact, its copy is {copy.state}")
        publisher = self._pods[rank.pod].publisher_of(copy._begun.claim.base)
        return [publisher.truths[copy.position]]

    def check(self) -> None:
        """Raise BrokenInvariantError if a part contradicts itself."""
        super().check()
        self.replica.check()

    async def close(self) -> None:
        """Stop the router's tasks."""
        await super().close()
        await self.redis.close()


class Looking(Reader):
    """A router in shared mode.

    An exact answer must be the engine's cache at some moment between the last change that Redis had
    confirmed when the oldest part of the answer was read, and the answer.
    """

    def __init__(
        self, pods: Mapping[str, Pod], redis: Redis, names: KeyNames, clock: Clock
    ) -> None:
        self.redis = redis
        self.registry = Registry(redis, names, clock)
        self.remote = RemoteIndex(
            redis,
            names,
            self.registry,
            deadline=DEADLINE,
            stale_after=STALE_AFTER,
            clock=clock,
        )
        ingest = Ingest(
            ArrayIndex(1 << 16),
            hash_seed="",
            pending_bytes=1,
            stale_after=STALE_AFTER,
            clock=clock,
            remote=self.remote,
        )
        super().__init__("shared", pods, ingest)
        self._clock = clock
        ranks: list[RemoteRank] = [
            ingest.add_shared(pod, 0, keyspace=KEYSPACE, ranks=1) for pod in pods
        ]
        self._ranks += ranks
        self.tasks = [watched(self.remote.run(), "asking")]

    def _find(self, sought: Chain) -> tuple[Found, Trust | None]:
        return self.remote.match(sought)

    def _truths(self, rank: Rank, begun: float) -> list[Held]:
        record = self.registry.record(rank.pod)
        read_at = self.registry.read_at(rank.pod)
        assert record is not None
        assert record.claim is not None
        assert read_at is not None
        publisher = self._pods[rank.pod].publisher_of(record.claim.base)
        # Places come from the last read record; blocks may be as old as a cached copy.
        loop = asyncio.get_running_loop()
        read = loop.time() - (self._clock() - read_at)
        oldest = min(read - 1.0, begun - FRESH_SECONDS - SLACK_SECONDS)
        low = publisher.applied_at(oldest)
        return [truth for sequence, truth in publisher.truths.items() if sequence >= low]

    def check(self) -> None:
        """Raise BrokenInvariantError if a part contradicts itself."""
        super().check()
        self.remote.check()

    async def close(self) -> None:
        """Stop the router's tasks."""
        await super().close()
        await self.remote.close()
        await self.redis.close()


def _held(found: Found, keys: Sequence[int]) -> dict[str, Held]:
    held: dict[str, Held] = {}
    for place, start, stop in found:
        of_tier = held.setdefault(place.pod, {}).setdefault(place.tier, set())
        of_tier.update(keys[start:stop])
    return held


def _leading(keys: Sequence[int], held: Held) -> int:
    """Return the number of leading blocks that are held in any tier."""
    everywhere = set().union(*held.values())
    return next((n for n, key in enumerate(keys) if key not in everywhere), len(keys))
