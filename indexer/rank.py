"""A rank as the router knows it: its name, its trust with limits and log lines, its figures."""

import logging
from collections.abc import Callable, Mapping
from threading import Lock

from warmpath.indexer.engines.cache_groups import Layout
from warmpath.indexer.engines.event import Tier
from warmpath.indexer.index.orphans import Orphans
from warmpath.indexer.trust import EMPTIED, Level, Trust

log = logging.getLogger(__name__)


class Rank:
    """One data-parallel rank of one pod. Without a subclass it has no events: its cache is not known.

    The subclasses `RankIngest` (its engine's own events), `WatchedRank` (its publisher's changes, or a
    copy of them in Redis) and `RemoteRank` (its pod's record in Redis) keep the attributes current. One
    thread feeds a rank; any may read it and call `limit`. Times are seconds of `clock`.
    """

    layout = Layout()
    """The rank's cache groups and block sizes."""
    has_events = False
    is_remote = False
    """Whether its blocks are looked up in Redis, prompt by prompt."""
    logs_reasons = False
    """Whether every change of its trust is logged, not only one of the level."""

    def __init__(self, pod: str, number: int, reason: str, clock: Callable[[], float]) -> None:
        """Begin cold, for a reason."""
        self.pod = pod
        self.number = number
        """The rank's number in its pod."""
        self.sequence: int | None = None
        """The sequence number of the engine's last applied batch; None before the first."""
        self.is_connected = False
        """Whether its events reach us now."""
        self.lost_at = clock()
        """Since when its events do not reach us; no meaning while they do."""
        self.trust = Trust(Level.COLD, reason, self.lost_at)
        """How far the router's view may be believed: what the source says, unless a limit lowers it.

        An attribute for speed: every answer reads the trust of every rank.
        """
        self.inexact_since = self.lost_at
        """Since when it is not exact; of no meaning while it is."""
        self.show: Callable[[Rank], None] = lambda _: None
        """Called when the trust has changed, by any thread."""
        self._clock = clock
        self._said = self._logged = self.trust
        self._stale: Trust | None = None
        """The trust while its events have been away for too long, in place of what the source says."""
        self._limit: Trust | None = None
        """The trust in place of an exact one; None without limits."""
        self._limits: Mapping[str, str] = {}
        """The reasons for limits, by subject."""
        self._lock = Lock()
        self._capacity = self._learnt = 0
        self._blocks_in_use: int | None = None
        self._emptied_at: int | None = None
        """`sequence` when the engine was last found to have dropped its cache."""

    # Trust

    def believe(self, said: Trust) -> None:
        """Take what the source says of the trust; `settle` logs it."""
        self._said = said
        with self._lock:
            self._show()

    def be_stale(self, stale: Trust | None) -> None:
        """Show this trust in place of what the source says; None: what the source says again."""
        if stale is not self._stale:
            with self._lock:
                self._stale = stale
                self._show()

    def age(self, gone: float, most: float, reason: str) -> None:
        """Be stale for a reason if events are away since `gone`, `most` seconds or more; not if cold."""
        now = self._clock()
        if self._stale is None and self._said.level is not Level.COLD and now - gone >= most:
            self.be_stale(Trust(Level.STALE, reason, now))

    def restrict(self, about: str, reason: str) -> None:
        """Set or lift a limit as `limit` does, but without a log line."""
        if self._limits.get(about, "") == reason:
            return
        with self._lock:
            reasons = {**self._limits, about: reason}
            self._limits = {about: reason for about, reason in reasons.items() if reason}
            said = "; ".join(self._limits.values())
            since = self._limit.since if self._limit else self._clock()
            self._limit = Trust(Level.DEGRADED, said, since) if said else None
            self._show()

    def limit(self, reason: str, about: str = "") -> None:
        """Degrade an exact rank for a reason; an empty one lifts the limit with the same `about`.

        Any thread may call it.
        """
        before = self.trust
        self.restrict(about, reason)
        if self._is_news(before):
            self.settle()

    def limited(self, trust: Trust) -> Trust:
        limit = self._limit
        return limit if limit is not None and trust.level is Level.EXACT else trust

    def _show(self) -> None:
        trust = self.limited(self._stale or self._said)
        if self.trust.level is Level.EXACT:
            self.inexact_since = trust.since
        if trust is not self.trust:
            self.trust = trust
            self.show(self)

    def settle(self) -> None:
        """Log what has become of the trust since the last call."""
        before, self._logged = self._logged, self.trust
        if self._is_news(before):
            now = self._logged
            log.info(
                "pod %s rank %d: %s, was %s: %s",
                self.pod, self.number, now.level, before.level, now.reason,
            )  # fmt: skip

    def _is_news(self, before: Trust) -> bool:
        now = self.trust
        return now.level is not before.level or (self.logs_reasons and now != before)

    def in_answer(self, doubt: Trust | None) -> Trust:  # noqa: ARG002
        """Return the trust for one answer, whose own doubt concerns ranks in Redis only."""
        return self.trust

    # What its source knows; without one nothing

    @property
    def capacity(self) -> int:
        """Blocks of its fastest tier; 0: not known."""
        return self._capacity or self._learnt

    def learn_capacity(self, blocks: int) -> None:
        """Take the capacity that the engine says, for as long as the source says none."""
        self._learnt = blocks

    @property
    def lag_seconds(self) -> float:
        """How many seconds late the rank's events are applied."""
        return 0.0

    @property
    def lag_batches(self) -> int:
        """How many batches were received and are not applied yet."""
        return 0

    @property
    def orphans(self) -> Orphans | None:
        """The rank's stores that wait for their parent; None where it is not followed directly."""
        return None

    @property
    def adapters(self) -> int:
        """Adapters that its events have named lately."""
        return 0

    def blocks_in_use(self) -> int | None:
        """Return how many blocks of the fastest tier are in use, by its events; None: not known."""
        return self._blocks_in_use

    def blocks(self) -> Mapping[Tier, int]:
        """Return how many distinct blocks of the group `Layout.shown` each tier holds."""
        return {}

    def counts(self) -> Mapping[str, int]:
        """Return the counters of the rank's event stream, by name."""
        return {}

    def take_figures(
        self, layout: Layout, sequence: int | None, capacity: int, in_use: int | None
    ) -> None:
        """Take what a publisher says of the cache and of the engine's last batch."""
        self.layout, self.sequence = layout, sequence
        self._capacity, self._blocks_in_use = capacity, in_use
        if sequence != self._emptied_at:
            self.limit("", EMPTIED)

    # What happens to it

    def emptied(self, reason: str) -> None:
        """Degrade the rank until the engine's next batch, as the engine has dropped its cache."""
        self._emptied_at = self.sequence
        self.limit(reason, EMPTIED)

    def engine_restarted(self, reason: str) -> None:
        """Handle a restart that a probe saw. By default nothing: publishers notice it themselves."""

    def lost_room(self) -> None:
        """Degrade the rank: the index gave up keys of it to make room. By default nothing is done."""

    def tick(self) -> None:
        """Judge anew what depends on the time, as silence and late events do. By default nothing."""

    def close(self) -> None:
        """Hold nothing: the rank is not followed any more."""
