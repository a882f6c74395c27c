"""One rank's event stream as a state machine without sockets: messages go in, actions come out.

Sequence numbers decide everything. An engine numbers its batches from 0 in each life, publishes them on
a lossy socket, and answers replay requests from a ring of its last batches. The machine lets every batch
be applied once and in order; where it cannot, it lowers the trust.

             connected                      replay ended, nothing missing
    WAITING ───────────► REPLAYING ──────────────────────────────────────► FOLLOWING
                          ▲     │ new life seen: Reset, replay from 0           │
                          │     └──────────────► REPLAYING                      │
                          └─────────────────────────────────────────────────────┘
                            connected again, a gap, or a sequence that went back

Restarts. An engine that restarts numbers from 0 again and sends no clear, so a restart can look like
duplicates, like a gap, or like nothing at all. Therefore each replay request starts one batch
*before* the first missing one: that batch is the fence. If it comes back with the bytes that were
applied, this is the same life; if it comes back with others, or not at all although the buffer goes
back that far, the engine has restarted: everything known of the rank is dropped, and the new life's
batches are asked for from the first on.

A connection's batches never arrive after it is gone: `indexer.follow.subscribe` uses a new socket for
each.

A replay that breaks off is asked for again from where it stopped, fence included, at growing intervals;
live batches are held meanwhile. That ends when the engine says that its buffer no longer goes back that
far, or when batches wait and too many replays failed in a row (`ReplayCall.is_hopeless`).

A malformed message has no sequence. The next batch shows whether the message was meant as a batch: if
the next batch is in order, none is missing.

ZeroMQ does not confirm a subscription. A batch that the engine published before the subscription arrived
there, and after its answer to the replay, would only be missed with the next batch. So until a live
batch comes, the engine is asked again for batches behind the last one (`_check`). That is a replay like
any other, fence included, but nothing waits for it.

Without a replay endpoint a gap cannot be closed, nor can a restart be ruled out after a lost
connection; trust is then degraded until the next clear, or until `turned_over` is called.

The machine is one class in one file, as nearly every message reads and changes the same four things: the
next sequence, the held batches, the running replay and the trust. The last three have classes beside it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import msgspec

from warmpath.indexer.stream.action import MOST_SEQUENCE, Action, Apply, AskReplay, Doubt, Reset
from warmpath.indexer.stream.digests import Digests
from warmpath.indexer.stream.replay import HeldBatches, ReplayCall
from warmpath.indexer.stream.trust import StreamTrust
from warmpath.indexer.trust import Level, Trust

NO_LIVE = -1
"""In place of the last live sequence where no live batch came on this connection."""

CHECKS = (1.0, 6.0)
"""Seconds after a replay, and after the check before, at which a check is made (`Stream._check`). By the
last one the subscription is in force: it was sent before the first of the heartbeats, which come each
second, and a connection without an answer to one ends after five more (`indexer.follow.subscribe`)."""

NONE_YET = MOST_SEQUENCE + 1
"""The same where no replay can prove that the engine is in the same life. It is above every sequence."""

PENDING_BYTES = 64 << 20
"""Maximum bytes of a rank's live batches that wait to be applied, and of those held during a replay.

Beyond it they are dropped and requested again."""


class StreamState(Enum):
    """The stream's present work: waiting for a connection, replaying or following."""

    WAITING = auto()
    REPLAYING = auto()
    FOLLOWING = auto()


@dataclass(slots=True)
class StreamCounts:
    """Counters of the stream, which become metrics."""

    duplicates: int = 0
    gaps: int = 0
    replays: int = 0
    restarts: int = 0
    overflows: int = 0


class SavedStream(msgspec.Struct, frozen=True):
    """A stream's position and trust, from which the next process goes on."""

    next: int
    digests: dict[int, int]
    level: Level
    reason: str
    passing: bool
    heals_at: int


class Stream:
    """Orders one rank's batches and owns its trust.

    `pending_bytes` bounds the live batches that are held while a replay runs; past it they are
    dropped and asked for again. With `is_queue` the engine keeps batches until they are fetched,
    so that a lost connection loses none. `believe` is told each change of the trust. Times are seconds
    of one clock, given by the caller.
    """

    def __init__(
        self,
        *,
        has_replay: bool,
        is_queue: bool = False,
        pending_bytes: int,
        stale_after: float,
        now: float,
        believe: Callable[[Trust], None] = lambda _: None,
    ) -> None:
        self.counts = StreamCounts()
        self._has_replay = has_replay
        self._is_queue = is_queue
        self._stale_after = stale_after
        self._state = StreamState.WAITING
        self._trust = StreamTrust(now, believe)
        self._disconnected_at: float | None = now
        self._next = 0
        """The sequence that is to be applied next."""
        self._digests = Digests()
        self._live = NONE_YET
        """The sequence of the last live batch on this connection."""
        self._held = HeldBatches(pending_bytes)
        self._replay = ReplayCall()
        self._checks = 0
        """How many checks were answered on this connection."""

    @property
    def trust(self) -> Trust:
        """How far the router's view of the rank may be believed now."""
        return self._trust.now

    @property
    def sequence(self) -> int | None:
        """The last applied sequence; None before the first."""
        return self._next - 1 if self._next else None

    @property
    def is_damaged(self) -> bool:
        """Whether the trust is degraded, and the next batch in order does not heal it."""
        return self._trust.is_damaged

    @property
    def can_heal(self) -> bool:
        """Whether `turned_over` may restore the trust."""
        return self.is_damaged and self._state is StreamState.FOLLOWING

    @property
    def is_connected(self) -> bool:
        """Whether the live socket is connected."""
        return self._disconnected_at is None

    @property
    def state(self) -> StreamState:
        """The stream's present work."""
        return self._state

    def connected(self, now: float) -> list[Action]:
        """Handle a connection of the live socket, the first one or a later one."""
        again = self._next > 0 or self._trust.level is not Level.COLD
        self._disconnected_at = None
        self._live = NO_LIVE if self._has_replay else NONE_YET
        self._checks = 0
        self._trust.connected()
        if self._has_replay:
            if self._trust.level is Level.EXACT:
                self._trust.set(Level.DEGRADED, "reconnected, replay requested", now, passing=True)
            return self._ask(now)
        self._state = StreamState.FOLLOWING
        if again and not self._is_queue:
            reason = "reconnected without a replay endpoint: a restart cannot be ruled out"
            return self._degrade(reason, self._next, now)
        return []

    def disconnected(self, now: float) -> None:
        """Handle the loss of the live socket."""
        if self._disconnected_at is None:
            self._disconnected_at = now
        self._replay.drop()
        self._state = StreamState.WAITING
        self._held.drop()

    def tick(self, now: float) -> None:
        """Let time pass: a connection gone for too long makes the rank stale."""
        gone = self._disconnected_at
        if gone is None or self._trust.is_stale or now - gone < self._stale_after:
            return
        self._trust.disconnected(now)

    def live(self, sequence: int, payload: bytes, now: float) -> list[Action]:
        """Take a batch from the live socket."""
        actions = self.connected(now) if self._state is StreamState.WAITING else []
        before, self._live = self._live, sequence
        if self._state is StreamState.REPLAYING:
            self._hold(sequence, payload)
        elif sequence == self._next:
            actions += self._accept(sequence, payload, now)
        elif sequence > self._next:
            actions += self._gap(sequence, payload, now)
        elif self._is_known(sequence, payload, before):
            self.counts.duplicates += 1
        elif before == NO_LIVE and sequence not in self._digests:
            # It waited in the socket while a replay brought it, or a new life began unseen. A replay
            # shows which, and brings the new life's batches.
            reason = f"the connection's first batch is {sequence}, and {self._next} is next"
            actions += self.suspect(reason, now)
        else:
            actions += self._restart(sequence, payload, now)
        return actions

    def _is_known(self, sequence: int, payload: bytes, before: int) -> bool:
        if self._is_queue:
            # A queue gives each batch once. The new life's first batches may have the old ones' bytes:
            # TensorRT-LLM's have no time.
            return False
        if sequence in self._digests:
            return self._digests.has(sequence, payload)
        # Its digest is forgotten. If it comes after another on its connection, a replay brought it while
        # it waited in the socket.
        return sequence > before > NO_LIVE

    @property
    def expected(self) -> int:
        """The sequence of the live batch that would be applied at once; -1 where none would."""
        return self._next if self._state is StreamState.FOLLOWING else -1

    def follow(self, payloads: Sequence[bytes], now: float) -> None:
        """Count the expected batches as applied; the caller applies them."""
        self._accept(self._next, payloads[0], now)
        self._digests.add_all(self._next, payloads[1:])
        self._next += len(payloads) - 1
        self._live = self._next - 1

    def decoded(self, now: float) -> int:
        """Count a batch that comes decoded as the next one; return its sequence. The caller applies it.

        The rank must be followed without a replay, which alone would compare the batch's bytes.
        """
        assert self._state is StreamState.FOLLOWING
        sequence = self._next
        self._trust.in_order(sequence, now, is_following=True)
        self._next = sequence + 1
        return sequence

    def _hold(self, sequence: int, payload: bytes) -> None:
        if not self._held.hold(sequence, payload):
            self.counts.overflows += 1

    def _accept(self, sequence: int, payload: bytes, now: float) -> list[Action]:
        self._trust.in_order(sequence, now, is_following=self._state is StreamState.FOLLOWING)
        self._next = sequence + 1
        self._digests.add(sequence, payload)
        return [Apply(sequence, payload)]

    def _gap(self, sequence: int, payload: bytes, now: float) -> list[Action]:
        missing = f"batches {self._next} to {sequence - 1}"
        if self._next == 0 and self._trust.level is Level.COLD and not self._has_replay:
            late = self._degrade(f"joined late: {missing} came before", sequence, now)
            return late + self._accept(sequence, payload, now)
        self.counts.gaps += 1
        if not self._has_replay or self._replay.unfillable == self._next:
            lost = self._degrade(f"{missing} are lost", sequence, now)
            return lost + self._accept(sequence, payload, now)
        if self._trust.level is not Level.DEGRADED:
            self._trust.set(
                Level.DEGRADED, f"{missing} are missing, replay requested", now, passing=True
            )
        self._replay.unfillable = self._next
        actions = self._ask(now)
        self._hold(sequence, payload)
        return actions

    def _restart(self, sequence: int, payload: bytes, now: float) -> list[Action]:
        reset = self._new_life(_back(self._next, sequence), now)
        if self._has_replay and sequence > 0:
            # The replay brings this batch too. It is not held: if it were a late batch of the old life,
            # it would contradict the replay again and again.
            return [reset, *self._ask(now)]
        if sequence == 0:
            return [reset, *self._accept(sequence, payload, now)]
        return [reset, *self._gap(sequence, payload, now)]

    def _new_life(self, reason: str, now: float) -> Reset:
        self.counts.restarts += 1
        self._next = 0
        self._replay.unfillable = -1
        self._digests.clear()
        self._trust.new_life(f"the engine restarted: {reason}", now)
        return Reset(reason)

    def _ask(self, now: float) -> list[Action]:
        if self._next == 0 and self._trust.level is not Level.COLD:
            self._trust.set(Level.COLD, "nothing applied yet, replay requested", now)
        self._state = StreamState.REPLAYING
        self._held.drop()
        return [self._request(0.0)]

    def _request(self, delay: float) -> AskReplay:
        # If the message that could not be read was a batch, the replay brings that batch.
        self._trust.stray = ""
        self.counts.replays += 1
        return self._call(delay)

    def _call(self, delay: float) -> AskReplay:
        has_fence = self._next - 1 in self._digests
        return self._replay.ask(self._next, has_fence=has_fence, delay=delay)

    def wants(self, ticket: int) -> bool:
        """Return whether the answer to a replay that was asked for is still wanted."""
        is_wanted = self._state is StreamState.REPLAYING or self._is_unproven
        return is_wanted and self._replay.is_current(ticket)

    @property
    def _is_unproven(self) -> bool:
        """Whether it follows without a live batch so far, and not all checks were made."""
        is_silent = self._state is StreamState.FOLLOWING and self._live == NO_LIVE
        return is_silent and self._checks < len(CHECKS)

    def _check(self) -> list[Action]:
        """Unless the subscription is proven, ask for batches from before it was in force."""
        return [self._call(CHECKS[self._checks])] if self._is_unproven else []

    def replayed(self, ticket: int, sequence: int, payload: bytes, now: float) -> list[Action]:
        """Take one batch of a replay's answer."""
        if not self.wants(ticket):
            return []
        actions: list[Action] = []
        self._replay.answered()
        begun, self._replay.begun = self._replay.begun, True
        if not begun and self._replay.fence is not None and sequence <= self._replay.fence:
            return self._pass_fence(sequence, payload, now)
        if not begun and self._replay.fence is not None:
            reason = f"the replay buffer begins at {sequence}, after the last batch seen"
            actions = self._degrade(f"{reason} ({self._replay.fence})", sequence, now)
        if sequence < self._next:
            self.counts.duplicates += 1
            return actions
        if sequence > self._next:
            actions += self._lose(sequence, now)
        self._replay.succeeded()
        return actions + self._accept(sequence, payload, now)

    def _pass_fence(self, sequence: int, payload: bytes, now: float) -> list[Action]:
        """Compare the replay's first batch with the fence."""
        if sequence != self._replay.fence:
            # The engine ignores the requested start. Skip the batches up to the fence.
            self._replay.begun = False
            return []
        if self._digests.has(sequence, payload):
            return []
        reset = self._new_life(f"batch {sequence} is not the one that was seen before", now)
        return [reset, *self._ask(now)]

    def _lose(self, sequence: int, now: float) -> list[Action]:
        if self._next == 0 and not self._digests:
            reason = f"joined late: the replay buffer begins at {sequence}"
        else:
            reason = f"batches {self._next} to {sequence - 1} are lost"
        return self._degrade(reason, sequence, now)

    def replay_ended(self, ticket: int, now: float) -> list[Action]:
        """Take the end of a replay's answer."""
        if not self.wants(ticket):
            return []
        self._replay.answered()
        if not self._replay.begun and self._replay.fence is not None:
            if self._trust.stray:
                return self.replay_failed(ticket, self._trust.stray, now)
            # The same life has at least the fence in its buffer. The new one may have batches before it.
            reason = f"its replay buffer ends before batch {self._replay.fence}"
            return [self._new_life(reason, now), *self._ask(now)]
        self._replay.succeeded()
        if self._state is StreamState.FOLLOWING:
            self._checks += 1
            self._replay.drop()
            return self._check()
        return self._follow(now)

    def replay_failed(self, ticket: int, reason: str, now: float) -> list[Action]:
        """Resume a replay whose answer did not come or broke off, unless it has failed too often."""
        if not self.wants(ticket):
            return []
        if self._state is StreamState.FOLLOWING:
            return self._check()
        reason = f"replay failed: {reason}"
        self._replay.failed()
        if self._held and self._replay.is_hopeless:
            doubt = self._degrade(
                f"{reason}, {self._replay.failures} times in a row", self._next, now
            )
            self._replay.unfillable = self._next
            return doubt + self._follow(now)
        if self._next == 0:
            self._trust.set(Level.COLD, f"{reason}; it is requested again", now)
        elif not self.is_damaged:
            said = f"{reason}; it is requested again from where it stopped"
            self._trust.set(Level.DEGRADED, said, now, passing=True)
        return [self._request(self._replay.back_off)]

    def _follow(self, now: float) -> list[Action]:
        """Go on with the live batches that were held."""
        self._state = StreamState.FOLLOWING
        held = self._held.take()
        if self._trust.level is Level.COLD and not (held and held[0][0] > self._next):
            self._trust.be_exact("followed from the first batch", now)
        elif self._trust.passing:
            self._trust.be_exact("the gap was closed by replay", now)
        actions: list[Action] = []
        while held:
            sequence, payload = held.popleft()
            if sequence == self._next:
                actions += self._accept(sequence, payload, now)
            elif sequence > self._next:
                actions += self._gap(sequence, payload, now)
            elif self._digests.has_other(sequence, payload):
                return [*actions, self._new_life(_back(self._next, sequence), now), *self._ask(now)]
            else:
                self.counts.duplicates += 1
            if self._state is StreamState.REPLAYING:
                # There is another gap: hold the batches after it.
                for later in held:
                    self._hold(*later)
                break
        return actions + self._check()

    def malformed(self, sequence: int, reason: str, now: float) -> list[Action]:
        """Degrade the trust: an applied batch could not be read, so its changes are not known."""
        return self._degrade(f"batch {sequence} is malformed: {reason}", sequence + 1, now)

    def missed(self, reason: str, now: float) -> list[Action]:
        """Degrade the trust: the batches themselves show that something was missed before."""
        return self._degrade(reason, self._next, now)

    def lacks(self, reason: str, now: float) -> None:
        """Degrade the trust: the view lacks some blocks; the blocks in it are not in doubt."""
        self._trust.heals_at = max(self._trust.heals_at, self._next)
        if not self.is_damaged:
            self._trust.set(Level.DEGRADED, reason, now)

    def stray(self, reason: str, now: float) -> None:
        """Handle a message that could not be read as a batch."""
        self._trust.strayed(reason, max(self._next, self._held.last + 1))
        if self._state is not StreamState.REPLAYING and not self.is_damaged:
            self._trust.set(Level.DEGRADED, reason, now, passing=True)

    def suspect(self, reason: str, now: float) -> list[Action]:
        """Handle a possible restart: ask for a replay that shows it, or else degrade the trust."""
        if self._state is StreamState.WAITING or self._next == 0:
            return []
        if not self._has_replay:
            return self.missed(reason, now)
        if not self.is_damaged:
            self._trust.set(Level.DEGRADED, f"{reason}, replay requested", now, passing=True)
        # A running replay may have begun before the restart: the new one takes its place.
        return self._ask(now)

    def turned_over(self, now: float) -> None:
        """Restore the trust: no block is left that was cached when something was missed."""
        if self.can_heal:
            reason = "since something was missed, as many blocks were stored as the cache holds"
            self._trust.be_exact(reason, now)

    def cleared(self, sequence: int, now: float) -> None:
        """Handle a clear in an applied batch: events missed before it no longer matter."""
        if self._trust.level is not Level.DEGRADED or sequence < self._trust.heals_at:
            return
        if self._state is StreamState.REPLAYING:
            reason = "cleared by the engine, but the replay is not over"
            self._trust.set(Level.DEGRADED, reason, now, passing=True)
        else:
            self._trust.be_exact("cleared by the engine", now)

    def _degrade(self, reason: str, heals_at: int, now: float) -> list[Action]:
        self._trust.degrade(reason, heals_at, now)
        return [Doubt()]

    def save(self) -> "SavedStream":
        """Return the position and trust that a later process goes on from."""
        return SavedStream(
            next=self._next,
            digests=self._digests.save(),
            level=self._trust.level,
            reason=self._trust.reason,
            passing=self._trust.passing,
            heals_at=self._trust.heals_at,
        )

    def restore(self, saved: "SavedStream", now: float) -> None:
        """Continue from the state that an earlier process saved, before any message is taken."""
        self._next = saved.next
        self._digests.restore(saved.digests)
        self._trust.restore(
            saved.level, saved.reason, now, passing=saved.passing, heals_at=saved.heals_at
        )


def _back(expected: int, sequence: int) -> str:
    return f"the sequence went back from {expected - 1} to {sequence}"
