"""Engines, a publisher that follows them, and its writer, one command at a time."""

import contextlib
import math
from collections.abc import Callable, Sequence

from tests.indexer.awake import Awake
from tests.indexer.engine_model import EngineModel
from tests.indexer.followed import published
from warmpath.indexer.engines.event import Tier
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.redis.command import Call, Command, Reply
from warmpath.indexer.shared.writer.lease import AnewError, Rest
from warmpath.indexer.shared.writer.machine import Writer, WriterState
from warmpath.indexer.watch.pod_cache import Journal, PodCache
from warmpath.proto.pb.warmpath.watch.v1 import cache_watch_pb2 as pb

Clock = Callable[[], float]
Holdings = dict[tuple[Tier, int], set[int]]
"""The keys that a rank holds, by tier and group."""

Do = Callable[[Command | Call], Reply]


class NotedJournal(Journal):
    """A journal that says of which rank it has more."""

    def __init__(self, epoch: str, max_bytes: int, note: Callable[[int], None]) -> None:
        super().__init__(epoch, max_bytes)
        self._note = note

    def add(self, state: pb.RankState, changes: list[pb.Change]) -> None:
        super().add(state, changes)
        self._note(state.rank)


class FollowedPod:
    """Engines, and a publisher's cache that follows them and takes what they say at once."""

    def __init__(
        self, pod: str, engines: Sequence[EngineModel], clock: Clock, *,
        epoch: str = "epoch", max_bytes: int = 1500,
    ) -> None:  # fmt: skip
        self.engines = engines
        self.truths: dict[int, list[Holdings]] = {0: [{} for _ in engines]}
        """Sequence of the journal -> the holdings of each rank at that time."""
        self.cache = PodCache(pod, NotedJournal(epoch, max_bytes, self._note))
        self.cache.pulse = Awake(clock)
        self._resolvers = [published(self.cache, pod, number)[1] for number in range(len(engines))]

    def heard(self, rank: int, message: tuple[int, bytes] | None) -> None:
        if message is not None:
            self.cache.ranks[rank].live("", *message)

    def held(self, rank: int) -> Holdings:
        held = self._resolvers[rank].names.held()
        return {spot: set(keys) for spot, keys in held.items() if keys}

    def _note(self, rank: int) -> None:
        sequence = self.cache.journal.sequence
        self.truths[sequence] = list(self.truths[sequence - 1])
        self.truths[sequence][rank] = self.held(rank)


def new_writer(names: KeyNames, cache: PodCache, clock: Clock, **changes: object) -> Writer:
    settings = {
        "owner": "o", "keyspace": "k", "model": "m", "watch": "", "lease": 60.0,
        "bucket_life": 86_400.0, "clock": clock,
    } | changes  # fmt: skip
    return Writer(names, cache, **settings)  # type: ignore[arg-type]


class Driven:
    """A writer that goes on when a test says so."""

    def __init__(self, writer: Writer, clock: Clock) -> None:
        self.writer = writer
        self._clock = clock
        self._steps = writer.steps()
        self.rests_until = 0.0
        self._take(next(self._steps))

    def _take(self, step: Sequence[Command | Call] | Rest) -> None:
        self.step = step
        if isinstance(step, Rest):
            self.rests_until = self._clock() + step.seconds

    def go_on(self, replies: Sequence[Reply] = ()) -> None:
        """Give it the replies to its commands; none after a rest."""
        self._take(self._steps.send(replies))

    @property
    def asked(self) -> Sequence[Command | Call]:
        """Its commands; none while it rests."""
        return () if isinstance(self.step, Rest) else self.step

    @property
    def has_news(self) -> bool:
        """Whether it rests until there is news, and there is."""
        news = self.writer._cache.journal.sequence > self.writer.applied
        return isinstance(self.step, Rest) and self.step.until_news and news

    @property
    def is_due(self) -> bool:
        """Whether it wants something now."""
        return bool(self.asked) or self._clock() >= self.rests_until or self.has_news


class PublisherModel(FollowedPod):
    """One life of a pod's publisher. `do` sends a command to Redis; `bases` are the bases of its claims."""

    def __init__(
        self, names: KeyNames, pod: str, engines: Sequence[EngineModel], *,
        life: int, do: Do, clock: Clock,
    ) -> None:  # fmt: skip
        super().__init__(pod, engines, clock, epoch=f"life-{life}")
        self.bases: set[int] = set()
        self.owner = f"owner-{life}"
        self._life = life
        self._do = do
        self.writer = new_writer(
            names, self.cache, clock,
            owner=self.owner, keyspace="keyspace", random_base=self._random_base,
        )  # fmt: skip
        self._driven = Driven(self.writer, clock)
        self._replies: list[Reply] = []
        self.waits = 0.0
        """Seconds that the writer has waited in all; no time passes here."""
        self.cache.collect()

    def _random_base(self) -> int:
        base = (1 << 20) * (self._life + 1) + len(self.bases)
        self.bases.add(base)
        return base

    @property
    def is_current(self) -> bool:
        journal = self.cache.journal
        return self.writer.state is WriterState.CURRENT and self.writer.applied == journal.sequence

    def write(self, commands: int) -> None:
        """Let the writer take `commands` steps: a command, a wait, or the reading of replies."""
        driven = self._driven
        for _ in range(commands):
            if isinstance(driven.step, Rest):
                self.waits += 0.0 if driven.has_news else driven.step.seconds
                driven.go_on()
            elif len(self._replies) < len(driven.asked):
                self._replies.append(self._do(driven.asked[len(self._replies)]))
            else:
                replies, self._replies = self._replies, []
                driven.go_on(replies)

    def audit(self) -> None:
        """Let the writer audit now, however long ago its last audit was, until one has succeeded."""
        audits = self.writer.counts.audits
        while self.writer.counts.audits == audits:
            self.writer.audit_at = -math.inf
            self.write(1)

    def confirm(self) -> None:
        """Confirm the record twice now, if the writer rests, as it does by itself again and again."""
        tenure = self.writer.tenure
        if self.writer.state is not WriterState.CURRENT or self._driven.asked:
            return
        assert tenure is not None
        for _ in range(2):
            steps = tenure.confirm()
            step = next(steps)
            assert not isinstance(step, Rest)
            # That the record is lost the writer finds at its next audit.
            with contextlib.suppress(StopIteration, AnewError):
                steps.send([self._do(one) for one in step])

    def end(self) -> None:
        """End in order."""
        for one in self.writer.farewell():
            self._do(one)
