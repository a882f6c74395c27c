"""Replica mode: keeps a router's index current from the shared one, so that no Score waits for Redis.

each `poll_seconds`: read every pod's log from its copy's position on, and its record, in one round trip
between two polls: where copies need it, make one pass over all buckets for all of them
"""

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from warmpath.indexer.keys.segment_value import BadSegmentError
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.records.registry import AWAY, UNREAD, Registry
from warmpath.indexer.shared.redis.command import CommandFailedError, Redis
from warmpath.indexer.shared.replica.pod_copy import CopyState, Holder, PodCopy, Resync
from warmpath.indexer.shared.replica.scan import Scan
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
        """When, by the clock, Redis last answered for every pod; the start before the first time."""
        self.due = math.inf
        """When, by the clock, the first pod is to be degraded by `expire`, unless more is read."""
        self._names = names
        self._registry = Registry(redis, names, clock)
        self._poll_seconds = poll_seconds
        self._clock = clock
        self._settled: Callable[[str], None] | None = settled
        self._copies: dict[str, PodCopy] = {}
        self._scan: Scan | None = None
        self._holders: Mapping[int, Holder] = {}
        self._reading: Sequence[PodCopy] = ()
        """The copies that the present pass reads the buckets for."""
        self._not_before = clock()
        self._no_pods_until = clock() + FIND_SECONDS
        self._trouble = ""
        self._resyncs_of_gone: Counter[Resync] = Counter()
        self._entries_of_gone = 0

    def __contains__(self, pod: str) -> bool:
        return pod in self._copies

    def add(self, pod: str, ranks: Sequence[WatchedRank], keyspace: str) -> None:
        self._copies[pod] = PodCopy(pod, ranks, keyspace, self._names.prefix)

    def remove(self, pod: str) -> None:
        """Drop a pod's copy; the caller has to empty the pod's ranks."""
        copy = self._copies.pop(pod)
        # It takes no more keys of a reading that is under way.
        copy.state = CopyState.NOTHING
        self._registry.forget(pod)
        self._resyncs_of_gone += copy.resyncs
        self._entries_of_gone += copy.entries

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
        asked = [(copy, command) for copy in copies if (command := copy.asked(self._names))]
        pods = [copy.pod for copy in copies]
        logs = [command for _, command in asked]
        replies = await self._registry.read(pods, logs, POLL_TIMEOUT)
        entries = {copy.pod: reply for (copy, _), reply in zip(asked, replies, strict=True)}
        is_answered = self._registry.is_answered
        has_more = False
        for copy in copies:
            if self._copies.get(copy.pod) is not copy:
                continue
            log_entries = entries.get(copy.pod)
            reading = self._registry.reading(copy.pod)
            problem = reading.problem
            if isinstance(log_entries, CommandFailedError):
                problem = problem or f"{AWAY}{log_entries}"
                is_answered = False
            if problem:
                copy.lost(problem)
                continue
            limit, moment = self._registry.limit(copy.pod), reading.moment.at
            now = self._clock()
            has_more |= copy.take(reading.record, limit, log_entries, moment=moment, now=now)
            # Other tasks of the event loop need their turn.
            await asyncio.sleep(0)
        if is_answered:
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
        holders: dict[int, Holder] = {}
        for copy in needed:
            holders |= copy.begin()
        self._reading = needed
        self._holders = holders
        self._scan = Scan(self._names, holders)

    async def _read_pages(self, scan: Scan) -> None:
        if not any(copy.state is CopyState.READING for copy in self._reading):
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
                holder = self._holders[slot]
                keys = [key for part in parts for key in part.tolist()]
                holder.copy.hold(holder.rank, holder.spot, keys)
            await asyncio.sleep(0)
        if scan.problem:
            await asyncio.sleep(self._poll_seconds)
        if scan.is_over:
            for copy in self._reading:
                copy.end(CopyState.READ)
            self._end_scan()

    def _end_scan(self) -> None:
        for copy in self._reading:
            copy.end(CopyState.NEEDED)
        self._scan = None
        self._holders = {}
        self._reading = ()
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

    def resyncs(self) -> Counter[Resync]:
        counts = self._resyncs_of_gone.copy()
        for copy in list(self._copies.values()):
            counts += copy.resyncs
        return counts

    def entries(self) -> int:
        copies = list(self._copies.values())
        return self._entries_of_gone + sum(copy.entries for copy in copies)

    def lags(self) -> dict[str, int]:
        return {copy.pod: copy.lag for copy in list(self._copies.values())}
