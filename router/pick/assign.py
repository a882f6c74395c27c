"""Assigns a pick to its rank: books the work there, and believes the blocks there that it brings."""

from collections import deque
from collections.abc import Callable, Iterable

from indexer.believed.beliefs import Believed
from indexer.invariant import BrokenInvariantError
from router.load.bookings import MOST_PREFILL, Bookings, Work
from router.match.forms import Form
from router.pick.options import Option
from router.pick.pending import End, Placed
from router.pick.predicted import Predicted
from scorer.prefill import PrefillModel

LOOKS = 4
"""Prompts of requests that are over, looked for among what events have told, at each `expire`."""


class Assigner:
    """Keeps bookings and beliefs in step with picks. `now` is the ingest's clock, seconds.

    `form` says in which form a model's rank, by pod and number, has blocks (`Scorer.form`), `has_told`
    whether events of a pod's rank have told of all blocks of these keys (`Scorer.has_told`). A prompt is
    believed to be on its way until `arriving_seconds` past its predicted first token, and its blocks to
    be there for `confirm_seconds` after it.
    """

    def __init__(
        self,
        bookings: Bookings,
        believed: Believed,
        *,
        form: Callable[[str, str, int], Form],
        has_told: Callable[[str, int, bytes], bool],
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
        self._untold: deque[tuple[int, tuple[str, int]]] = deque()
        """Tickets of requests that were over before events told, and their ranks; also of some that have
        ended since."""

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
        """Take note of a pick's first token: its prefill is over, and events will tell of its blocks.

        An engine keeps them while their request runs: so long it does no harm to believe them besides.
        """
        if placed.booking is not None:
            self._bookings.first_token(placed.booking.id, now)
            if placed.decoding is not None:
                self._bookings.finish(placed.booking.id, now)
        if placed.ticket is not None:
            self._believed.confirm(placed.ticket, now + self._confirm_seconds)

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
            elif not self._withdraw_told(placed.ticket, placed.went):
                self._believed.confirm(placed.ticket, now + self._confirm_seconds)
                self._untold.append((placed.ticket, placed.went))

    def _withdraw_told(self, ticket: int, went: tuple[str, int]) -> bool:
        """End a ticket of whose blocks events have told; False where they have not, and it goes on.

        Events tell what becomes of them later, too.
        """
        keys = self._believed.arriving(ticket)
        if keys and not self._has_told(*went, keys):
            return False
        self._believed.withdraw(ticket)
        return True

    def expire(self, now: float) -> None:
        """Let go of bookings and beliefs whose time has come."""
        self._bookings.expire(now)
        self._believed.expire(now)
        for _ in range(min(LOOKS, len(self._untold))):
            untold = self._untold.popleft()
            if not self._withdraw_told(*untold):
                self._untold.append(untold)

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
