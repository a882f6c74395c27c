"""The pick: weighs the ranks that could take a request, takes the best, and follows its reports.

    ask ─► weigh ─► choice ─► assign (booking, arriving blocks) ─► settle ─► witnesses
                                ▲                             └─► withdraw ─┘
             reports: started, first token, end

No sockets and no clock of its own: the router and `warmpath simulate` run this same code.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

from warmpath.indexer.embedded import stored_keys
from warmpath.indexer.index.slot import RankName
from warmpath.indexer.rank import Rank
from warmpath.router.config.schema import BookingTable
from warmpath.router.load.overdue import Precedence
from warmpath.router.match.match import Scorer
from warmpath.router.pick.assign import Assigner
from warmpath.router.pick.options import MOST_CANDIDATES
from warmpath.router.pick.pick import End, Pick, Predictions, Witness, held
from warmpath.router.pick.weigh import NOBODY, Ask, Choice, Weigher
from warmpath.router.pods.table import Pod
from warmpath.router.tracing.steps import NO_STEPS, Step, Steps

EVENTS = {name: handler for name, handler in vars(Witness).items() if not name.startswith("_")}
"""The methods of a witness, by name; those of the base class ignore what they are told."""
ASSUMED_BLOCKS = 32_768
"""Maximum assumed blocks of a rank whose cache's size is not known."""


class Picker:
    """Makes picks and follows their reports. `now` is the ingest's clock, in seconds, in every call."""

    def __init__(
        self,
        weigher: Weigher,
        assigner: Assigner,
        scorer: Scorer,
        booking: BookingTable,
        *,
        new_id: Callable[[], str],
        witnesses: Sequence[Witness] = (),
        steps: Steps = NO_STEPS,
    ) -> None:
        self._weigher = weigher
        self._assigner = assigner
        self._scorer = scorer
        self._booking = booking
        self._new_id = new_id
        self._on: dict[str, list[Callable[..., None]]] = {name: [] for name in EVENTS}
        """For each kind of event the witnesses' methods that do not ignore it."""
        for witness in witnesses:
            self.add_witness(witness)
        self._steps = steps
        self._placed: OrderedDict[str, Pick] = OrderedDict()
        self._picks = 0
        self._expectations = 0
        """Number of predictions in all kept picks."""
        self.withdrawn = 0
        """Picks whose caller was gone without the answer, or that a later one replaced before it."""

    def __len__(self) -> int:
        return len(self._placed)

    @property
    def precedence(self) -> Precedence:
        """The order in which engines may begin prompts."""
        return self._assigner.bookings.overdue.precedence

    def add_witness(self, witness: Witness) -> None:
        for name, ignores in EVENTS.items():
            tell = getattr(witness, name)
            if getattr(tell, "__func__", None) is not ignores:
                self._on[name].append(tell)

    def get(self, booking_id: str) -> Pick | None:
        """Return the pick with this id, if its request has not ended; otherwise None."""
        return self._placed.get(booking_id)

    def weigh(self, ask: Ask, now: float, ahead: Mapping[RankName, float] = NOBODY) -> Choice:
        """Return the choice that `choose` would make; nothing is booked. Raises as `Weigher.weigh`."""
        begun = self._steps.begin()
        choice = self._weigher.weigh(ask, now, ahead)
        self._steps.took(Step.CHOOSE, begun)
        return choice

    @property
    def is_asking(self) -> bool:
        """Whether a prompt's keys are read from the shared index before it is weighed (`refresh`)."""
        return self._scorer.remote is not None

    async def refresh(self, ask: Ask, timeout: float) -> None:
        """Read a prompt's keys from the shared index, within `timeout` seconds (`Scorer.refresh`)."""
        await self._scorer.refresh(ask.prompt, ask.field.ranks, timeout)

    def choose(self, ask: Ask, now: float) -> tuple[str, Choice]:
        """Make a pick and settle it; return its booking id and the choice. Raises as `weigh`."""
        placed = self.reserve(ask, now)
        choice = placed.choice
        self.settle(placed, now)
        return placed.booking_id, choice

    def reserve(self, ask: Ask, now: float, choice: Choice | None = None) -> Pick:
        """Make a pick whose answer is not written yet: by `choice`, made just now, or a new one.

        Unless in shadow, it is booked and its blocks count as arriving, so that the next pick sees it.
        `settle` it once the answer was sent, otherwise `withdraw` it. An earlier pick with the same
        booking id is released. Raises as `weigh`.
        """
        self.expire(now)
        if ask.booking_id:
            self._release(ask.booking_id, now)
        choice = choice or self.weigh(ask, now)
        options, tokens = choice.options, ask.tokens
        self._weigher.see(ask.prompt.model, choice, now)
        # Where a shadow pick goes is known only later.
        kept = options[:] if ask.shadow else options.kept
        predicted = Predictions(kept, tokens, _most_blocks)
        where, chains, texts = options.best, options.matches.chains, options.matches.texts
        self._picks += 1
        placed = Pick(
            self._picks,
            ask.booking_id or self._new_id(),
            ask.prompt.model,
            ask.traits,
            tokens,
            at=now,
            picked=where,
            available=held(options.match(options.warmest), tokens),
            average=options.average_cached(),
            predicted=predicted,
            choice=choice,
            shadow=ask.shadow,
            went=where,
            expected=predicted.at(0),
            request_id=ask.request_id,
            trace_id=ask.trace_id,
            client=ask.client,
            tenant=ask.tenant,
            session=ask.session,
            parent_session=ask.parent_session,
            ends_session=ask.ends_session,
            is_whole=tokens > 0 and not ask.unread,
            is_watched=ask.is_watched,
            is_blind=ask.prompt.is_blind,
            keys={form: stored_keys(chain) for form, chain in chains.items()},
            texts={form: stored_keys(chain) for form, chain in texts.items()} if texts else {},
        )
        self._keep(placed, now)
        if not ask.shadow:
            self._assigner.assign(placed, now, choice.decode[0] if choice.decode else None)
        return placed

    def settle(self, placed: Pick, now: float) -> None:
        """Settle a pick whose answer was sent; do nothing if it is settled or has ended."""
        if placed.is_settled or self._placed.get(placed.booking_id) is not placed:
            return
        choice, placed.is_settled = placed.choice, True
        del placed.choice
        self._assigner.settle(placed, now)
        for tell in self._on["picked"]:
            tell(placed, choice)

    def withdraw(self, placed: Pick, now: float) -> None:
        """Take back a pick whose answer reached nobody; do nothing if it is settled or has ended.

        Its bookings and beliefs are removed.
        """
        if self._placed.get(placed.booking_id) is not placed or placed.is_settled:
            return
        self._let_go(placed)
        placed.end = "cancelled"
        self._assigner.ended(placed, "cancelled", now)
        self.withdrawn += 1
        for tell in self._on["withdrawn"]:
            tell(placed, placed.choice)
        placed.predicted = {}
        del placed.choice

    def cancel(self, booking_id: str, number: int, now: float) -> None:
        """End a pick whose answer was sent and not read; do nothing if it has ended or was reported.

        The blocks that are assumed where it went stay.
        """
        placed = self._placed.get(booking_id)
        if placed is None or placed.number != number or placed.is_reported:
            return
        self.withdrawn += 1
        self._end(placed, "cancelled", now)

    def _release(self, booking_id: str, now: float) -> None:
        if booking_id in self._placed:
            self.withdraw(self._placed[booking_id], now)
        if booking_id in self._placed:
            self._end(self._placed[booking_id], "failed", now)

    def _keep(self, placed: Pick, now: float) -> None:
        """Keep a pick; if there are too many, the oldest expire."""
        most, predictions = self._booking.max_bookings, len(placed.predicted)
        # A shadow pick keeps a prediction for each rank of the fleet.
        while self._placed and (
            len(self._placed) >= most
            or self._expectations + predictions > (MOST_CANDIDATES + 1) * most
        ):
            self._end(next(iter(self._placed.values())), "expired", now)
        self._placed[placed.booking_id] = placed
        self._expectations += predictions

    # Reports

    def started(self, booking_id: str, now: float, where: RankName | None) -> bool:
        """Handle the report that a request went out, to `where` if given; False for an unknown id."""
        placed = self._placed.get(booking_id)
        if placed is None:
            return False
        placed.is_started = True
        moved = where is not None and where != placed.went
        if where is not None:
            placed.go(where)
        self._assigner.started(placed, now, moved=moved)
        for tell in self._on["started"]:
            tell(placed)
        return True

    def first_token(self, booking_id: str, now: float) -> bool:
        """Handle the report of a first token; return False for an unknown id."""
        placed = self._placed.get(booking_id)
        if placed is None:
            return False
        if placed.first_token_at is not None:
            return True
        placed.first_token_at = now
        placed.keys = placed.texts = {}
        self._assigner.first_token(placed, now)
        for tell in self._on["first_token"]:
            tell(placed, now)
        return True

    def passed(self, placed: Pick, where: RankName, cached: int | None, now: float) -> None:
        """End a shadow pick whose request was over before it: it went to `where`, a known rank.

        `cached` are the tokens that the engine found cached; None: they are not known.
        """
        placed.go(where)
        placed.is_past = placed.is_started = True
        self.settle(placed, now)
        for tell in self._on["started"]:
            tell(placed)
        if cached is not None:
            self.found_cached(placed.booking_id, cached, None)
        self._end(placed, "finished", now)

    def late(self, booking_id: str) -> None:
        """Exclude a pick from calibration since its next report is late; ignore an unknown id."""
        placed = self._placed.get(booking_id)
        if placed is not None:
            placed.is_untimed = True

    def found_cached(self, booking_id: str, cached: int, prompt_tokens: int | None) -> None:
        """Handle the report of the engine's cached tokens; only the first one of a pick counts."""
        placed = self._placed.get(booking_id)
        if placed is None or placed.cached_tokens is not None:
            return
        placed.cached_tokens = cached
        if placed.booking is not None:
            placed.booking.actual_cached = cached
        for tell in self._on["found_cached"]:
            tell(placed, cached, prompt_tokens)

    def ended(self, booking_id: str, end: End, now: float, *, output_tokens: int = 0) -> bool:
        """Handle the report of a request's end; return False for an unknown id."""
        placed = self._placed.get(booking_id)
        if placed is None:
            return False
        placed.output_tokens = output_tokens
        self._end(placed, end, now)
        return True

    def _let_go(self, placed: Pick) -> None:
        del self._placed[placed.booking_id]
        self._expectations -= len(placed.predicted)

    def _end(self, placed: Pick, end: End, now: float) -> None:
        if not placed.is_settled:
            self.settle(placed, now)
        self._let_go(placed)
        placed.end = end
        self._assigner.ended(placed, end, now)
        for tell in self._on["ended"]:
            tell(placed, end, now)
        # A kept decision holds the pick.
        placed.predicted = {}

    # Time

    def expire(self, now: float) -> None:
        """Expire picks that are older than `expire_seconds`, and due bookings and beliefs."""
        while self._placed:
            oldest = next(iter(self._placed.values()))
            if abs(now - oldest.at) < self._booking.expire_seconds:
                break
            self._end(oldest, "expired", now)
        self._assigner.expire(now)

    def pod_removed(self, pod: str) -> None:
        """Exclude the picks that went to a removed pod from calibration."""
        for placed in self._placed.values():
            if placed.went[0] == pod:
                placed.is_untimed = True


def _most_blocks(pod: Pod, rank: Rank) -> int:
    return pod.capacity_of(rank) or ASSUMED_BLOCKS
