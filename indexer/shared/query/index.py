"""Reads the shared index for each prompt: from Redis where there is time, else from a copy.

    refresh   reads the parts that were not read lately --HMGET a bucket--> Redis --> the copy
    match     returns who holds which blocks, by the copy alone, and the doubt about it, if any

Each read also returns when the bucket was made, and how many writes it has had since (`lives`). A
bucket that was lost and made again, or that has gone back to old data, is not what its writers left, so
every rank is in doubt until its writer has audited the index again.

Buckets that fail several times in a row are left alone for a while (`buckets`): answers do not wait for
them.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from warmpath.indexer.embedded import packed_keys
from warmpath.indexer.index.slot import Place, RankName
from warmpath.indexer.keys.key import Chain
from warmpath.indexer.keys.segment import SEGMENT
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.query.buckets import LIFE, Life, Lives, Reach, problem_of
from warmpath.indexer.shared.query.lookup import Copied, Keys, Places, SegmentCache, rounds
from warmpath.indexer.shared.records.record_source import RemoteRank
from warmpath.indexer.shared.records.registry import AWAY, UNCONFIRMED, Registry
from warmpath.indexer.shared.redis.command import Command, Redis
from warmpath.indexer.trust import PROMISED_SECONDS, Level, Trust
from warmpath.process.tasks import cancel, watched

log = logging.getLogger(__name__)

COPY_BYTES = 64 << 20
FRESH_SECONDS = 0.05
SLACK_SECONDS = 0.25
"""How many seconds older than `FRESH_SECONDS` a part may be when the answer is made: the request may
have waited for its turn."""
POLL_SECONDS = 0.25
"""Seconds between two readings of the pods' records."""
POLL_TIMEOUT = 1.0
LIVES_TIMEOUT = 0.5
READ_SHARE = 0.9
"""The share of the deadline that a read may take; in the rest, its replies get into the copy."""


class RemoteIndex:
    """Finds in Redis who holds which blocks, for ranks whose blocks this router does not keep.

    Only `add`, `places.life` and closing a rank may be called in any thread; all else belongs to the
    thread of the event loop that asks Redis. `deadline` bounds a read, seconds. A part that was read
    within `FRESH_SECONDS` is not read again. In an answer from a copy older than `stale_after` seconds
    ranks are stale; in one from a younger copy that is not fresh they are degraded.

    Counted, for metrics: `look_ups` (prompts that needed Redis), `reads` and their `read_seconds` and
    `read_bytes`, `timeouts` and `errors` (reads that did not end well), `late` (prompts that did not
    wait for a read's end), `old_answers` (answers that were not all fresh), `unknown_slots` (slots that
    no known claim names), `lives.losses`; of the copy
    `copy.bytes`, `copy.max_bytes`, `copy.hits`, `copy.misses`, `copy.evicted` and its length; of the
    breakers `reach.open_buckets` and `reach.openings`.
    """

    def __init__(
        self,
        redis: Redis,
        names: KeyNames,
        registry: Registry,
        *,
        deadline: float,
        stale_after: float,
        clock: Callable[[], float],
    ) -> None:
        self.deadline = deadline
        self.copy = SegmentCache(COPY_BYTES)
        self.look_ups = 0
        self.reads = 0
        self.read_seconds = 0.0
        self.read_bytes = 0
        self.timeouts = 0
        self.errors = 0
        self.late = 0
        self.old_answers = 0
        self.unknown_slots = 0
        self.polled_at = clock()
        """When, by the clock, Redis last answered for every pod, or when this began if it never did."""
        self._redis = redis
        self._names = names
        self.due = math.inf
        """When, by the clock, the first rank is to be degraded by `expire`, unless more is read."""
        self._registry = registry
        self._moments: dict[str, float] = {}
        """The last moment, by the clock, that each pod's record showed when it was last taken."""
        self._stale_after = stale_after
        self._clock = clock
        self.places = Places()
        self._ranks: dict[RankName, RemoteRank] = {}
        self._pods: set[str] = set()
        """The pods of the last poll."""
        self._sizes: frozenset[int] = frozenset()
        """Block sizes of the ranks; none of them holds blocks of another size."""
        self._reading: dict[int, asyncio.Task[None]] = {}
        """Reads under way, by the last key of each part, which stands for all blocks before it."""
        self._anew_at = -math.inf
        """When a pod was last found to have a new claim: parts read before that lack its blocks."""
        self.lives = Lives(names, registry.lost)
        self.reach = Reach(
            redis, names, timeout=READ_SHARE * deadline, doubt=self._doubt_ranks, clock=clock
        )

    def add(self, pod: str, rank: int, *, keyspace: str, ranks: int) -> RemoteRank:
        added = self._ranks[RankName(pod, rank)] = RemoteRank(
            pod,
            rank,
            self._registry,
            keyspace=keyspace,
            ranks=ranks,
            stale_after=self._stale_after,
            close=self._remove,
            clock=self._clock,
        )
        added.doubt(self.reach.trouble)
        return added

    def _doubt_ranks(self, trouble: Trust | None) -> None:
        for rank in list(self._ranks.values()):
            rank.doubt(trouble)

    def _remove(self, rank: RemoteRank) -> None:
        self._ranks.pop(RankName(rank.pod, rank.number), None)

    async def refresh(self, prompts: Iterable[bytes], timeout: float) -> None:
        """Read the parts of prompts that the copy lacks; `prompts` are packed keys from the first on.

        Ends after `timeout` seconds, or the deadline, at the latest; a read that takes longer goes on
        for later requests. A failed read raises no error: `match` answers from the copy as it is.
        """
        tasks: set[asyncio.Task[None]] = set()
        needed = False
        since = max(self._clock() - FRESH_SECONDS, self._anew_at)
        for packed in prompts:
            keys = np.frombuffer(packed, "<u8")
            wanted: list[Keys] = []
            for start in self.copy.lacking(keys, since):
                needed = True
                part = keys[start : start + SEGMENT]
                task = self._reading.get(int(part[-1]))
                if task is not None:
                    tasks.add(task)
                elif self.reach.may_ask(self._names.bucket_of(int(part[0]))):
                    wanted.append(part)
            if wanted:
                tasks.add(self._begin_read(wanted))
        self.look_ups += needed
        if tasks:
            _, pending = await asyncio.wait(tasks, timeout=max(0.0, min(timeout, self.deadline)))
            self.late += bool(pending)

    def _begin_read(self, wanted: Sequence[Keys]) -> asyncio.Task[None]:
        lasts = [int(part[-1]) for part in wanted]
        # These are segments of one prompt, so only the last can be incomplete.
        keys = np.concatenate(wanted)
        task = watched(self._read(keys), "reading of the shared index")
        self._reading.update(dict.fromkeys(lasts, task))

        def ended(_: asyncio.Task[None]) -> None:
            for last in lasts:
                self._reading.pop(last, None)

        task.add_done_callback(ended)
        return task

    async def _read(self, keys: Keys) -> None:
        begun = self._clock()
        failed: dict[int, str] = {}
        answered: set[int] = set()
        values: dict[bytes, bytes | None] = {}
        bucket_key = self._names.bucket
        for parts in rounds(self._names, keys, values):
            asked_at = self._clock()
            left = READ_SHARE * self.deadline - (asked_at - begun)
            replies = await self._redis.run(
                [Command(("HMGET", bucket_key(one), *of, *LIFE)) for one, of in parts.items()],
                timeout=max(0.0, left),
            )
            lives: dict[int, Life] = {}
            for (bucket, fields), reply in zip(parts.items(), replies, strict=True):
                if problem := problem_of(reply, len(fields) + len(LIFE)):
                    failed[bucket] = problem
                    continue
                *found, born, writes = reply
                lives[bucket] = born, writes
                answered.add(bucket)
                values.update(zip(fields, found, strict=True))
                self._keep(fields, found, begun)
            self.lives.compare(lives, asked_at, self._clock())
        seconds = self._clock() - begun
        self.reads += 1
        self.read_seconds += seconds
        if failed and seconds >= READ_SHARE * self.deadline:
            late = f"the shared index did not answer in {self.deadline * 1000:.0f} ms"
            failed = dict.fromkeys(failed, late)
            self.timeouts += 1
        elif failed:
            self.errors += 1
        self.reach.note(answered - failed.keys(), failed)

    def _keep(self, fields: Sequence[bytes], values: Sequence[bytes | None], begun: float) -> None:
        now = self._clock() if begun >= self._anew_at else begun
        for field, value in zip(fields, values, strict=True):
            self.copy.put(field, value, now)
            self.read_bytes += len(value or b"")

    def match(
        self, chain: Chain, *, leading: bool = False
    ) -> tuple[list[tuple[Place, int, int]], Trust | None]:
        """Return who holds which blocks of a prompt in the copy, and the doubt about this answer.

        Each row has a place, the first block that it holds, and the end, past the last. The doubt is for
        `RemoteRank.in_answer`. `leading` is as in `Index.match`.
        """
        if chain.block_size not in self._sizes:
            return [], self.reach.trouble
        copied = self.copy.match(np.frombuffer(packed_keys(chain), "<u8"), leading=leading)
        place_of = self.places.place
        found = [
            (place, start, stop)
            for slot, start, stop in copied.stretches
            if (place := place_of(slot)) is not None
        ]
        # The other slots are of a claim that is not read yet, or of one that is gone and not swept yet.
        self.unknown_slots += len(copied.stretches) - len(found)
        return found, self._doubt(copied)

    def _doubt(self, copied: Copied) -> Trust | None:
        """Return the doubt about an answer: of several one that makes it stale, else the first.

        Return None where nothing is in doubt.
        """
        now = self._clock()
        doubts = []
        age = now - copied.read_at
        is_old = age > FRESH_SECONDS + SLACK_SECONDS or copied.read_at < self._anew_at
        flaws = [f"a copy {_seconds(age)} old"] if is_old else []
        if copied.missing:
            flaws.append(f"nothing is known of {copied.missing} blocks")
        if flaws:
            self.old_answers += 1
            problem = self.reach.problem or "there was no time to ask the shared index"
            level = Level.STALE if is_old and age >= self._stale_after else Level.DEGRADED
            since = copied.read_at if is_old else now
            doubts.append(Trust(level, f"{problem}: {', '.join(flaws)}", since))
        if copied.failed:
            doubts.append(Trust(Level.DEGRADED, f"{AWAY}{copied.failed[0]}", now))
        if self._registry.is_disrupted:
            # The records may have been read from another server than these blocks. That comes last:
            # it is up to the publisher, which cannot do anything while Redis does not answer.
            doubts.append(Trust(Level.DEGRADED, self.reach.problem or UNCONFIRMED, now))
        return max(doubts, key=lambda doubt: doubt.level is Level.STALE, default=None)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.reach.run())
            while True:
                await self.poll()
                await asyncio.sleep(POLL_SECONDS)

    def failed(self, reason: str) -> None:
        """Doubt all ranks for a reason: reading their records failed, and has to begin again."""
        for rank in list(self._ranks.values()):
            rank.record_read(f"the shared index could not be followed: {reason}")

    async def poll(self) -> None:
        """Read the records of the ranks' pods; before them, where needed, each bucket's life."""
        pods = {pod for pod, _ in list(self._ranks)}
        for pod in self._pods - pods:
            self._registry.forget(pod)
            self.places.forget(pod)
        self._pods = pods
        if pods:
            disruptions = self._redis.disruptions
            if asked := self.lives.ask(disruptions):
                asked_at = self._clock()
                replies = await self._redis.run(asked, timeout=LIVES_TIMEOUT)
                self.lives.take(replies, disruptions, asked_at, self._clock())
            await self._registry.read(sorted(pods), [], POLL_TIMEOUT)
        if not pods or self._registry.is_answered:
            self.polled_at = self._clock()
        self._take_records()

    def expire(self, now: float) -> None:
        """Degrade the ranks whose records show no moment of the last `PROMISED_SECONDS`."""
        if now > self.due:
            self._take_records()

    def _take_records(self) -> None:
        ranks = list(self._ranks.values())
        before = self._moments
        self._moments = {pod: self._registry.reading(pod).moment.at for pod in self._pods}
        # A part that was read before shows no later moment than the record did then.
        late = self._clock() + FRESH_SECONDS + SLACK_SECONDS - PROMISED_SECONDS
        if any(before.get(pod, -math.inf) < min(late, at) for pod, at in self._moments.items()):
            self._anew_at = self._clock()
        moments = (at for pod, at in self._moments.items() if not self._registry.limit(pod))
        self.due = min(moments, default=math.inf) + PROMISED_SECONDS
        for rank in ranks:
            reading = self._registry.reading(rank.pod)
            rank.record_read(reading.problem)
            claim = reading.record.claim if reading.record and not rank.refused else None
            if self.places.take(rank.pod, claim):
                self._anew_at = self._clock()
                # Look at all buckets while the new claim is being confirmed anyway: a prompt that finds
                # a lost bucket only later would begin another doubt.
                self.lives.doubt()
        self._sizes = frozenset(rank.layout.block_size for rank in ranks)

    async def close(self) -> None:
        await cancel(set(self._reading.values()))


def _seconds(age: float) -> str:
    return "less than 1 s" if age < 1 else f"{age:.0f} s"
