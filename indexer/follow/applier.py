"""Carries out the actions of a rank's stream: batches change the rank's state and may change its trust.

The stream (`indexer.stream`) decides which batch is next. The applier tells it what changes the trust.
"""

from collections.abc import Callable, Sequence

from warmpath.indexer.engines.event import Batch, MalformedEventError, UnreadableEvent
from warmpath.indexer.follow.instance import RankSource
from warmpath.indexer.follow.lag import Lag
from warmpath.indexer.resolve.rank_state import RankState
from warmpath.indexer.stream.action import Action, Apply, AskReplay, Doubt, Reset
from warmpath.indexer.stream.machine import Stream
from warmpath.indexer.trust import DRIFTED

TWICE = "a block was stored twice: the cache has namespaces that events omit, such as those of extra_key"
"""The reason where an engine that keeps each block once stores one again."""

REPEATED = (
    "a block was announced again before it was removed, perhaps for a hit: as the cache's size (blocks) "
    "is not known, nothing shows whether a copy is left"
)
"""The reason where hits may have been announced as stores, and nothing could show whether they were."""

WHOLE = (
    "a slower tier finds blocks of %d tokens whole or not at all, and a part of one may be shown"
)
"""The reason where a tier's blocks have several of the cache's own, such as LMCache's chunks."""

AHEAD = (
    "a block is found only where the %d tokens behind it are the same; the first alone is compared"
)
"""The reason where a block's hash covers several tokens behind it: vLLM with several MTP modules."""

COPIES, HITS, CHUNKS, LOOKAHEAD = "copies", "hits", "chunks", "lookahead"
OTHER_RANK, BEFORE = "other rank", "before"
"""The subjects of limits; the last is for reasons that an earlier process saved."""


class Applier:
    """Applies one rank's batches. `restrict` is the rank's, which logs what becomes of the trust."""

    def __init__(
        self,
        source: RankSource,
        state: RankState,
        *,
        stream: Stream,
        restrict: Callable[[str, str], None],
        lag: Lag,
        clock: Callable[[], float],
    ) -> None:
        self.capacity = source.capacity
        """Blocks of the fastest tier; 0 where the number is not known."""
        self.batches = 0
        self.malformed = 0
        self.drifts = 0
        """How often more blocks were announced than the cache can hold."""
        self._source = source
        self._state = state
        self._stream = stream
        self._restrict = restrict
        self._lag = lag
        self._clock = clock
        self.connected()

    def connected(self) -> None:
        """Begin a new connection: the rank that its batches name is compared again."""
        self._is_rank_said = self._source.said_rank is None

    def carry_out(self, actions: list[Action]) -> AskReplay | None:
        asked = None
        for action in actions:
            if isinstance(action, Apply):
                self._apply(action)
            elif isinstance(action, Reset):
                self._state.forget()
                self._lag.begin()
                for about in (COPIES, BEFORE, HITS, CHUNKS, LOOKAHEAD):
                    self._restrict(about, "")
            elif isinstance(action, Doubt):
                self._state.doubt()
            else:
                asked = action
        return asked

    def _apply(self, action: Apply) -> None:
        self.batches += 1
        now = self._clock()
        if not self._is_rank_said:
            self._compare_rank(action.payload)
        if self._state.scan((action.payload,)):
            self._apply_scanned(now)
            return
        try:
            batch = self._source.decode(action.payload)
        except MalformedEventError as error:
            self.malformed += 1
            self.carry_out(self._stream.malformed(action.sequence, str(error), now))
            return
        self._apply_batch(batch, action.sequence, now)

    def decoded(self, batch: Batch) -> None:
        self.batches += 1
        now = self._clock()
        self._apply_batch(batch, self._stream.decoded(now), now)

    def _apply_batch(self, batch: Batch, sequence: int, now: float) -> None:
        self.capacity = batch.capacity or self.capacity
        counts = self._state.counts
        clears, parentless = counts.clears, counts.parentless
        self._state.apply(batch.events)
        if counts.clears > clears:
            self._stream.cleared(sequence, now)
        for event in batch.unread:
            self._pass_over(event, sequence, now)
        self._judge(parentless, now)

    def _compare_rank(self, payload: bytes) -> None:
        try:
            said = self._source.decode(payload).rank
        except MalformedEventError:
            return
        self._is_rank_said = True
        own = self._source.said_rank
        other = f"its events are those of the engine's rank {said} and are followed as rank {own}"
        self._restrict(OTHER_RANK, "" if said is None or said == own else other)

    def _pass_over(self, event: UnreadableEvent, sequence: int, now: float) -> None:
        self.malformed += 1
        lost = f"{event.kind or 'an event'} of batch {sequence} cannot be read ({event.reason})"
        if event.is_store:
            self.lack(f"{lost}: the blocks that it stored are missing", now)
        else:
            self.carry_out(self._stream.missed(f"{lost}: blocks may be shown that are gone", now))

    def lack(self, reason: str, now: float) -> None:
        """Lower the trust, as the view lacks blocks that the engine holds."""
        self._state.lost_room()
        self._stream.lacks(reason, now)

    def follow(self, payloads: Sequence[bytes]) -> None:
        """Apply batches that are next in order and that the state has scanned."""
        now = self._clock()
        if not self._is_rank_said:
            self._compare_rank(payloads[0])
        self._stream.follow(payloads, now)
        self.batches += len(payloads)
        self._apply_scanned(now)

    def _apply_scanned(self, now: float) -> None:
        is_left = True
        while is_left:
            parentless = self._state.counts.parentless
            heals = self._stream.can_heal
            is_left = self._state.apply_scanned(self.capacity, heals=heals)
            self._judge(parentless, now)

    def _judge(self, parentless: int, now: float) -> None:
        """Change the trust as the applied batches require.

        `parentless` is how many blocks without a known parent were counted before them.
        """
        if self._state.counts.again:
            self._state.counts.again = 0
            self._restrict(COPIES, TWICE)
        if self._state.counts.chunk_tokens:
            self._restrict(CHUNKS, WHOLE % self._state.counts.chunk_tokens)
            self._state.counts.chunk_tokens = 0
        if self._state.counts.lookahead:
            self._restrict(LOOKAHEAD, AHEAD % self._state.counts.lookahead)
            self._state.counts.lookahead = 0
        if self._state.counts.parentless > parentless and not self._stream.is_damaged:
            reason = "a stored block's parent is unknown: an event was missed"
            self.carry_out(self._stream.missed(reason, now))
        elif self._stream.can_heal and self._state.can_settle(self.capacity):
            self._state.settle()
            self._stream.turned_over(now)
        self._measure(now)
        self.limit_repeated()

    def limit_repeated(self) -> None:
        is_unsure = not self.capacity and self._state.may_show_hits()
        self._restrict(HITS, REPEATED if is_unsure else "")

    def _measure(self, now: float) -> None:
        """Give up the excess where more blocks were announced than the cache can hold."""
        in_use = self._state.blocks_in_use()
        if in_use is None or not 0 < self.capacity < in_use:
            return
        self.drifts += 1
        self._state.give_up_excess()
        self._stream.lacks(f"{DRIFTED}: {in_use} of {self.capacity}", now)
