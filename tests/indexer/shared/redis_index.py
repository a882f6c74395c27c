"""The shared index behind the contract of an index: synchronous, for tools, tests and comparisons.

Routers and publishers use the same parts, but never wait for a server while they hold their loop.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import msgspec
import numpy as np

from tests.indexer.shared.ensured_schema import ensure
from warmpath.indexer.embedded import packed_keys
from warmpath.indexer.engines.event import Tier
from warmpath.indexer.index.contract import IndexStats, Links, Stretch
from warmpath.indexer.keys.key import Chain
from warmpath.indexer.keys.segment import Segments
from warmpath.indexer.keys.segment_value import holders
from warmpath.indexer.shared.layout.names import KeyNames, checkpoint
from warmpath.indexer.shared.layout.pages import ask_page, read_page
from warmpath.indexer.shared.layout.record import SLOTS_OF_A_CLAIM, Claim, SpotOf
from warmpath.indexer.shared.query.lookup import LookUp, blocks_of
from warmpath.indexer.shared.redis.command import Call, Command, Redis, Reply, UnreachableError
from warmpath.indexer.shared.writer.calls import (
    RecordCalls,
    Status,
    apply_calls,
    fence_call,
    outcome,
    purge_calls,
)
from warmpath.lab.verify.structure import read_bucket
from warmpath.process.invariant import BrokenInvariantError

TTL_MS = 86_400_000
TIMEOUT = 5.0
"""Seconds that a call may take; a call whose outcome is not known is repeated."""
ATTEMPTS = 3
KEYS_AT_ONCE = 1 << 15
PAGE = 512


class LostError(Exception):
    """A part of the index is not as this object left it: it was lost, or another writer has the pod."""


class RedisIndex:
    """An index in Redis (`indexer.index.contract.Index`) with one writer; for use by one thread.

    It claims `pod` when it is made. Its slots, below 65,536, are places of that claim; a slot that was
    dropped and is used again has a new place; there are 65,536 places in all. A caller that
    knows how keys are chained tells `segments` before it adds them (`segments.chained`), and lets it
    forget a key that no slot holds any more; other keys lie in segments of their own. Methods may raise
    CommandRefusedError, UnreachableError and LostError too; after the last two a new index must be made.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[Redis]],
        names: KeyNames,
        *,
        pod: str = "index",
        timeout: float = TIMEOUT,
    ) -> None:
        self.segments = Segments()
        """The segment of each key."""
        self._names = names
        self._pod = pod
        self._timeout = timeout
        self._base = secrets.randbits(47)
        self._places: list[SpotOf | None] = []
        self._numbers: dict[int, int] = {}
        """Slot in use -> the number of its place."""
        self._dropped: dict[int, int] = {}
        """Number of a dropped place -> its slot, until the next pass of the sweep."""
        self._sweeping: dict[int, int] = {}
        """Number of a dropped place -> its slot, for those that the present pass removes."""
        self._unswept: list[tuple[int, bytes]] = []
        """Buckets still to be swept in this pass, each from a cursor on; the last entry is the next."""
        self._counts = dict.fromkeys(range(names.buckets), 0)
        self._loose = False
        self._runner = asyncio.Runner()
        self._redis: Redis | None = None
        try:
            self._redis = self._runner.run(_awaited(connect))
            self._runner.run(ensure(self._redis, names, timeout=timeout))
            self._token = self._claim()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connections. The index's content stays in Redis until its time to live is over."""
        if self._redis is not None:
            self._runner.run(self._redis.close())
        self._runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _claim(self) -> int:
        names, pod = self._names, self._pod
        owner = secrets.token_hex(8)
        calls = RecordCalls(names, pod, owner, TTL_MS)
        reason = "it is written to by hand"
        self._good([calls.enlist()])
        [(_, token)] = self._good([calls.claim(self._base, take_over=True, floor=0, reason=reason)])
        fences = [fence_call(names, n, pod, token, TTL_MS) for n in range(names.buckets)]
        if any(outcome(reply).status is Status.FENCED for reply in self._good(fences)):
            raise LostError(f"pod {pod!r} was claimed by another")
        self._owner = owner
        return int(token)

    def _run(self, asked: Sequence[Command | Call]) -> list[Reply]:
        assert self._redis is not None
        return self._runner.run(self._redis.run(asked, timeout=self._timeout))

    def _good(self, asked: Sequence[Command | Call]) -> list[Any]:
        """Return the replies to commands that may be repeated. Raises the last attempt's error."""
        for attempt in range(ATTEMPTS):
            replies = self._run(asked)
            problem = next((reply for reply in replies if isinstance(reply, Exception)), None)
            if problem is None:
                return replies
            if not isinstance(problem, UnreachableError) or attempt == ATTEMPTS - 1:
                raise problem
        raise AssertionError

    def _tell_places(self) -> None:
        """Write the claim with the places. It is not marked as sound, so no router trusts it."""
        claim = Claim(
            owner=self._owner,
            base=self._base,
            places=self._places,
            keyspace="",
            model="",
            ranks=1,
        )
        record = self._names.record(self._pod)
        self._good(
            [
                Command(("HSET", record, "claim", msgspec.json.encode(claim))),
                Command(("PEXPIRE", record, TTL_MS)),
            ]
        )

    def _number(self, slot: int) -> int:
        number = self._numbers.get(slot)
        if number is not None:
            return number
        if not 0 <= slot < SLOTS_OF_A_CLAIM:
            raise ValueError(f"slot {slot}: this index has slots 0 to {SLOTS_OF_A_CLAIM - 1}")
        if len(self._places) == SLOTS_OF_A_CLAIM:
            raise ValueError(f"slot {slot}: the {SLOTS_OF_A_CLAIM} places are used up")
        number = self._numbers[slot] = len(self._places)
        self._places.append(SpotOf(slot, Tier.GPU, 0))
        self._tell_places()
        return number

    def add(self, slot: int, keys: Sequence[int], links: Links = ()) -> None:  # noqa: ARG002
        """Let `slot` hold `keys`."""
        if keys:
            self._change(self._number(slot), keys, adds=True)

    def remove(self, slot: int, keys: Sequence[int]) -> None:
        """Let `slot` no longer hold `keys`."""
        number = self._numbers.get(slot)
        if number is not None:
            self._change(number, keys, adds=False)

    def _change(self, number: int, keys: Sequence[int], *, adds: bool) -> None:
        slot = self._slot(number)
        distinct = list(dict.fromkeys(keys))
        for start in range(0, len(distinct), KEYS_AT_ONCE):
            by_segment: dict[int, list[int]] = {}
            for key in distinct[start : start + KEYS_AT_ONCE]:
                segment = self.segments.of(key)
                by_segment.setdefault(segment, []).append(key)
                self._loose |= key not in self.segments
            self._apply(
                {
                    (segment, slot): (some, ()) if adds else ((), some)
                    for segment, some in by_segment.items()
                }
            )

    def _apply(
        self, changes: Mapping[tuple[int, int], tuple[Sequence[int], Sequence[int]]]
    ) -> None:
        by_bucket: dict[int, list[Call]] = {}
        calls = apply_calls(self._names, self._pod, self._token, self._counts, changes, TTL_MS)
        for bucket, call in calls:
            by_bucket.setdefault(bucket, []).append(call)
        while by_bucket:
            # One call for each bucket: if a cluster redirects a call, the next might overtake it.
            replies = self._good([calls[0] for calls in by_bucket.values()])
            for bucket, reply in zip(list(by_bucket), replies, strict=True):
                found = outcome(reply)
                if found.status not in {Status.APPLIED, Status.DUPLICATE}:
                    raise LostError(f"bucket {bucket} is not as it was left: {found}")
                self._counts[bucket] += 1
                by_bucket[bucket].pop(0)
                if not by_bucket[bucket]:
                    del by_bucket[bucket]

    def drop(self, slot: int) -> None:
        """Let `slot` hold nothing, at once for readers."""
        number = self._numbers.pop(slot, None)
        if number is not None:
            self._places[number] = None
            self._dropped[number] = slot
            self._tell_places()

    def sweep(self, budget: int) -> Iterable[int]:
        """Sweep pages of buckets until about `budget` fields have been read.

        A field may hold up to 512 blocks. Returns the slots that are swept.
        """
        if not self._sweeping:
            if not self._dropped:
                return ()
            self._sweeping, self._dropped = self._dropped, {}
            self._unswept = [(number, b"0") for number in reversed(range(self._names.buckets))]
        dead = {self._slot(number) for number in self._sweeping}
        while budget > 0 and self._unswept:
            bucket, cursor = self._unswept.pop()
            [reply] = self._good([ask_page(self._names, bucket, cursor, budget)])
            page = read_page(reply)
            self._good(purge_calls(self._names, bucket, page.values, dead))
            budget -= max(1, len(page))
            if not page.is_last:
                self._unswept.append((bucket, page.cursor))
        if self._unswept:
            return ()
        swept, self._sweeping = self._sweeping, {}
        return swept.values()

    def take_losers(self) -> set[int]:
        """Return no slot: if Redis evicts parts of the index, methods raise LostError."""
        return set()

    def match(self, chain: Chain, *, leading: bool = False) -> list[Stretch]:  # noqa: ARG002
        """Return the stretches of a prompt's blocks."""
        return self._look_up(np.frombuffer(packed_keys(chain), "<u8"))

    def stretches(self, keys: Sequence[int]) -> list[Stretch]:
        """Return the stretches of `keys`: those of a prompt from its first block on, or unchained ones."""
        return self._look_up(np.array(keys, np.uint64))

    def _look_up(self, keys: "np.ndarray[Any, np.dtype[np.uint64]]") -> list[Stretch]:
        look_up = LookUp(self._names, keys, loose=self._loose)
        commands = look_up.commands()
        while commands:
            look_up.feed(self._good(commands))
            commands = look_up.more()
        found = look_up.stretches()
        if look_up.failed:
            raise look_up.failed[0]
        live = {self._slot(number): slot for slot, number in self._numbers.items()}
        return [one._replace(slot=live[one.slot]) for one in found if one.slot in live]

    def _slot(self, number: int) -> int:
        return self._base * SLOTS_OF_A_CLAIM + number

    def _buckets(self) -> Iterator[dict[bytes, bytes]]:
        """Yield all fields of each bucket; they are read by pages."""
        found: dict[int, dict[bytes, bytes]] = {n: {} for n in range(self._names.buckets)}
        todo = dict.fromkeys(found, b"0")
        while todo:
            replies = self._good(
                [ask_page(self._names, bucket, cursor, PAGE) for bucket, cursor in todo.items()]
            )
            for bucket, (cursor, fields) in zip(list(todo), replies, strict=True):
                found[bucket].update(zip(fields[::2], fields[1::2], strict=True))
                todo[bucket] = cursor
                if cursor == b"0":
                    del todo[bucket]
        yield from found.values()

    def _held(self) -> tuple[dict[int, set[int]], int]:
        """Return the slots of this index that hold each key, dropped ones too, and all fields' bytes."""
        held: dict[int, set[int]] = {}
        size = 0
        for fields in self._buckets():
            size += sum(len(name) + len(value) for name, value in fields.items())
            for packed in blocks_of(fields):
                for key, slots in holders(packed).items():
                    ours = {slot for slot in slots if slot // SLOTS_OF_A_CLAIM == self._base}
                    if ours:
                        held.setdefault(key, set()).update(ours)
        return held, size

    def count(self, slot: int) -> int:
        """Return how many keys `slot` holds. Reads everything."""
        number = self._numbers.get(slot)
        if number is None:
            return 0
        held, _ = self._held()
        return sum(self._slot(number) in slots for slots in held.values())

    def stats(self) -> IndexStats:
        """Return the index's size. Reads everything."""
        held, size = self._held()
        live = {self._slot(number) for number in self._numbers.values()}
        return IndexStats(
            keys=len(held),
            entries=sum(len(slots & live) for slots in held.values()),
            slots=len(live.intersection(set().union(*held.values()))),
            bytes=size,
        )

    def check(self) -> None:
        """Raise BrokenInvariantError if a bucket was changed by others or contradicts itself.

        Reads everything.
        """
        swept = {n for n, place in enumerate(self._places) if place is None}
        swept -= self._dropped.keys() | self._sweeping.keys()
        impossible = {self._slot(number) for number in swept}
        for number, fields in enumerate(self._buckets()):
            bucket = read_bucket(fields)
            said = bucket.checkpoints.get(checkpoint(self._pod))
            if said != b"%d:%d" % (self._token, self._counts[number]):
                raise BrokenInvariantError(f"bucket {number} is not as it was left: {said!r}")
            for segment, held in bucket.segments.items():
                if self._names.bucket_of(segment) != number:
                    raise BrokenInvariantError(f"segment {segment:016x} lies in bucket {number}")
                if not impossible.isdisjoint(set().union(*held.values())):
                    raise BrokenInvariantError(f"segment {segment:016x} has a slot that was swept")


async def _awaited(connect: Callable[[], Awaitable[Redis]]) -> Redis:
    return await connect()
