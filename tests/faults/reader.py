"""Routers under faults: they score prompts, and every claim with exact trust is judged."""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from tests.faults.history import Held
from tests.faults.pod import KEYSPACE, MODEL, Clock, Pod
from tests.indexer.consistent import check
from tests.indexer.engine_model import BLOCK
from tests.indexer.followed import new_ingest
from tests.indexer.shared.inside import check_remote, check_replica
from warmpath.indexer.compiled.array_index import ArrayIndex
from warmpath.indexer.index.slot import Place
from warmpath.indexer.keys.key import Chain, pack_tokens
from warmpath.indexer.rank import Rank
from warmpath.indexer.ranks import Ingest
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.query.index import RemoteIndex
from warmpath.indexer.shared.records.registry import Registry
from warmpath.indexer.shared.redis.command import Redis
from warmpath.indexer.shared.replica.run import Replica
from warmpath.indexer.trust import PROMISED_SECONDS, Level, Trust
from warmpath.indexer.watch.watched_source import WatchedRank
from warmpath.process.tasks import cancel, watched
from warmpath.router.match.match import Scorer
from warmpath.router.prompt.token_prompt import TokenPrompt
from warmpath.scorer.match import NOTHING
from warmpath.scorer.strategies import longest_prefix

DEADLINE = 0.25
"""Deadline of a look-up in seconds: short enough for faults to show, long enough on a busy machine."""
LATE = 20.0
"""Seconds after which a Score counts as hanging, since it should have ended at its deadline."""
STALE_AFTER = 3.0


Pods = Mapping[str, Pod]
Found = list[tuple[Place, int, int]]
"""Places with the blocks that each holds: (place, first, past the last)."""


def prompt_of(tokens: Sequence[int]) -> TokenPrompt:
    """Return a prompt of `tokens` whose last block counts too."""
    return TokenPrompt(MODEL, pack_tokens([*tokens, 0]))


class WrongError(AssertionError):
    """Claims with exact trust were not true, or a Score hung."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What an answer says of one pod."""

    trust: Level
    reason: str
    blocks: int
    """Leading blocks of the prompt."""
    held: Held | None = None
    """All blocks of the prompt, where the answer tells more than the leading ones."""


class Reader:
    """A router's ingest and scorer in this process, with statistics of its answers.

    Each claim with exact trust has to show what the engine's cache held for the prompt at some moment from
    PROMISED_SECONDS before the Score was sent until the answer was there.
    """

    def __init__(self, name: str, pods: Pods, ingest: Ingest) -> None:
        self.name = name
        self.levels: Counter[Level] = Counter()
        """Number of claims by trust level."""
        self.reasons: Counter[str] = Counter()
        """Reasons of claims that were not exact, by their first words."""
        self.marks: list[tuple[float, bool]] = []
        """Times of the event loop at which answers became exact for all pods, or ceased to be."""
        self.exact_claims = 0
        self.flaws: Counter[str] = Counter()
        """Number of exact claims that were not true, by what is wrong with them."""
        self.oldest = 0.0
        """How many seconds ago they were true, at most; infinite for one that was never true."""
        self.pods = pods
        self.tasks: list[asyncio.Task[None]] = []
        self.ingest = ingest
        self._scorer = Scorer(ingest, "")
        self._ranks: list[Rank] = []

    @property
    def is_exact(self) -> bool:
        """Whether the last answer was exact for every pod."""
        return bool(self.marks) and self.marks[-1][1]

    async def ask(self, tokens: Sequence[int]) -> None:
        """Score a prompt, and judge the answer. Raises WrongError if it hangs."""
        begun = time.monotonic()
        prompt = prompt_of(tokens)
        claims = await self._claims(prompt)
        took = time.monotonic() - begun
        if took > LATE:
            raise WrongError(f"{self.name}: Score took {took:.1f} s")
        for pod, claim in claims.items():
            self.levels[claim.trust] += 1
            if claim.trust is Level.EXACT:
                self.exact_claims += 1
                self._judge(pod, claim, prompt.chain(BLOCK, "").keys(), begun)
            else:
                self.reasons[f"{claim.trust}: {claim.reason[:60]}"] += 1
        now_exact = all(claim.trust is Level.EXACT for claim in claims.values())
        if now_exact != self.is_exact or not self.marks:
            self.marks.append((asyncio.get_running_loop().time(), now_exact))

    async def _claims(self, prompt: TokenPrompt) -> dict[str, Claim]:
        """Score a prompt; return what the answer says of each pod, block by block."""
        await self._scorer.refresh(prompt, self._ranks, DEADLINE)
        matches = self._scorer.matches(prompt, self._ranks, longest_prefix)
        sought = prompt.chain(BLOCK, "")
        found, doubt = self._find(sought)
        held = _held(found, sought.keys())
        claims = {}
        for rank in self._ranks:
            trust = matches.trust(rank)
            blocks = matches.get(rank, NOTHING).matched_tokens // BLOCK
            # Where the blocks behind the leading ones are in doubt, they are no part of the answer.
            of_pod = held.get(rank.pod, {}) if doubt is None else None
            claims[rank.pod] = Claim(trust.level, trust.reason, blocks, of_pod)
        return claims

    def _find(self, sought: Chain) -> tuple[Found, Trust | None]:
        """Return the holders of all blocks, and the doubt about them."""
        return self.ingest.match(sought), None

    def check(self) -> None:
        check(self.ingest)

    def _judge(self, pod: str, claim: Claim, keys: Sequence[int], begun: float) -> None:
        """Count a claim that the engine's cache did not bear out at any moment of the promised time."""
        flaw = partial(self.pods[pod].history.flaw, keys, claim.blocks, claim.held)
        since = begun - PROMISED_SECONDS
        if found := flaw(since):
            self.flaws[found] += 1
            age = next((age for age in range(1, 60) if not flaw(since - age)), math.inf)
            self.oldest = max(self.oldest, PROMISED_SECONDS + age)

    def told(self) -> str:
        """Return how many exact claims were not true, and in which way; empty where all were."""
        if not self.flaws:
            return ""
        return (
            f"{self.name}: {self.flaws.total()} of {self.exact_claims} exact claims are not true "
            f"({dict(self.flaws)}); the oldest was true {self.oldest:.0f} s before"
        )

    async def close(self) -> None:
        await cancel(self.tasks)


class Copying(Reader):
    """A router in replica mode."""

    def __init__(self, pods: Pods, redis: Redis, names: KeyNames, clock: Clock) -> None:
        ingest = new_ingest(lambda: ArrayIndex(1 << 20), stale_after=STALE_AFTER, clock=clock)
        super().__init__("replica", pods, ingest)
        self.redis = redis
        self.replica = ingest.replica = Replica(redis, names, poll_seconds=0.05, clock=clock)
        for pod in pods:
            ranks: list[WatchedRank] = [ingest.watch(pod, 0)]
            self._ranks += ranks
            self.replica.add(pod, ranks, KEYSPACE)
        self.tasks = [watched(self.replica.run(), "copying"), watched(self._tick(), "time passes")]

    async def _tick(self) -> None:
        while True:
            self.ingest.tick(10_000)
            await asyncio.sleep(0.05)

    def check(self) -> None:
        super().check()
        check_replica(self.replica)

    async def close(self) -> None:
        await super().close()
        await self.redis.close()


class Looking(Reader):
    """A router in shared mode."""

    def __init__(self, pods: Pods, redis: Redis, names: KeyNames, clock: Clock) -> None:
        self.redis = redis
        registry = Registry(redis, names, clock)
        self.remote = RemoteIndex(
            redis, names, registry, deadline=DEADLINE, stale_after=STALE_AFTER, clock=clock
        )
        ingest = new_ingest(
            lambda: ArrayIndex(1 << 16), stale_after=STALE_AFTER, clock=clock, remote=self.remote
        )
        super().__init__("shared", pods, ingest)
        self._ranks += [ingest.add_shared(pod, 0, keyspace=KEYSPACE, ranks=1) for pod in pods]
        self.tasks = [watched(self.remote.run(), "asking")]

    def _find(self, sought: Chain) -> tuple[Found, Trust | None]:
        return self.remote.match(sought)

    def check(self) -> None:
        super().check()
        check_remote(self.remote)

    async def close(self) -> None:
        await super().close()
        await self.remote.close()
        await self.redis.close()


def _held(found: Found, keys: Sequence[int]) -> dict[str, Held]:
    held: dict[str, Held] = {}
    for place, start, stop in found:
        of_tier = held.setdefault(place.pod, {}).setdefault(place.tier, set())
        of_tier.update(keys[start:stop])
    return held
