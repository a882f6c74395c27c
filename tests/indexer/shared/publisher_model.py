"""Engines, a publisher that follows them, and its writer, one command at a time."""

import contextlib
import math
from collections.abc import Callable

from tests.indexer.awake import Awake
from tests.indexer.engine_model import EngineModel
from tests.indexer.followed import published
from warmpath.indexer.engines.event import Tier
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.redis.command import Call, Command, Reply
from warmpath.indexer.shared.writer.lease import AnewError, Commands
from warmpath.indexer.shared.writer.machine import Writer, WriterState
from warmpath.indexer.watch.pod_cache import Journal, PodCache

LEASE = 60.0
"""Seconds: nothing expires while a test runs."""

Holdings = dict[tuple[Tier, int], set[int]]
"""The keys that a rank holds, by tier and group."""

Do = Callable[[Command | Call], Reply]


class PublisherModel:
    """One life of a pod's publisher. `do` sends a command to Redis; `bases` are the bases of its claims."""

    def __init__(
        self,
        names: KeyNames,
        pod: str,
        engines: list[EngineModel],
        *,
        life: int,
        do: Do,
        clock: Callable[[], float],
    ) -> None:
        self.names = names
        self.pod = pod
        self.engines = engines
        self.truths: dict[int, list[Holdings]] = {}
        """Sequence of the journal -> the holdings of each rank at that time."""
        self.bases: set[int] = set()
        self.owner = f"owner-{life}"
        self._life = life
        self._do = do
        self._clock = clock
        self.cache = PodCache(pod, Journal(f"life-{life}", max_bytes=1500))
        self.cache.pulse = Awake(clock)
        self._resolvers = [published(self.cache, pod, number)[1] for number in range(len(engines))]
        self.writer = Writer(
            names,
            self.cache,
            owner=self.owner,
            keyspace="keyspace",
            model="m",
            watch="",
            lease=LEASE,
            bucket_life=86_400.0,
            random_base=self._random_base,
            clock=clock,
        )
        self._steps = self.writer.steps()
        self._step = next(self._steps)
        self._replies: list[Reply] = []
        self.waits = 0.0
        """Seconds that the writer has waited in all; no time passes here."""
        self.note()

    def _random_base(self) -> int:
        base = (1 << 20) * (self._life + 1) + len(self.bases)
        self.bases.add(base)
        return base

    def heard(self, rank: int, message: tuple[int, bytes] | None) -> None:
        if message is not None:
            self.cache.ranks[rank].live("", *message)

    def note(self) -> None:
        """Put changes into the journal, and record the holdings at its sequence."""
        self.cache.collect()
        sequence = self.cache.journal.sequence
        if sequence not in self.truths:
            self.truths[sequence] = [
                {spot: set(keys) for spot, keys in resolver.names.held().items() if keys}
                for resolver in self._resolvers
            ]

    @property
    def is_current(self) -> bool:
        journal = self.cache.journal
        return self.writer.state is WriterState.CURRENT and self.writer.applied == journal.sequence

    def write(self, commands: int) -> None:
        """Let the writer take `commands` steps: a command, a wait, or the reading of replies."""
        for _ in range(commands):
            if not isinstance(self._step, Commands):
                has_news = self.cache.journal.sequence > self.writer.applied
                if not (self._step.until_news and has_news):
                    self.waits += self._step.seconds
                self._step = self._steps.send(())
                # A claim begins with the cache's content at that time.
                self.note()
            elif len(self._replies) < len(self._step.asked):
                self._replies.append(self._do(self._step.asked[len(self._replies)]))
            else:
                replies, self._replies = self._replies, []
                self._step = self._steps.send(replies)
                self.note()

    def audit(self) -> None:
        """Let the writer audit now, however long ago its last audit was, until one has succeeded."""
        audits = self.writer.counts.audits
        while self.writer.counts.audits == audits:
            self.writer.audit_at = -math.inf
            self.write(1)

    def confirm(self) -> None:
        """Confirm the record twice now, if the writer rests, as it does by itself again and again."""
        tenure = self.writer.tenure
        if self.writer.state is not WriterState.CURRENT or isinstance(self._step, Commands):
            return
        assert tenure is not None
        for _ in range(2):
            steps = tenure.confirm()
            step = next(steps)
            assert isinstance(step, Commands)
            # That the record is lost the writer finds at its next audit.
            with contextlib.suppress(StopIteration, AnewError):
                steps.send([self._do(one) for one in step.asked])

    def end(self) -> None:
        """End in order."""
        for one in self.writer.farewell():
            self._do(one)
