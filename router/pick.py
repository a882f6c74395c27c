"""The pick: weighs the ranks that could take a request, books the best, and follows what becomes of it.

    matches (index, beliefs) ─┐
    load (bookings, engines)  ├─► candidates ─► policy ─► choice ─► booking, arriving blocks, session
    session, utilisation     ─┘                                          ▲
                                        reports: started, first token, end

No sockets and no clock of its own: the router and `warmpath simulate` run this same code.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal, NamedTuple, Protocol

from indexer.believed import Believed
from indexer.index import BrokenInvariantError
from indexer.rank import Rank
from indexer.trust import Level, Trust
from router.book import MOST_PREFILL, Booking, Bookings, Work
from router.calibration import Calibration
from router.load import LoadTable
from router.pods import Pod
from router.score import NOTHING, Form, Prompt, Scorer
from router.sessions import Sessions
from router.utilisation import Utilisation
from scorer.candidate import Candidate, Ranked, Request
from scorer.decode import rank_decode
from scorer.longest_prefix import longest_prefix
from scorer.match import Match
from scorer.policy import DEFAULT, Policy, make_policy
from scorer.prefill import PrefillModel
from scorer.reason import reason
from scorer.warmth import Warmth, warmth

MOST_FALLBACKS = 8
"""Candidates of a pick that are remembered, for a request that goes elsewhere than to the first."""

End = Literal["finished", "failed", "expired"]


class NoPodError(Exception):
    """There is no pod to pick; says why."""


@dataclass(frozen=True, slots=True)
class Traits:
    """What may tell requests with wrong predictions from others."""

    form: Literal["ids", "text", "chat"] = "ids"
    has_adapter: bool = False
    has_salt: bool = False
    has_items: bool = False


@dataclass(frozen=True, slots=True)
class Ask:
    """A request to place."""

    prompt: Prompt
    pods: Sequence[Pod]
    """Those that may take it, in no order."""
    policy: str = ""
    """Empty: the configured one."""
    session: str = ""
    shadow: bool = False
    disaggregated: bool = False
    traits: Traits = Traits()
    unread: int = 0
    """Tokens, as estimated, that the prompt has besides: of a text that was not tokenised in time."""
    beside: tuple[str, int] | None = None
    """The pod and rank where its group goes: it goes there too if it may, whatever that costs."""

    @property
    def tokens(self) -> int:
        """The number of tokens, known or estimated."""
        return self.prompt.tokens + self.unread


class Option(NamedTuple):
    """A candidate as it was weighed."""

    pod: Pod
    rank: Rank
    match: Match
    trust: Trust
    candidate: Candidate
    cost: float
    terms: tuple[tuple[str, float], ...]
    calibration: float

    @property
    def predicted_ttft(self) -> float:
        """Seconds until the first token."""
        return self.candidate.load.wait + self.candidate.prefill


@dataclass(frozen=True, slots=True)
class Choice:
    """All options, best first."""

    policy: str
    prompt_tokens: int
    utilisation: float
    busy: float
    """The share of ranks with a prefill to do, at this moment."""
    options: Sequence[Option]
    decode: Sequence[Option] = ()
    """Of a disaggregated request: where to decode; `options` are for the prefill."""
    is_beside: bool = False
    """Whether the first is not the best, but where the request's group goes."""

    @property
    def reason(self) -> str:
        """The sentence why the first one won."""
        text = reason(self.prompt_tokens, self.options, self.policy, is_beside=self.is_beside)
        if self.options[0].pod.serves:
            return text
        return f"{text} It is not known to be well, and no other is."

    @property
    def source(self) -> Option | None:
        """The option that holds most, where that is more than what the best one holds."""
        most = max(self.options, key=lambda one: one.match.known_tokens)
        return most if most.match.known_tokens > self.options[0].match.matched_tokens else None


class Predicted(NamedTuple):
    """What was expected of a candidate."""

    held: int
    """Tokens that a request would find cached."""
    cached: int
    """Of these, as many as were counted on."""
    wait: float
    """Seconds until its prefill would begin."""
    prefill: float
    """Seconds that it would take."""
    factor: float = 1.0
    """Of the rank's calibration."""
    room: int = 0
    """Blocks that are believed to be there at most; 0 where events tell what is."""


@dataclass(slots=True)
class Placed:
    """A pick that is not over: what reports are compared with."""

    booking_id: str
    model: str
    traits: Traits
    prompt_tokens: int
    at: float
    picked: tuple[str, int]
    """The pod and rank that were picked."""
    available: int
    """Tokens that the warmest candidate held."""
    predicted: Mapping[tuple[str, int], Predicted]
    """What was expected of the best few candidates; of all, in shadow."""
    shadow: bool
    went: tuple[str, int]
    """Where it is now: where it was picked to go unless a report said otherwise."""
    session: str = ""
    is_whole: bool = True
    """Whether all of its tokens were known, not estimated."""
    keys: Mapping[Form, bytes] = field(default_factory=dict)
    """Of its blocks, as each candidate has them, until its first token."""
    booking: Booking | None = None
    decoding: Booking | None = None
    """On the rank that decodes, where that is another one."""
    ticket: int | None = None
    """Of its arriving blocks."""
    has_told: bool = False
    """Whether a report has said what the engine found."""
    first_token_at: float | None = None
    is_late: bool = False
    """Whether a report of it came late, by way of another router: nothing is timed by that."""
    output_tokens: int = 0
    """Of its answer, as reported with its end."""

    @property
    def is_placed(self) -> bool:
        """Whether it is known where it went: of one in shadow, only once a report has said."""
        return not self.shadow or self.booking is not None

    @property
    def counts_in_full(self) -> bool:
        """Whether all of it, and all that is held of it where it went, was counted on.

        Where less was, a first token that comes early says nothing of the engine's speed.
        """
        expected = self.predicted.get(self.went)
        return self.is_whole and expected is not None and expected.held == expected.cached

    @property
    def captured(self) -> int:
        """Tokens held where it went; 0 where nothing was known of that."""
        expected = self.predicted.get(self.went)
        return expected.held if expected else 0


class Witness(Protocol):
    """Who wants to know of picks. Times are seconds of the picker's clock."""

    def picked(self, placed: Placed, choice: Choice) -> None:
        """Take note of a pick."""

    def started(self, placed: Placed, now: float) -> None:
        """Take note that it went out, to `placed.went`."""

    def first_token(self, placed: Placed, now: float) -> None:
        """Take note of its first token."""

    def told(self, placed: Placed, cached: int, prompt_tokens: int | None) -> None:
        """Take note of what the engine found cached; once a pick."""

    def ended(self, placed: Placed, end: End, now: float) -> None:
        """Take note of its end."""


@dataclass(frozen=True, slots=True)
class PickSettings:
    """What the picker is configured with. Seconds."""

    policy: str = DEFAULT
    options: Mapping[str, float] = field(default_factory=dict)
    """Of the policy."""
    prefill: PrefillModel = field(default_factory=PrefillModel)
    assumed_seconds: float = 600.0
    """How long what was sent to a rank without events is believed to be there."""
    assumed_blocks: int = 32_768
    """Blocks of a rank without events that are believed to be there, where its size is not known."""
    confirm_seconds: float = 5.0
    """How long after a first token events may need to tell of the prompt's blocks. While a request
    runs its blocks stay, so this may be generous."""
    arriving_seconds: float = 60.0
    """How long past its predicted first token a prompt is believed to be on its way."""
    expire_seconds: float = 600.0
    """When a pick that is never reported is over."""
    most: int = 100_000
    """Picks that are not over; past it the oldest is. In shadow on many ranks they are fewer."""


class Picker:
    """Weighs, chooses, books, follows. `now` is the ingest's clock, seconds, in every call."""

    def __init__(
        self,
        scorer: Scorer,
        *,
        loads: LoadTable,
        bookings: Bookings,
        believed: Believed,
        sessions: Sessions,
        calibration: Calibration,
        settings: PickSettings,
        new_id: Callable[[], str],
        rng: Random,
        witnesses: Sequence[Witness] = (),
    ) -> None:
        self._scorer = scorer
        self._loads = loads
        self._bookings = bookings
        self._believed = believed
        self._sessions = sessions
        self._calibration = calibration
        self._settings = settings
        self._new_id = new_id
        self._rng = rng
        self._witnesses = witnesses
        self._policies: dict[str, Policy] = {
            settings.policy: make_policy(settings.policy, settings.options)
        }
        self._utilisations: dict[str, Utilisation] = {}
        self._placed: OrderedDict[str, Placed] = OrderedDict()
        self._expectations = 0
        """What was predicted of how many candidates, over all picks that are not over."""

    def __len__(self) -> int:
        return len(self._placed)

    def get(self, booking_id: str) -> Placed | None:
        """Return a pick that is not over; None where it is not known."""
        return self._placed.get(booking_id)

    # Weighing

    def weigh(self, ask: Ask, now: float) -> Choice:
        """Return what `choose` would choose; nothing is booked or remembered.

        Raises NoPodError, and UnknownPolicyError for `ask.policy`.
        """
        policy = self._policy(ask.policy)
        prefilling = _ranks(ask.pods, {"both", "prefill"} if ask.disaggregated else None)
        decoding = _ranks(ask.pods, {"both", "decode"}) if ask.disaggregated else []
        if not prefilling or (ask.disaggregated and not decoding):
            missing = "decode" if prefilling else "prefill"
            raise NoPodError(f"no pod of {ask.prompt.model!r} has the role {missing}")
        needs_known = getattr(policy, "needs_known_tokens", False)
        weighed = self._weighed(ask, [*prefilling, *decoding], now, needs_known=needs_known)
        first = [weighed[rank] for _, rank in prefilling]
        second = [weighed[rank] for _, rank in decoding]
        busy = sum(one.candidate.load.waiting > 0 for one in first) / len(first)
        utilisation = self._utilisation(ask.prompt.model).after(busy, now)
        request = Request(ask.tokens, utilisation, ask.session)
        options = _ordered(first, policy.rank(request, _candidates(first), self._rng))
        best = options[0]
        if ask.beside is not None:
            options.sort(key=lambda one: one.candidate[:2] != ask.beside)
        return Choice(
            policy=ask.policy or self._settings.policy,
            prompt_tokens=ask.tokens,
            utilisation=utilisation,
            busy=busy,
            options=options,
            decode=_ordered(second, rank_decode(request, _candidates(second), self._rng)),
            is_beside=options[0] is not best,
        )

    def _policy(self, name: str) -> Policy:
        name = name or self._settings.policy
        policy = self._policies.get(name)
        if policy is None:
            policy = self._policies[name] = make_policy(name)
        return policy

    def _utilisation(self, model: str) -> Utilisation:
        found = self._utilisations.get(model)
        if found is None:
            found = self._utilisations[model] = Utilisation()
        return found

    def _weighed(
        self, ask: Ask, ranks: Sequence[tuple[Pod, Rank]], now: float, *, needs_known: bool
    ) -> dict[Rank, Option]:
        settings, tokens = self._settings, ask.tokens
        pod_of = {rank: pod for pod, rank in ranks}
        matches = self._scorer.matches(
            ask.prompt,
            list(pod_of),
            longest_prefix,
            stale_since=now - settings.assumed_seconds,
        )
        last = self._sessions.get(ask.session, now) if ask.session else None
        loads = self._loads.loads([(pod.id, rank.number) for rank, pod in pod_of.items()], now)
        factor_of = self._calibration.factor
        # Many ranks hold the same of a prompt: nothing, mostly.
        warm_of: dict[tuple[Match, Level], Warmth] = {}
        options: dict[Rank, Option] = {}
        for (rank, pod), load in zip(pod_of.items(), loads, strict=True):
            name, number = pod.id, rank.number
            trust = rank.trust
            match = matches.get(rank, NOTHING)
            warm = warm_of.get((match, trust.level))
            if warm is None:
                warm = warmth(match, trust.level, tokens, settings.prefill)
                warm_of[match, trust.level] = warm
            factor = factor_of(name, number)
            candidate = Candidate(
                name,
                number,
                warm.cached,
                warm.prefill * factor,
                load,
                self._scorer.held_tokens(ask.prompt.model, rank) if needs_known else 0,
                last == (name, number),
            )
            options[rank] = Option(pod, rank, match, trust, candidate, 0.0, (), factor)
        return options

    # Choosing

    async def refresh(self, ask: Ask, timeout: float) -> None:
        """Have at hand what the shared index says of a request's prompt (`Scorer.refresh`)."""
        if self._scorer.remote is not None:
            ranks = [rank for pod in ask.pods for rank in pod.ranks]
            await self._scorer.refresh(ask.prompt, ranks, timeout)

    def choose(self, ask: Ask, now: float) -> tuple[str, Choice]:
        """Choose, and book unless in shadow; return what reports call it. Raises as `weigh`."""
        self.expire(now)
        choice = self.weigh(ask, now)
        self._utilisation(ask.prompt.model).see(choice.busy, now)
        best = choice.options[0]
        where = best.pod.id, best.rank.number
        kept = choice.options if ask.shadow else choice.options[:MOST_FALLBACKS]
        placed = Placed(
            self._new_id(),
            ask.prompt.model,
            ask.traits,
            choice.prompt_tokens,
            at=now,
            picked=where,
            available=_held(max(choice.options, key=_matched), choice),
            predicted={
                (one.pod.id, one.rank.number): _predicted(one, choice, self._room(one))
                for one in kept
            },
            shadow=ask.shadow,
            went=where,
            session=ask.session,
            is_whole=not ask.unread,
            keys=self._scorer.keys(ask.prompt, [one.rank for one in kept]),
        )
        self._keep(placed, now)
        if not ask.shadow:
            self._book(placed, now, choice.decode[0] if choice.decode else None)
            self._sessions.put(ask.session, *where, now)
        for witness in self._witnesses:
            witness.picked(placed, choice)
        return placed.booking_id, choice

    def _keep(self, placed: Placed, now: float) -> None:
        """Remember a pick; where there are too many the oldest is over."""
        most = self._settings.most
        # In shadow each keeps as much as the fleet is large.
        while self._placed and (
            len(self._placed) >= most
            or self._expectations + len(placed.predicted) > MOST_FALLBACKS * most
        ):
            self._end(next(iter(self._placed.values())), "expired", now)
        self._placed[placed.booking_id] = placed
        self._expectations += len(placed.predicted)

    def _room(self, option: Option) -> int:
        """Return how many blocks are believed to be on a rank at most; 0 where events tell."""
        if option.trust.level is Level.EXACT:
            return 0
        return option.pod.blocks or self._settings.assumed_blocks

    def _book(self, placed: Placed, now: float, decode: Option | None = None) -> None:
        """Book a pick where it goes."""
        work = self._work(placed)
        placed.booking = self._bookings.book(work, now)
        if decode is not None and decode.candidate[:2] != placed.went:
            there, tokens = decode.candidate, placed.prompt_tokens
            after = Work(placed.model, there.pod, there.rank, tokens, tokens, 0.0)
            placed.decoding = self._bookings.book(after, now, computed=True)
        self._arrive(placed, now)

    def _arrive(self, placed: Placed, now: float) -> None:
        """Mark a pick's blocks as arriving where it goes, and as there where no event will tell."""
        expected = placed.predicted.get(placed.went)
        seconds = expected.wait + expected.prefill if expected else 0.0
        # A rank whose blocks are of another size than any candidate's has none of these keys.
        keys = placed.keys.get(self._scorer.form(placed.model, *placed.went), b"")
        placed.ticket = self._believed.arrive(
            *placed.went, keys, expires=now + seconds + self._settings.arriving_seconds
        )
        if expected and expected.room:
            self._believed.assume(*placed.went, keys, now=now, capacity=expected.room)

    def _work(self, placed: Placed) -> Work:
        """Return what a pick costs the rank it goes to: a whole prefill, where nothing is known."""
        tokens = placed.prompt_tokens
        expected = placed.predicted.get(placed.went)
        if expected is None:
            expected = Predicted(0, 0, 0.0, self._settings.prefill.seconds(tokens, 0))
        return Work(
            placed.model,
            *placed.went,
            tokens,
            expected.cached,
            # Of constants or a prompt past all measure; it is dear enough.
            min(expected.prefill, MOST_PREFILL),
            expected.factor,
        )

    # Reports

    def started(self, booking_id: str, now: float, where: tuple[str, int] | None) -> bool:
        """Take note that a pick went out, and where, if not as picked; False where it is unknown."""
        placed = self._placed.get(booking_id)
        if placed is None:
            return False
        moved = where is not None and where != placed.went
        if where is not None:
            placed.went = where
        if moved or placed.shadow:
            self._sessions.put(placed.session, *placed.went, now)
        if placed.booking is None:
            self._book(placed, now)
        else:
            work = self._work(placed) if moved else None
            is_booked = self._bookings.started(placed.booking.id, now, work=work)
            if moved and placed.ticket is not None and placed.first_token_at is None:
                self._believed.withdraw(placed.ticket)
                if is_booked:
                    self._arrive(placed, now)
                else:
                    # The pod that it was booked on is gone.
                    self._book(placed, now)
        for witness in self._witnesses:
            witness.started(placed, now)
        return True

    def first_token(self, booking_id: str, now: float) -> bool:
        """Take note of a pick's first token; False where it is unknown."""
        placed = self._placed.get(booking_id)
        if placed is None:
            return False
        if placed.first_token_at is not None:
            return True
        placed.first_token_at = now
        placed.keys = {}
        if placed.booking is not None:
            self._bookings.first_token(placed.booking.id, now)
            if placed.decoding is not None:
                self._bookings.finish(placed.booking.id, now)
        if placed.ticket is not None:
            self._believed.confirm(placed.ticket, now + self._settings.confirm_seconds)
        for witness in self._witnesses:
            witness.first_token(placed, now)
        return True

    def late(self, booking_id: str) -> None:
        """Take note that the next report of a pick's progress is late; it may be unknown."""
        placed = self._placed.get(booking_id)
        if placed is not None:
            placed.is_late = True

    def told(self, booking_id: str, cached: int, prompt_tokens: int | None) -> None:
        """Take note of what an engine found cached of a pick."""
        placed = self._placed.get(booking_id)
        if placed is None or placed.has_told:
            return
        placed.has_told = True
        if placed.booking is not None:
            placed.booking.reported(cached)
        for witness in self._witnesses:
            witness.told(placed, cached, prompt_tokens)

    def ended(self, booking_id: str, end: End, now: float, *, output_tokens: int = 0) -> bool:
        """Take note of a pick's end, and its answer's tokens; False where it is unknown."""
        placed = self._placed.get(booking_id)
        if placed is None:
            return False
        placed.output_tokens = output_tokens
        self._end(placed, end, now)
        return True

    def _end(self, placed: Placed, end: End, now: float) -> None:
        del self._placed[placed.booking_id]
        self._expectations -= len(placed.predicted)
        # Only now is it known what the engine found cached.
        is_timed = placed.first_token_at is not None and end == "finished"
        is_told = is_timed and placed.counts_in_full and not placed.is_late
        if placed.booking is not None and is_told:
            self._calibration.learn(placed.booking)
        for booking in (placed.booking, placed.decoding):
            if booking is not None and end == "finished":
                self._bookings.finish(booking.id, now)
            elif booking is not None:
                self._bookings.fail(booking.id, now)
        if placed.ticket is not None:
            if end == "failed" and placed.first_token_at is None:
                self._believed.withdraw(placed.ticket)
            else:
                self._believed.confirm(placed.ticket, now + self._settings.confirm_seconds)
        for witness in self._witnesses:
            witness.ended(placed, end, now)

    # Time

    def expire(self, now: float) -> None:
        """End picks of which nothing was reported for too long."""
        while self._placed:
            oldest = next(iter(self._placed.values()))
            if abs(now - oldest.at) < self._settings.expire_seconds:
                break
            self._end(oldest, "expired", now)
        self._bookings.expire(now)
        self._believed.expire(now)

    def engine_ended(self, pod: Pod) -> None:
        """Take note that a pod's engine has ended: what was sent there before is not there now."""
        for rank in pod.ranks:
            self._believed.forget(pod.id, rank.number)

    def forget(self, pod: Pod) -> None:
        """Take note that a pod is gone: nothing is booked on it or believed of it any more."""
        for rank in pod.ranks:
            self._loads.forget(pod.id, rank.number)
            self._bookings.forget(pod.id, rank.number)
            self._believed.forget(pod.id, rank.number)
            self._calibration.forget(pod.id, rank.number)
        self._sessions.forget(pod.id)

    def check(self) -> None:
        """Raise BrokenInvariantError where a booking is no pick's, or too much is kept."""
        kept = self._placed.values()
        ours = {one.id for placed in kept for one in (placed.booking, placed.decoding) if one}
        for rank, book in self._bookings.ranks().items():
            if not ours.issuperset(book.in_flight):
                raise BrokenInvariantError(f"a booking on {rank} outlives its pick")
        if self._expectations != sum(len(placed.predicted) for placed in kept):
            raise BrokenInvariantError("the predictions that are kept do not add up")
        if len(kept) > self._settings.most:
            raise BrokenInvariantError(f"{len(kept)} picks, of at most {self._settings.most}")


def _ranks(pods: Sequence[Pod], roles: set[str] | None) -> list[tuple[Pod, Rank]]:
    return [(pod, rank) for pod in pods if roles is None or pod.role in roles for rank in pod.ranks]


def _candidates(options: Sequence[Option]) -> list[Candidate]:
    return [one.candidate for one in options]


def _ordered(options: Sequence[Option], ranked: Sequence[Ranked]) -> list[Option]:
    """Return the options as a policy has ranked their candidates."""
    by_name = {one.candidate[:2]: one for one in options}
    ordered = []
    for candidate, cost, terms in ranked:
        pod, rank, match, trust, _, _, _, factor = by_name[candidate[:2]]
        ordered.append(Option(pod, rank, match, trust, candidate, cost, terms, factor))
    return ordered


def _matched(option: Option) -> int:
    return option.match.matched_tokens


def _held(option: Option, choice: Choice) -> int:
    """Return the tokens that a request would find cached; the last one never is."""
    return min(option.match.matched_tokens, max(0, choice.prompt_tokens - 1))


def _predicted(option: Option, choice: Choice, room: int) -> Predicted:
    candidate = option.candidate
    return Predicted(
        _held(option, choice),
        candidate.cached,
        candidate.load.wait,
        candidate.prefill,
        option.calibration,
        room,
    )
