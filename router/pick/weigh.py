"""Weighs the ranks that could take a request, by holdings, wait and cost.

    matches (index, beliefs) ─┐
    load (bookings, engines)  ├─► candidates ─► policy ─► choice
    traffic                  ─┘

As a fleet may have thousands of ranks, all figures are columns, in the order of a `Field`.

Nothing is booked here; `router.pick.picker` does that with the choice.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import repeat, starmap
from random import Random
from types import MappingProxyType
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from warmpath.indexer.index.slot import RankName
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb
from warmpath.router.config.schema import PickTable
from warmpath.router.load.table import LoadTable
from warmpath.router.match.match import KeyedPrompt, Matches, Scorer
from warmpath.router.pick import compiled
from warmpath.router.pick.calibration import Calibration
from warmpath.router.pick.eligible import Field, NoPodError, Wanted, model_phrase
from warmpath.router.pick.options import Option, Options
from warmpath.router.pick.reason import Reason
from warmpath.router.pick.traffic import Shares, Traffic
from warmpath.router.pick.working_set import WorkingSets
from warmpath.router.pods.table import Role
from warmpath.router.prompt.token_prompt import Blind
from warmpath.scorer.candidate import Request
from warmpath.scorer.columns import (
    ARRIVING,
    CACHED,
    COST,
    DISPLACED,
    LOADS,
    PREFILL,
    SLOWNESS,
    TERMS,
    Column,
    Columns,
    Figures,
    LoadColumns,
)
from warmpath.scorer.match import Match
from warmpath.scorer.policies import warmpath
from warmpath.scorer.policy import Policy, costs_seconds, make_policy
from warmpath.scorer.prefill import PrefillModel
from warmpath.scorer.strategies import longest_prefix
from warmpath.scorer.weigh import COLD, DRAW, Held, decode_costs, held_of

NOBODY: Mapping[RankName, float] = MappingProxyType({})
NONE: Column = np.empty(0)
NO_ROOMS: Figures = np.empty((2, 0))


class Traits(msgspec.Struct, frozen=True):
    """Properties of a request by which wrong predictions are grouped, to find their cause."""

    form: Literal["ids", "text", "chat"] = "ids"
    has_adapter: bool = False
    has_salt: bool = False
    has_items: bool = False


class Ask(msgspec.Struct, frozen=True):
    """A request to place."""

    prompt: KeyedPrompt
    field: Field
    """The ranks that may take it, in any order."""
    wanted: Wanted
    """The pods that it wants."""
    policy: str = ""
    """The policy's name; empty: the configured one."""
    session: str = ""
    parent_session: str = ""
    """The session that has begun this one; empty: none is known."""
    ends_session: bool = False
    """Whether the session ends with this request."""
    shadow: bool = False
    as_of: float | None = None
    """The time, by the ingest's clock, at which ranks' caches are looked at; None: now."""
    booking_id: str = ""
    """The booking id that the caller chose; empty: none."""
    traits: Traits = Traits()
    unread: int = 0
    """Estimated tokens of the part of the prompt that was not tokenised."""
    unread_because: str = ""
    """Why that part was not tokenised."""
    blind: Blind | None = None
    """Why no token of the prompt's text is known; None: tokens are known, or were given."""
    is_watched: bool = False
    """Whether the end of its request is always reported, as a gateway shows the whole exchange."""
    request_id: str = ""
    """The caller's name for its request; empty: none."""
    trace_id: str = ""
    """The id of the pick's trace; empty: it is not sampled."""
    tenant: str = ""
    client: str = ""
    """The product that its client's User-Agent begins with; empty: not known."""
    ids: bytes = b""
    """The prompt's tokens, packed; empty if they are not known."""
    message: pb.Prompt | None = None
    """The prompt as it came; None: only `ids` did."""

    @property
    def tokens(self) -> int:
        """The number of tokens, known or estimated."""
        return self.prompt.tokens + self.unread


class Choice(msgspec.Struct, frozen=True):
    """The result of weighing: all options, best first."""

    ask: Ask
    policy: str
    costs_seconds: bool
    """Whether the policy's costs are seconds."""
    utilisation: float
    shares: Shares
    """Shares of the ranks for prefill at this moment."""
    options: Options
    decode: Options | tuple[()] = ()
    """The options for decoding a disaggregated request; `options` are then for its prefill."""

    @property
    def reason(self) -> Reason:
        """Why the first option won."""
        return Reason(
            self.ask.tokens,
            self.options.kept,
            self.policy,
            costs_seconds=self.costs_seconds,
            unread=self.ask.unread,
            names_ranks=self.options.field.has_ranks,
            is_blind=self.ask.prompt.is_blind,
        )

    @property
    def source(self) -> Option | None:
        """The option that holds most of the prompt; None if the first one holds as much."""
        options = self.options
        most, best = options.match(options.fullest), options.match(options.order[0])
        is_fuller = most.known_tokens > best.matched_tokens
        return options.at([options.fullest])[0] if is_fuller else None


class Weigher:
    """Weighs with one policy, unless a request names another. `now` is the ingest's clock, in seconds.

    Blocks of ranks whose stream has ended count for `pick.assumed-seconds`.
    """

    def __init__(
        self,
        scorer: Scorer,
        loads: LoadTable,
        calibration: Calibration,
        working: WorkingSets,
        pick: PickTable,
        *,
        prefill: PrefillModel,
        rng: Random,
    ) -> None:
        self._scorer = scorer
        self._loads = loads
        self._calibration = calibration
        self._working = working
        constants = prefill.base, prefill.per_token, prefill.per_context, prefill.per_pulled_token
        self._prefill = np.array(constants)
        self._without_pull = np.array((*constants[:3], math.inf))
        self._assumed_seconds = pick.assumed_seconds
        self._rng = rng
        self.use(pick)
        self._traffic: defaultdict[str, Traffic] = defaultdict(Traffic)
        """The traffic of each model."""

    def use(self, pick: PickTable) -> None:
        """Weigh with a configuration's policy and options from now on. Raises as `make_policy`."""
        self._usual = pick.policy
        self._policies = {pick.policy: _with_constants(make_policy(pick.policy, pick.options))}

    def weigh(self, ask: Ask, now: float, ahead: Mapping[RankName, float] = NOBODY) -> Choice:
        """Return the choice, its options best first; nothing is booked or remembered.

        `ahead` are seconds of prefill by rank that count as waiting there, in addition to the load.
        Raises NoPodError, and UnknownPolicyError for `ask.policy`.
        """
        name, model = ask.policy or self._usual, ask.prompt.model
        if name not in self._policies:
            self._policies[name] = _with_constants(make_policy(name))
        policy, constants = self._policies[name]
        avoided = self._loads.avoided(now)
        everybody = _part(ask, "both", avoided)
        is_split = ask.wanted.disaggregated
        prefilling = _part(ask, "prefill", avoided) if is_split else everybody
        decoding = _part(ask, "decode", avoided) if is_split else None
        matches = self._scorer.matches(
            ask.prompt,
            everybody.ranks,
            longest_prefix,
            stale_since=now - self._assumed_seconds,
            as_of=ask.as_of,
        )
        traffic = self._traffic[model]
        # Where nobody tells which requests have ended, crowding means nothing.
        long_share = traffic.long_share if self._loads.knows_progress(now) else 1.0
        options = self._options(
            ask, matches, prefilling, now, traffic.before(now), long_share, policy, constants, ahead
        )
        busy, full, utilisation, full_share, *_ = options.found
        decode: Options | tuple[()] = ()
        if decoding is not None:
            decode = self._options(ask, matches, decoding, now, (utilisation, full_share, 0.0))
        return Choice(
            ask=ask,
            policy=name,
            costs_seconds=costs_seconds(policy),
            utilisation=utilisation,
            shares=Shares(busy, full),
            options=options,
            decode=decode,
        )

    def see(self, model: str, choice: Choice, now: float) -> None:
        """Record a choice that is carried out as part of the model's traffic."""
        options = choice.options
        place, figures = options.order[0], options.figures
        # As on a rank of typical speed.
        seconds = figures.item(PREFILL, place) / figures.item(SLOWNESS, place)
        self._traffic[model].see(choice.shares, seconds, now)

    def _options(  # noqa: PLR0917  one call
        self,
        ask: Ask,
        matches: Matches,
        field: Field,
        now: float,
        before: tuple[float, float, float],
        long_share: float = 1.0,
        policy: Policy | None = None,
        constants: Column = NONE,
        ahead: Mapping[RankName, float] = NOBODY,
    ) -> Options:
        """Return a field's options, best first: by a policy, or without one by the costs of decoding.

        `before` is as of `Traffic.before`, `constants` are the policy's options if it is compiled.
        """
        model, number = ask.prompt.model, len(field.names)
        loads, rows, now = self._loads.current(field.names, now)
        standing = self._calibration.standing(model, field.names)
        keys, order = np.empty((2, number)), np.empty((2, number), np.int64)
        found = np.empty(compiled.FOUND)
        figures = np.empty((TERMS + len(warmpath.NAMES), number))
        rest: Any = (
            loads, rows, *_held(field, matches), standing.far, _seconds(field, ahead) if ahead else NONE,
            NO_ROOMS if policy is None else self._working.free(field, now),
            keys, order, self._prefill if policy is not None else self._without_pull, constants,
            found, now, float(ask.tokens), standing.usual, *before, long_share,
        )  # fmt: skip
        terms: Sequence[str] = warmpath.NAMES
        steps = compiled.ALL
        if not len(constants):
            compiled.weigh(compiled.FILLS, figures, *rest)
            _, _, utilisation, full_share, *_ = found.tolist()
            request = Request(ask.tokens, utilisation, ask.session, long_share, full_share)
            figures, terms = self._costs(request, figures, field, model, policy)
            steps = compiled.ORDERS
        # No loop of Python's own: there may be thousands of candidates.
        keys[DRAW] = np.fromiter(starmap(self._rng.random, repeat((), number)), np.float64, number)
        compiled.weigh(steps, figures, *rest)
        return Options(
            field,
            figures,
            order[0].tolist(),
            found.tolist(),
            terms=terms,
            matches=matches,
            shared=self._calibration.shared(model),
        )

    def _costs(
        self, request: Request, figures: Figures, field: Field, model: str, policy: Policy | None
    ) -> tuple[Figures, Sequence[str]]:
        """Return figures with the costs by a policy in NumPy, and the names of the costs' terms."""
        known_tokens = self._scorer.held_tokens
        columns = Columns(
            field.names,
            LoadColumns(*figures[:LOADS]),
            figures[CACHED],
            figures[PREFILL],
            figures[SLOWNESS],
            figures[ARRIVING],
            figures[DISPLACED],
            lambda: np.array([known_tokens(model, rank) for rank in field.ranks], np.float64),
        )
        costs = (
            decode_costs(request, columns)
            if policy is None
            else policy.costs(request, columns, self._rng)
        )
        terms = [term for _, term in costs.terms]
        return np.array([*figures[:COST], costs.cost, *terms]), [name for name, _ in costs.terms]


def _with_constants(policy: Policy) -> tuple[Policy, Column]:
    """Return a policy, and its options if it is compiled."""
    return policy, policy.options if isinstance(policy, warmpath.Warmpath) else NONE


def _part(ask: Ask, role: Role, avoided: Collection[RankName]) -> Field:
    """Return the ranks that take the role's part of a request. Raises NoPodError if none does."""
    part = ask.field.part(role, avoided)
    if not part.ranks:
        found = f"no pod{model_phrase(ask.prompt.model)}"
        if role == "both":
            raise NoPodError(f"{found} may be picked")
        raise NoPodError(f"{found} that may be picked has the role {role}")
    return part


def _held(field: Field, matches: Matches) -> tuple[Held, NDArray[np.intp]]:
    """Return what the ranks of a field hold, and the row of each rank."""
    kinds = [COLD]
    numbers: dict[tuple[Match, str], int] = {}
    kind_of = [0] * len(field.names)
    place_of = field.place_of.get
    for rank, match in matches.items():
        place = place_of(rank)
        if place is not None:
            # Many hold the same blocks.
            kind = match, matches.trust(rank).level
            number = numbers.get(kind)
            if number is None:
                number = numbers[kind] = len(kinds)
                kinds.append(held_of(*kind))
            kind_of[place] = number
    return np.array(kinds, np.float64), np.array(kind_of, np.intp)


def _seconds(field: Field, ahead: Mapping[RankName, float]) -> Column:
    """Return the seconds `ahead` as a column of a field."""
    column = np.zeros(len(field.names))
    for name, seconds in ahead.items():
        place = field.places.get(name)
        if place is not None:
            column[place] = seconds
    return column
