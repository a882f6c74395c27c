"""Replica mode: keeps a router's index current from the shared one, so that no Score waits for Redis.

each `poll_seconds`: read every pod's log from its copy's position on, and its record, in one round trip
between two polls: where copies need it, make one pass over all buckets for all of them
"""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from warmpath.indexer.keys.key import WORD_BYTES
from warmpath.indexer.keys.segment_value import BadSegmentError, decode, spilled_blocks
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.layout.pages import Page, read_page
from warmpath.indexer.shared.records.registry import UNREAD, Registry
from warmpath.indexer.shared.redis.command import Command, CommandFailedError, Redis, Reply
from warmpath.indexer.shared.replica.pod_copy import CopyCounts, CopyState, Hold, PodCopy
from warmpath.indexer.watch.watched_source import WatchedRank

log = logging.getLogger(__name__)

POLL_TIMEOUT = 0.5
"""The longest wait for the replies of a poll, seconds. Where one node of a cluster does not answer, the
pods on other nodes wait as long."""
SCAN_TIMEOUT = 2.0
SCAN_PAUSE = 0.5
"""Seconds between two passes over the buckets."""
FIND_SECONDS = 2.0
"""How long after its start a replica waits for the first pod; without one it is settled then."""
FIELDS = 128
"""About how many fields a page has: mostly 100 KiB, at most 500 KiB."""
AT_ONCE = 8
"""Buckets that are read at the same time, a page of each in one round trip."""
SEGMENTS = b"?" * WORD_BYTES
BLOCKS = b"?" * 2 * WORD_BYTES

Keys = dict[int, list[NDArray[np.uint64]]]
"""The keys that each slot holds."""


class _Bucket:
    def __init__(self, number: int) -> None:
        self.number = number
        self.begin()

    def begin(self) -> None:
        self.fields = SEGMENTS
        self.cursor = b"0"
        self.disruptions: int | None = None
        """The number of disruptions before the first page was asked for; None until then."""
        self.has_spilled = False


class Scan:
    """One pass over all buckets, a page at a time, that collects the `wanted` slots' keys. Sans-I/O.

    HSCAN returns every field that exists all the time from its first page to its last, as long as the
    same server answers. Where the server may have changed, the pass begins the bucket again. A segment
    that is spilled during the scan moves its blocks to new fields, which HSCAN may have passed already.
    So the pass scans the fields of segments first, and where any segment is spilled, those of single
    blocks afterwards: blocks that move later were read with their segment.

    `disruptions` is the value of `Redis.disruptions`: in `asked` before the commands are sent, in `take`
    after the replies came.
    """

    def __init__(self, names: KeyNames, wanted: Collection[int]) -> None:
        self._names = names
        self._wanted = frozenset(wanted)
        self._waiting = deque(_Bucket(number) for number in range(names.buckets))
        self._open: list[_Bucket] = []
        self.problem = ""
        """Why one of the last pages could not be read; empty where all were."""

    @property
    def is_over(self) -> bool:
        return not self._waiting and not self._open

    def asked(self, disruptions: int) -> list[Command]:
        while self._waiting and len(self._open) < AT_ONCE:
            self._open.append(self._waiting.popleft())
        commands = []
        for bucket in self._open:
            if bucket.disruptions is None:
                bucket.disruptions = disruptions
            name = self._names.bucket(bucket.number)
            words = "HSCAN", name, bucket.cursor, "MATCH", bucket.fields, "COUNT", FIELDS
            commands.append(Command(words))
        return commands

    def take(self, replies: Sequence[Reply], disruptions: int) -> list[Keys]:
        """Take the replies; return the keys on each page, some perhaps for a second time.

        A bucket that failed is begun again, and `problem` says why. Raises BadSegmentError.
        """
        self.problem = ""
        found = []
        for bucket, reply in zip(list(self._open), replies, strict=True):
            if isinstance(reply, CommandFailedError):
                self.problem = str(reply)
                bucket.begin()
            elif bucket.disruptions != disruptions:
                bucket.begin()
            else:
                found.append(self._page(bucket, read_page(reply)))
        return found

    def _page(self, bucket: _Bucket, page: Page) -> Keys:
        keys: Keys = {}
        for name, value in page.values.items():
            if len(name) == WORD_BYTES and spilled_blocks(value) is not None:
                bucket.has_spilled = True
                continue
            packed = decode(value)
            for column, slot in enumerate(packed.slots):
                if slot in self._wanted:
                    keys.setdefault(slot, []).append(packed.held(column))
        bucket.cursor = page.cursor or b"0"
        if not page.cursor:
            if bucket.fields == SEGMENTS and bucket.has_spilled:
                bucket.fields = BLOCKS
            else:
                self._open.remove(bucket)
        return keys


class Replica:
    """Keeps copies of pods current. Belongs to one event loop; `settled` is called there, once.

    `settled` gets a sentence once every pod that has a publisher is copied, or a reading has failed.
    """

    def __init__(
        self,
        redis: Redis,
        names: KeyNames,
        *,
        poll_seconds: float,
        clock: Callable[[], float],
        settled: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.redis = redis
        self.polled_at = clock()
        """When, by the clock, Redis last answered for every pod, or when this began if it never did."""
        self.counts = CopyCounts()
        self.due = math.inf
        """When, by the clock, the first pod is to be degraded by `expire`, unless more is read."""
        self._names = names
        self._registry = Registry(redis, names, clock)
        self._poll_seconds = poll_seconds
        self._clock = clock
        self._settled: Callable[[str], None] | None = settled
        self._copies: dict[str, PodCopy] = {}
        self._scan: Scan | None = None
        self._holds: dict[int, Hold] = {}
        """What takes the keys of each slot that the present pass is for."""
        self._not_before = clock()
        self._no_pods_until = clock() + FIND_SECONDS
        self._trouble = ""

    def __contains__(self, pod: str) -> bool:
        return pod in self._copies

    def add(self, pod: str, ranks: Sequence[WatchedRank], keyspace: str) -> None:
        self._copies[pod] = PodCopy(
            *(pod, ranks, keyspace),
            names=self._names, registry=self._registry, counts=self.counts,
        )  # fmt: skip

    def remove(self, pod: str) -> None:
        """Drop a pod's copy; the caller has to empty the pod's ranks."""
        copy = self._copies.pop(pod)
        # It takes no more keys of a reading that is under way.
        copy.state = CopyState.NOTHING
        self._registry.forget(pod)

    async def run(self) -> None:
        while True:
            pause = await self.step()
            await asyncio.sleep(pause)

    def failed(self, problem: str) -> None:
        """Let every copy be read again: an error may have left any of them incomplete."""
        self._end_scan()
        for copy in self._copies.values():
            copy.fail(problem)
        self._say(problem)
        self._settle_if_ready()

    async def step(self) -> float:
        """Poll once, and read buckets where copies need it; return the seconds until the next poll."""
        next_poll = self._clock() + self._poll_seconds
        has_more = await self._poll()
        self._begin_scan()
        while self._scan is not None:
            await self._read_pages(self._scan)
            if has_more or self._clock() >= next_poll:
                break
        self._settle_if_ready()
        return 0.0 if has_more else max(0.0, next_poll - self._clock())

    async def _poll(self) -> bool:
        copies = list(self._copies.values())
        asked = [(copy, command) for copy in copies if (command := copy.asked())]
        pods = [copy.pod for copy in copies]
        logs = [command for _, command in asked]
        replies = await self._registry.read(pods, logs, POLL_TIMEOUT)
        entries = {copy.pod: reply for (copy, _), reply in zip(asked, replies, strict=True)}
        has_more = False
        for copy in copies:
            if self._copies.get(copy.pod) is copy:
                has_more |= copy.take(entries.get(copy.pod), self._clock())
                # Other tasks of the event loop need their turn.
                await asyncio.sleep(0)
        is_read = not any(isinstance(reply, CommandFailedError) for reply in replies)
        if is_read and self._registry.is_answered:
            self.polled_at = self._clock()
        self.due = min((copy.due for copy in copies), default=math.inf)
        return has_more

    def expire(self, now: float) -> None:
        """Degrade the pods whose copies show no moment of the last `PROMISED_SECONDS`. Thread-safe."""
        copies = list(self._copies.values())
        for copy in copies:
            copy.expire(now)
        self.due = min((copy.due for copy in copies if copy.due > now), default=math.inf)

    def _begin_scan(self) -> None:
        if self._scan is not None or self._clock() < self._not_before:
            return
        needed = [copy for copy in self._copies.values() if copy.state is CopyState.NEEDED]
        if not needed:
            return
        for copy in needed:
            self._holds |= copy.begin()
        self._scan = Scan(self._names, self._holds)

    async def _read_pages(self, scan: Scan) -> None:
        if not any(copy.state is CopyState.READING for copy in self._copies.values()):
            self._end_scan()
            return
        commands = scan.asked(self.redis.disruptions)
        replies = await self.redis.run(commands, timeout=SCAN_TIMEOUT)
        try:
            pages = scan.take(replies, self.redis.disruptions)
        except BadSegmentError as error:
            self._say(str(error))
            self._end_scan()
            return
        self._say(scan.problem)
        for page in pages:
            for slot, parts in page.items():
                self._holds[slot]([key for part in parts for key in part.tolist()])
            await asyncio.sleep(0)
        if scan.problem:
            await asyncio.sleep(self._poll_seconds)
        if scan.is_over:
            self._end_scan(CopyState.READ)

    def _end_scan(self, state: CopyState = CopyState.NEEDED) -> None:
        for copy in self._copies.values():
            copy.end(state)
        self._scan = None
        self._holds = {}
        self._not_before = self._clock() + SCAN_PAUSE

    def _say(self, problem: str) -> None:
        if problem and not self._trouble:
            log.warning("the shared index's buckets cannot be read: %s", problem)
        self._trouble = problem

    def _settle_if_ready(self) -> None:
        if self._settled is None:
            return
        problems = [self._registry.reading(pod).problem for pod in self._copies]
        if UNREAD in problems or (not problems and self._clock() < self._no_pods_until):
            return
        problem = self._trouble or next(filter(None, problems), "")
        busy = {CopyState.NEEDED, CopyState.READING, CopyState.READ}
        if problem or not any(copy.state in busy for copy in self._copies.values()):
            # The sentence stays, so it has to be true also once Redis answers.
            failed = f"the first attempt to copy the pods failed, and others follow: {problem}"
            self._settled(failed if problem else "every pod that has a publisher is copied")
            self._settled = None

    def lags(self) -> dict[str, int]:
        return {copy.pod: copy.lag for copy in list(self._copies.values())}
