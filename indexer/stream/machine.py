"""One rank's event stream as a state machine without sockets: it tells a follower what to do.

Sequence numbers decide everything. An engine numbers its batches from 0 in each life, publishes them on
a lossy socket, and answers replay requests from a ring of its last batches. The machine lets every batch
be applied once and in order; where it cannot, it lowers the trust. One file has all its states.

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

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

import msgspec

from warmpath.indexer.stream.replay import MOST_SEQUENCE, AskReplay, Digests, ReplayCall
from warmpath.indexer.stream.trust import StreamTrust
from warmpath.indexer.trust import Level, Trust

NO_LIVE = -1
"""In place of the last live sequence where no live batch came on this connection."""

NONE_YET = MOST_SEQUENCE + 1
"""In place of `NO_LIVE` where no replay can prove that the engine is in the same life; it is above every
sequence."""

CHECKS = (1.0, 6.0)
"""Seconds after a replay, and after the check before, at which a check is made (`Stream._check`). By the
last one the subscription is in force: it was sent before the first of the heartbeats, which come each
second, and a connection without an answer to one ends after five more (`indexer.follow.subscribe`)."""

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


class Follower(Protocol):
    """The rank whose batches a stream orders. Each method must be done when it returns."""

    ask: Callable[[AskReplay], None]
    """Asks the engine for a replay."""

    def believe(self, said: Trust) -> None:
        """Take the trust, which has changed."""

    def apply(self, sequence: int, payload: bytes) -> None:
        """Apply a batch: it is the next one in order."""

    def begin_life(self) -> None:
        """Drop everything that was known of the rank: the engine restarted."""

    def doubt(self) -> None:
        """Doubt every block known until now: something was missed, and it may be gone."""


class Stream:
    """Orders one rank's batches and owns its trust, as far as it does not depend on the connection.

    `pending_bytes` bounds the live batches that are held while a replay runs, except for a single larger
    one; past it they are dropped and asked for again. With `is_queue` the engine keeps batches until
    they are fetched, so that a lost connection loses none. `clock` returns seconds.
    """

    def __init__(
        self,
        follower: Follower,
        *,
        has_replay: bool,
        is_queue: bool = False,
        pending_bytes: int,
        clock: Callable[[], float],
    ) -> None:
        self.counts = StreamCounts()
        self.state = StreamState.WAITING
        self.trust = StreamTrust(follower.believe, clock)
        self._follower = follower
        self._has_replay = has_replay
        self._is_queue = is_queue
        self._next = 0
        """The sequence that is to be applied next."""
        self._digests = Digests()
        self._live = NONE_YET
        """The sequence of the last live batch on this connection."""
        self._held: deque[tuple[int, bytes]] = deque()
        """Live batches that wait while a replay runs, in the order in which they came."""
        self._held_bytes = 0
        self._pending_bytes = pending_bytes
        self._replay = ReplayCall()
        self._checks = 0
        """How many checks were answered on this connection."""

    @property
    def sequence(self) -> int | None:
        """The last applied sequence; None before the first."""
        return self._next - 1 if self._next else None

    @property
    def position(self) -> tuple[int, int]:
        """The sequence to be applied next, and the digest of the batch before it; 0: not known."""
        return self._next, self._digests.get(self._next - 1, 0)

    @property
    def can_heal(self) -> bool:
        """Whether `turned_over` may restore the trust."""
        return self.trust.is_damaged and self.state is StreamState.FOLLOWING

    def connected(self) -> None:
        again = self._next > 0 or self.trust.level is not Level.COLD
        self._live = NO_LIVE if self._has_replay else NONE_YET
        self._checks = 0
        if self._has_replay:
            if self.trust.level is Level.EXACT:
                self.trust.suspend("reconnected, replay requested")
            self._ask()
            return
        self.state = StreamState.FOLLOWING
        if again and not self._is_queue:
            reason = "reconnected without a replay endpoint: a restart cannot be ruled out"
            self._degrade(reason, self._next)

    def disconnected(self) -> None:
        self._replay.ticket += 1
        self.state = StreamState.WAITING
        self._take_held()

    def live(self, sequence: int, payload: bytes) -> None:
        if self.state is StreamState.WAITING:
            self.connected()
        before, self._live = self._live, sequence
        if self.state is StreamState.REPLAYING:
            self._hold(sequence, payload)
        elif sequence == self._next:
            self._accept(sequence, payload)
        elif sequence > self._next:
            self._gap(sequence, payload)
        elif self._is_known(sequence, payload, before):
            self.counts.duplicates += 1
        elif before == NO_LIVE and sequence not in self._digests:
            # It waited in the socket while a replay brought it, or a new life began unseen. A replay
            # shows which, and brings the new life's batches.
            self.suspect(f"the connection's first batch is {sequence}, and {self._next} is next")
        else:
            self._restart(sequence, payload)

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
        return self._next if self.state is StreamState.FOLLOWING else -1

    def follow(self, payloads: Sequence[bytes]) -> None:
        """Count the expected batches as applied; the caller applies them."""
        self.trust.in_order(self._next, is_following=True)
        self._digests.add(self._next, payloads)
        self._next += len(payloads)
        self._live = self._next - 1

    def decoded(self) -> int:
        """Count a batch that comes decoded as the next one; return its sequence. The caller applies it.

        The rank must be followed without a replay, which alone would compare the batch's bytes.
        """
        assert self.state is StreamState.FOLLOWING
        sequence = self._next
        self.trust.in_order(sequence, is_following=True)
        self._next = sequence + 1
        return sequence

    def _hold(self, sequence: int, payload: bytes) -> None:
        if self._held_bytes + len(payload) > self._pending_bytes:
            # The batches let go show as a gap after the replay, and are asked for again.
            self._take_held()
            self.counts.overflows += 1
        self._held.append((sequence, payload))
        self._held_bytes += len(payload)

    def _take_held(self) -> deque[tuple[int, bytes]]:
        taken, self._held, self._held_bytes = self._held, deque(), 0
        return taken

    def _accept(self, sequence: int, payload: bytes) -> None:
        self.trust.in_order(sequence, is_following=self.state is StreamState.FOLLOWING)
        self._next = sequence + 1
        self._digests.add(sequence, (payload,))
        self._follower.apply(sequence, payload)

    def _gap(self, sequence: int, payload: bytes) -> None:
        missing = f"batches {self._next} to {sequence - 1}"
        if self._next == 0 and self.trust.level is Level.COLD and not self._has_replay:
            self._degrade(f"joined late: {missing} came before", sequence)
            self._accept(sequence, payload)
            return
        self.counts.gaps += 1
        if not self._has_replay or self._replay.unfillable == self._next:
            self._degrade(f"{missing} are lost", sequence)
            self._accept(sequence, payload)
            return
        if self.trust.level is not Level.DEGRADED:
            self.trust.suspend(f"{missing} are missing, replay requested")
        self._replay.unfillable = self._next
        self._ask()
        self._hold(sequence, payload)

    def _restart(self, sequence: int, payload: bytes) -> None:
        self._went_back(sequence)
        if self._has_replay and sequence > 0:
            # The replay brings this batch too. It is not held: if it were a late batch of the old life,
            # it would contradict the replay again and again.
            self._ask()
        elif sequence == 0:
            self._accept(sequence, payload)
        else:
            self._gap(sequence, payload)

    def _went_back(self, sequence: int) -> None:
        self._begin_life(f"the sequence went back from {self._next - 1} to {sequence}")

    def _begin_life(self, reason: str) -> None:
        self.counts.restarts += 1
        self._next = 0
        self._replay.unfillable = -1
        self._digests.clear()
        self.trust.new_life(f"the engine restarted: {reason}")
        self._follower.begin_life()

    def _ask(self) -> None:
        if self._next == 0 and self.trust.level is not Level.COLD:
            self.trust.set(Level.COLD, "nothing applied yet, replay requested")
        self.state = StreamState.REPLAYING
        self._take_held()
        self._request(0.0)

    def _request(self, delay: float) -> None:
        # If the message that could not be read was a batch, the replay brings that batch.
        self.trust.stray = ""
        self.counts.replays += 1
        self._call(delay)

    def _call(self, delay: float) -> None:
        has_fence = self._next - 1 in self._digests
        self._follower.ask(self._replay.ask(self._next, has_fence=has_fence, delay=delay))

    def wants(self, ticket: int) -> bool:
        """Return whether the answer to a replay that was asked for is still wanted."""
        is_wanted = self.state is StreamState.REPLAYING or self._is_unproven
        return is_wanted and ticket == self._replay.ticket

    @property
    def _is_unproven(self) -> bool:
        """Whether the stream follows without a live batch so far, and not all checks were made."""
        is_silent = self.state is StreamState.FOLLOWING and self._live == NO_LIVE
        return is_silent and self._checks < len(CHECKS)

    def _check(self) -> None:
        """Unless the subscription is proven, ask for batches from before it was in force."""
        if self._is_unproven:
            self._call(CHECKS[self._checks])

    def replayed(self, ticket: int, sequence: int, payload: bytes) -> None:
        """Take one batch of a replay's answer."""
        if not self.wants(ticket):
            return
        replay = self._replay
        replay.is_answered = True
        if not replay.begun and replay.fence is not None and sequence <= replay.fence:
            self._pass_fence(sequence, payload)
            return
        if not replay.begun and replay.fence is not None:
            reason = f"the replay buffer begins at {sequence}, after the last batch seen"
            self._degrade(f"{reason} ({replay.fence})", sequence)
        replay.begun = True
        if sequence < self._next:
            self.counts.duplicates += 1
            return
        if sequence > self._next:
            self._lose(sequence)
        replay.failures = 0
        self._accept(sequence, payload)

    def _pass_fence(self, sequence: int, payload: bytes) -> None:
        """Compare the replay's first batch with the fence."""
        if sequence != self._replay.fence:
            # The engine ignores the requested start. Skip the batches up to the fence.
            return
        self._replay.begun = True
        if not self._digests.has(sequence, payload):
            self._begin_life(f"batch {sequence} is not the one that was seen before")
            self._ask()

    def _lose(self, sequence: int) -> None:
        if self._next == 0 and not self._digests:
            reason = f"joined late: the replay buffer begins at {sequence}"
        else:
            reason = f"batches {self._next} to {sequence - 1} are lost"
        self._degrade(reason, sequence)

    def replay_ended(self, ticket: int) -> None:
        """Take the end of a replay's answer."""
        if not self.wants(ticket):
            return
        replay = self._replay
        replay.is_answered = True
        if not replay.begun and replay.fence is not None:
            if self.trust.stray:
                self.replay_failed(ticket, self.trust.stray)
                return
            # The same life has at least the fence in its buffer. The new one may have batches before it.
            self._begin_life(f"its replay buffer ends before batch {replay.fence}")
            self._ask()
            return
        replay.failures = 0
        if self.state is StreamState.FOLLOWING:
            self._checks += 1
            replay.ticket += 1
            self._check()
        else:
            self._follow()

    def replay_failed(self, ticket: int, reason: str) -> None:
        """Resume a replay whose answer did not come or broke off, unless it has failed too often."""
        if not self.wants(ticket):
            return
        if self.state is StreamState.FOLLOWING:
            self._check()
            return
        reason = f"replay failed: {reason}"
        self._replay.failures += 1
        if self._held and self._replay.is_hopeless:
            self._degrade(f"{reason}, {self._replay.failures} times in a row", self._next)
            self._replay.unfillable = self._next
            self._follow()
            return
        if self._next == 0:
            self.trust.set(Level.COLD, f"{reason}; it is requested again")
        elif not self.trust.is_damaged:
            self.trust.suspend(f"{reason}; it is requested again from where it stopped")
        self._request(self._replay.back_off)

    def _follow(self) -> None:
        """Go on with the live batches that were held."""
        self.state = StreamState.FOLLOWING
        held = self._take_held()
        if self.trust.level is Level.COLD and not (held and held[0][0] > self._next):
            self.trust.be_exact("followed from the first batch")
        elif self.trust.passing:
            self.trust.be_exact("the gap was closed by replay")
        while held:
            sequence, payload = held.popleft()
            if sequence == self._next:
                self._accept(sequence, payload)
            elif sequence > self._next:
                self._gap(sequence, payload)
            elif sequence in self._digests and not self._digests.has(sequence, payload):
                self._went_back(sequence)
                self._ask()
                return
            else:
                self.counts.duplicates += 1
            if self.state is StreamState.REPLAYING:
                # There is another gap: hold the batches after it.
                for later in held:
                    self._hold(*later)
                break
        self._check()

    def malformed(self, sequence: int, reason: str) -> None:
        """Degrade the trust: an applied batch could not be read, so its changes are not known."""
        self._degrade(f"batch {sequence} is malformed: {reason}", sequence + 1)

    def missed(self, reason: str) -> None:
        """Degrade the trust: the batches themselves show that something was missed before."""
        self._degrade(reason, self._next)

    def lacks(self, reason: str) -> None:
        """Degrade the trust: the view lacks some blocks; the blocks in it are not in doubt."""
        self.trust.degrade(reason, self._next)

    def stray(self, reason: str) -> None:
        """Handle a message that could not be read as a batch."""
        newest = self._held[-1][0] if self._held else -1
        self.trust.strayed(reason, max(self._next, newest + 1))
        if self.state is not StreamState.REPLAYING and not self.trust.is_damaged:
            self.trust.suspend(reason)

    def suspect(self, reason: str) -> None:
        """Handle a possible restart: ask for a replay that shows it, or else degrade the trust."""
        if self.state is StreamState.WAITING or self._next == 0:
            return
        if not self._has_replay:
            self.missed(reason)
            return
        if not self.trust.is_damaged:
            self.trust.suspend(f"{reason}, replay requested")
        # A running replay may have begun before the restart: the new one takes its place.
        self._ask()

    def turned_over(self) -> None:
        """Restore the trust: the cache has since lost all blocks that it had when events were missed."""
        if self.can_heal:
            reason = "since something was missed, as many blocks were stored as the cache holds"
            self.trust.be_exact(reason)

    def cleared(self, sequence: int) -> None:
        """Handle a clear in an applied batch: events missed before it no longer matter."""
        if self.trust.level is not Level.DEGRADED or sequence < self.trust.heals_at:
            return
        if self.state is StreamState.REPLAYING:
            self.trust.suspend("cleared by the engine, but the replay is not over")
        else:
            self.trust.be_exact("cleared by the engine")

    def _degrade(self, reason: str, heals_at: int) -> None:
        self.trust.degrade(reason, heals_at)
        self._follower.doubt()

    def save(self, *, digests: bool = True) -> SavedStream:
        return SavedStream(
            next=self._next,
            digests=dict(self._digests) if digests else {},
            level=self.trust.level,
            reason=self.trust.reason,
            passing=self.trust.passing,
            heals_at=self.trust.heals_at,
        )

    def restore(self, saved: SavedStream) -> None:
        """Continue from the state that an earlier process saved, before any message is taken."""
        self._next = saved.next
        self._digests.update(sorted(saved.digests.items()))
        self.trust.set(saved.level, saved.reason, passing=saved.passing)
        self.trust.heals_at = saved.heals_at
