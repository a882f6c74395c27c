"""Assigns a pick to its rank: books the work there, and believes the blocks there that it brings."""

from collections.abc import Callable, Iterable

from indexer.believed import Believed
from indexer.index import BrokenInvariantError
from router.book import MOST_PREFILL, Bookings, Work
from router.placed import End, Placed, Predicted
from router.score import Form
from router.weigh import Option
from scorer.prefill import PrefillModel


class Assigner:
    """Keeps bookings and beliefs in step with picks. `now` is the ingest's clock, seconds.

    `form` says in which form a model's rank, by pod and number, has blocks (`Scorer.form`), `has_told`
    whether its events have told of all blocks of these keys (`Scorer.has_told`). A prompt is
    believed to be on its way until `arriving_seconds` past its predicted first token, and its blocks to
    be there for `confirm_seconds` after it.
    """

    def __init__(
        self,
        bookings: Bookings,
        believed: Believed,
        *,
        form: Callable[[str, str, int], Form],
        has_told: Callable[[str, str, int, bytes], bool],
        prefill: PrefillModel,
        arriving_seconds: float,
        confirm_seconds: float,
    ) -> None:
        self._bookings = bookings
        self._believed = believed
        self._form = form
        self._has_told = has_told
        self._prefill = prefill
        self._arriving_seconds = arriving_seconds
        self._confirm_seconds = confirm_seconds

    def assign(self, placed: Placed, now: float, decode: Option | None = None) -> None:
        """Assign a pick to where it goes; its decoding to another rank, if it is told one.

        What outlasts its booking comes with `settle`.
        """
        placed.booking = self._bookings.book(self._work(placed), now)
        if decode is not None and decode.candidate[:2] != placed.went:
            there, tokens = decode.candidate, placed.prompt_tokens
            after = Work(placed.model, there.pod, there.rank, tokens, tokens, 0.0)
            placed.decoding = self._bookings.book(after, now, computed=True)
        self._arrive(placed, now)

    def _arrive(self, placed: Placed, now: float) -> None:
        """Mark a pick's blocks as arriving where it goes."""
        expected = placed.predicted.get(placed.went)
        seconds = expected.wait + expected.prefill if expected else 0.0
        placed.ticket = self._believed.arrive(
            *placed.went, self._keys(placed), expires=now + seconds + self._arriving_seconds
        )

    def settle(self, placed: Placed, now: float) -> bool:
        """Take note that a request goes where its pick is assigned; False where no booking is left."""
        if placed.booking is None or self._bookings.get(placed.booking.id) is None:
            return False
        expected = placed.predicted.get(placed.went)
        if expected and expected.room:
            keys = self._keys(placed)
            self._believed.assume(*placed.went, keys, now=now, capacity=expected.room)
        return True

    def _keys(self, placed: Placed) -> bytes:
        """Return a prompt's keys as the rank has them that it goes to.

        A rank whose blocks are of another size than any candidate's has none of them.
        """
        return placed.keys.get(self._form(placed.model, *placed.went), b"")

    def _work(self, placed: Placed) -> Work:
        """Return what a pick costs the rank it goes to: a whole prefill, where nothing is known."""
        tokens = placed.prompt_tokens
        expected = placed.predicted.get(placed.went)
        if expected is None:
            expected = Predicted(0, 0, 0.0, self._prefill.seconds(tokens, 0))
        return Work(
            placed.model,
            *placed.went,
            tokens,
            expected.cached,
            # Of constants or a prompt past all measure; it is dear enough.
            min(expected.prefill, MOST_PREFILL),
            expected.factor,
        )

    def started(self, placed: Placed, now: float, *, moved: bool) -> None:
        """Take note that a pick went out; where it `moved`, to another rank than it was assigned to."""
        if placed.booking is None:
            self.assign(placed, now)
            self.settle(placed, now)
            return
        work = self._work(placed) if moved else None
        is_booked = self._bookings.started(placed.booking.id, now, work=work)
        if moved and placed.ticket is not None and placed.first_token_at is None:
            self._believed.withdraw(placed.ticket)
            if is_booked:
                self._arrive(placed, now)
            else:
                # The pod that it was booked on is gone.
                self.assign(placed, now)
            self.settle(placed, now)

    def first_token(self, placed: Placed, now: float) -> None:
        """Take note of a pick's first token: its prefill is over, and events will tell of its blocks."""
        if placed.booking is not None:
            self._bookings.first_token(placed.booking.id, now)
            if placed.decoding is not None:
                self._bookings.finish(placed.booking.id, now)
        if placed.ticket is not None:
            self._confirm(placed, placed.ticket, now)

    def ended(self, placed: Placed, end: End, now: float) -> None:
        """Take note of a pick's end: no rank has work of it any more."""
        for booking in (placed.booking, placed.decoding):
            if booking is not None and end == "finished":
                self._bookings.finish(booking.id, now)
            elif booking is not None and end == "expired":
                self._bookings.lose(booking.id, now)
            elif booking is not None:
                self._bookings.fail(booking.id, now)
        if placed.ticket is not None:
            if end == "failed" and placed.first_token_at is None:
                self._believed.withdraw(placed.ticket)
            else:
                self._confirm(placed, placed.ticket, now)

    def _confirm(self, placed: Placed, ticket: int, now: float) -> None:
        """Believe a prompt's blocks to be there until events tell of them, not after.

        An engine keeps them while their request runs. So where events have told, they are there when it
        ends, and what becomes of them later events tell too.
        """
        keys = self._believed.arriving(ticket)
        if keys and self._has_told(placed.model, *placed.went, keys):
            self._believed.withdraw(ticket)
        else:
            self._believed.confirm(ticket, now + self._confirm_seconds)

    def expire(self, now: float) -> None:
        """Let go of bookings and beliefs whose time has come."""
        self._bookings.expire(now)
        self._believed.expire(now)

    def emptied(self, pod: str, rank: int) -> None:
        """Take note that a rank holds nothing of what was sent there before."""
        self._believed.forget(pod, rank)

    def forget(self, pod: str, rank: int) -> None:
        """Take note that a rank is gone: nothing is booked on it or believed of it any more."""
        self._bookings.forget(pod, rank)
        self._believed.forget(pod, rank)

    def check(self, kept: Iterable[Placed]) -> None:
        """Raise BrokenInvariantError where a booking is of none of the picks that are not over."""
        ours = {one.id for placed in kept for one in (placed.booking, placed.decoding) if one}
        for rank, book in self._bookings.ranks().items():
            if not ours.issuperset(book.in_flight):
                raise BrokenInvariantError(f"a booking on {rank} outlives its pick")
