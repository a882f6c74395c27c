"""Assigns a pick to its rank: books the work, and marks the prompt's blocks as arriving there."""

from collections import deque
from collections.abc import Mapping

from warmpath.indexer.believed import Believed
from warmpath.indexer.index.slot import RankName
from warmpath.indexer.keys.key import WORD_BYTES
from warmpath.router.load.bookings import Bookings
from warmpath.router.load.rank_bookings import MOST_PREFILL, Work
from warmpath.router.load.stuck import Ending
from warmpath.router.match.forms import BlockForm
from warmpath.router.match.match import Scorer
from warmpath.router.pick.calibration import Calibration
from warmpath.router.pick.options import Option
from warmpath.router.pick.pick import UNPREDICTED, End, Pick
from warmpath.router.pick.working_set import WorkingSets
from warmpath.scorer.prefill import PrefillModel

LOOKS = 4
"""Number of ended requests whose blocks each `expire` looks for in the index."""
ARRIVING_SECONDS = 60.0
"""How long after its predicted first token a prompt's blocks count as arriving."""

CONFIRM_SECONDS = 5.0
"""How long after a first token events may announce the prompt's blocks."""


class Assigner:
    """Keeps bookings, beliefs and calibration in step with picks. `now` is the ingest's clock, seconds.

    Blocks are arriving until ARRIVING_SECONDS after the predicted first token, and for CONFIRM_SECONDS
    after the reported one.
    """

    def __init__(
        self,
        bookings: Bookings,
        believed: Believed,
        calibration: Calibration,
        scorer: Scorer,
        prefill: PrefillModel,
        *,
        working: WorkingSets,
    ) -> None:
        self.bookings = bookings
        self._believed = believed
        self._calibration = calibration
        self._working = working
        self._scorer = scorer
        self._prefill = prefill
        self._unannounced: deque[tuple[int, RankName, object]] = deque()
        """Tickets of requests that ended before events announced all their blocks, with their ranks and
        what events had come at the last look; some tickets may have expired since."""

    def assign(self, placed: Pick, now: float, decode: Option | None = None) -> None:
        """Book a pick on its rank and, if `decode` is another rank, its decoding there.

        Assumed blocks, which outlast the booking, are added by `settle`.
        """
        is_watched = placed.is_watched
        placed.booking = self.bookings.book(self._work(placed), now, is_watched=is_watched)
        if decode is not None and decode.candidate[:2] != placed.went:
            there, tokens = decode.candidate, placed.prompt_tokens
            after = Work(placed.model, there.pod, there.rank, tokens, tokens, 0.0)
            placed.decoding = self.bookings.book(
                after, now, behind=placed.booking, is_watched=is_watched
            )
        self._arrive(placed, now)

    def _arrive(self, placed: Pick, now: float) -> None:
        expected = placed.expected
        expires = now + expected.wait + expected.prefill + ARRIVING_SECONDS
        form = self._scorer.form(placed.model, *placed.went)
        held = (expected.held - expected.believed) // form[0] if expected.is_exact else 0
        keys = placed.keys.get(form, b"")
        # A match leaves out the block that ends with the prompt's last token.
        if held == len(keys) // WORD_BYTES - 1 and self._scorer.has_announced(*placed.went, keys):
            held += 1
        placed.ticket = self._believed.arrive(*placed.went, keys, expires=expires, held=held)
        self._working.see(placed.went, keys, placed.prompt_tokens, now)

    def settle(self, placed: Pick, now: float) -> None:
        """Assume a pick's blocks where it is booked or has gone: by tokens if events are missing."""
        booking = placed.booking
        if not placed.is_past and (booking is None or self.bookings.get(booking.id) is None):
            return
        assume, expected = self._believed.assume, placed.expected
        if expected.room and not placed.is_blind:
            assume(*placed.went, self._keys(placed), now=now, capacity=expected.room)
        texts = self._keys(placed) if placed.is_blind else self._in_form(placed, placed.texts)
        if texts and expected.blocks:
            assume(*placed.went, texts, now=now, capacity=expected.blocks, kind="text")

    def _keys(self, placed: Pick) -> bytes:
        """Return a prompt's keys in the form of the rank that it goes to.

        They are empty if that rank's form is not among the candidates' forms.
        """
        return self._in_form(placed, placed.keys)

    def _in_form(self, placed: Pick, keys: Mapping[BlockForm, bytes]) -> bytes:
        return keys.get(self._scorer.form(placed.model, *placed.went), b"") if keys else b""

    def _work(self, placed: Pick) -> Work:
        """Return a pick's work on its rank; a whole prefill if the rank was not a kept candidate."""
        tokens, expected = placed.prompt_tokens, placed.expected
        if expected is UNPREDICTED:
            expected = expected._replace(prefill=self._prefill.seconds(tokens, 0))
        return Work(
            placed.model,
            *placed.went,
            tokens,
            expected.cached,
            # Bounded, since absurd constants or an absurdly long prompt would overflow the sums.
            min(expected.prefill, MOST_PREFILL),
            expected.factor,
            expected.shared,
        )

    def started(self, placed: Pick, now: float, *, moved: bool) -> None:
        """Record that a pick went out; if it `moved`, assign it to the rank where it went."""
        if placed.booking is None:
            self.assign(placed, now)
            self.settle(placed, now)
            return
        work = self._work(placed) if moved else None
        is_booked = self.bookings.started(placed.booking.id, now, work=work)
        if moved and placed.ticket is not None and placed.first_token_at is None:
            self._believed.withdraw(placed.ticket)
            if is_booked:
                self._arrive(placed, now)
            else:
                # The pod with its booking was removed.
                self.assign(placed, now)
            self.settle(placed, now)

    def first_token(self, placed: Pick, now: float) -> None:
        """Record a pick's first token: its prefill is over, and events will announce its blocks.

        An engine keeps blocks while their request runs, so believing them a while longer does no harm.
        """
        if placed.booking is not None:
            self.bookings.first_token(placed.booking.id, now)
            if placed.decoding is not None:
                self.bookings.first_token(placed.decoding.id, now)
                self.bookings.end(placed.booking.id, now)
            self._calibration.first_token(placed.booking)
        if placed.ticket is not None:
            self._believed.confirm(placed.ticket, now + CONFIRM_SECONDS)

    def ended(self, placed: Pick, end: End, now: float) -> None:
        """Release a pick's bookings at its end.

        Its blocks are still believed for CONFIRM_SECONDS, unless it failed before its first token or
        events have announced all of them.
        """
        # Calibration waits for the end, since the report of cached tokens may come with it.
        is_timed = placed.first_token_at is not None and end == "finished"
        is_measured = is_timed and placed.counts_in_full and not placed.is_untimed
        if placed.booking is not None:
            self._calibration.learn(placed.booking, is_measured=is_measured)
        how: Ending = "unsent" if end == "cancelled" else end
        if end == "failed" and placed.is_refused:
            how = "refused"
        for booking in (placed.booking, placed.decoding):
            if booking is not None:
                self.bookings.end(booking.id, now, how)
        if placed.ticket is not None:
            if end in {"failed", "cancelled"} and placed.first_token_at is None:
                self._believed.withdraw(placed.ticket)
            elif not self._withdraw_announced(placed.ticket, placed.went):
                self._believed.confirm(placed.ticket, now + CONFIRM_SECONDS)
                self._unannounced.append((placed.ticket, placed.went, None))

    def _withdraw_announced(self, ticket: int, went: RankName) -> bool:
        """Withdraw a ticket if events have announced all its blocks; otherwise return False.

        From then on events also show when those blocks are removed.
        """
        keys = self._believed.arriving(ticket)
        if keys and not self._scorer.has_announced(*went, keys):
            return False
        self._believed.withdraw(ticket)
        return True

    def expire(self, now: float) -> None:
        """Remove expired bookings and beliefs, and beliefs that events have replaced."""
        self.bookings.expire(now)
        self._believed.expire(now)
        for _ in range(min(LOOKS, len(self._unannounced))):
            ticket, went, before = self._unannounced.popleft()
            came = self._scorer.came(*went)
            if came is not None and came == before and self._believed.arriving(ticket):
                self._unannounced.append((ticket, went, came))
                break
            if not self._withdraw_announced(ticket, went):
                self._unannounced.append((ticket, went, came))
