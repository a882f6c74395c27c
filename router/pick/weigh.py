"""Weighs the ranks that could take a request, by holdings, wait and cost.

    matches (index, beliefs) ─┐
    load (bookings, engines)  ├─► candidates ─► policy ─► choice
    traffic                  ─┘

As a fleet may have thousands of ranks, all figures are columns, in the order of a `Field`.

Nothing is booked here; `router.pick.picker` does that with the choice.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import Literal

import msgspec
import numpy as np

from warmpath.indexer.index.slot import RankName
from warmpath.router.config.schema import PickTable
from warmpath.router.load.table import LoadTable
from warmpath.router.match.match import KeyedPrompt, Matches, Scorer
from warmpath.router.pick.calibration import Calibration
from warmpath.router.pick.eligible import Field, NoPodError, Wanted, model_phrase
from warmpath.router.pick.options import Option, Options
from warmpath.router.pick.reason import Reason
from warmpath.router.pick.traffic import Shares, Traffic, shares_of
from warmpath.router.pods.table import Role
from warmpath.router.prompt.token_prompt import Blind
from warmpath.scorer.candidate import Request
from warmpath.scorer.columns import Columns, LoadColumns
from warmpath.scorer.match import NOTHING, Match
from warmpath.scorer.policy import Policy, costs_seconds, make_policy
from warmpath.scorer.prefill import PrefillModel
from warmpath.scorer.strategies import longest_prefix
from warmpath.scorer.weigh import decode_costs, order_of, warmth, with_pull

NOBODY: Mapping[RankName, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Traits:
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

    @property
    def tokens(self) -> int:
        """The number of tokens, known or estimated."""
        return self.prompt.tokens + self.unread

    @property
    def is_whole(self) -> bool:
        """Whether there is a prompt all of whose tokens are known."""
        return self.prompt.tokens > 0 and not self.unread


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
        pick: PickTable,
        *,
        prefill: PrefillModel,
        rng: Random,
    ) -> None:
        self._scorer = scorer
        self._loads = loads
        self._calibration = calibration
        self._prefill = prefill
        self._assumed_seconds = pick.assumed_seconds
        self._rng = rng
        self.use(pick)
        self._traffic: defaultdict[str, Traffic] = defaultdict(Traffic)
        """The traffic of each model."""

    def use(self, pick: PickTable) -> None:
        """Weigh with a configuration's policy and options from now on. Raises as `make_policy`."""
        self._usual = pick.policy
        self._policies = {pick.policy: make_policy(pick.policy, pick.options)}

    def weigh(self, ask: Ask, now: float, ahead: Mapping[RankName, float] = NOBODY) -> Choice:
        """Return the choice, its options best first; nothing is booked or remembered.

        `ahead` are seconds of prefill by rank that count as waiting there, in addition to the load.
        Raises NoPodError, and UnknownPolicyError for `ask.policy`.
        """
        name, model = ask.policy or self._usual, ask.prompt.model
        if name not in self._policies:
            self._policies[name] = make_policy(name)
        policy = self._policies[name]
        avoided = self._loads.avoided(now)
        everybody = _part(ask, "both", avoided)
        is_split = ask.wanted.disaggregated
        prefilling = _part(ask, "prefill", avoided) if is_split else everybody
        decoding = _part(ask, "decode", avoided) if is_split else None
        loads = self._loads.columns(prefilling.names, now)
        shares = shares_of(loads)
        if ahead:
            loads = _behind(loads, prefilling, ahead)
        traffic = self._traffic[model]
        utilisation, full = traffic.average(shares, now)
        # Where nobody tells which requests have ended, crowding means nothing.
        long_share = traffic.long_share if self._loads.knows_progress(now) else 1.0
        request = Request(ask.tokens, utilisation, ask.session, long_share, full)
        stale_since = now - self._assumed_seconds
        matches = self._scorer.matches(
            ask.prompt, everybody.ranks, longest_prefix, stale_since=stale_since, as_of=ask.as_of
        )
        options = self._options(model, request, matches, prefilling, loads, policy=policy)
        decode: Options | tuple[()] = ()
        if decoding is not None:
            loads = self._loads.columns(decoding.names, now)
            decode = self._options(model, request, matches, decoding, loads)
        return Choice(
            ask=ask,
            policy=name,
            costs_seconds=costs_seconds(policy),
            utilisation=utilisation,
            shares=shares,
            options=options,
            decode=decode,
        )

    def see(self, model: str, choice: Choice, now: float) -> None:
        """Record a choice that is carried out as part of the model's traffic."""
        place, columns = choice.options.order[0], choice.options.columns
        # As on a rank of typical speed.
        seconds = columns.prefill.item(place) / columns.slowness.item(place)
        self._traffic[model].see(choice.shares, seconds, now)

    def _options(
        self,
        model: str,
        request: Request,
        matches: Matches,
        field: Field,
        loads: LoadColumns,
        *,
        policy: Policy | None = None,
    ) -> Options:
        """Return a field's options, best first: by a policy, or without one by the costs of decoding."""
        names, tokens, known_tokens = field.names, request.prompt_tokens, self._scorer.held_tokens
        factors, slownesses = self._calibration.all_of(model, names, request.utilisation)
        figures = np.empty((3, len(names)))
        # A rank without a match has nothing cached, whatever its trust is.
        figures.T[:] = warmth(NOTHING, "exact", tokens, self._prefill)
        most_known = 0
        for (match, trust), places in _holding(field, matches).items():
            figures.T[places] = warmth(match, trust, tokens, self._prefill)
            if trust == "exact":
                most_known = max(most_known, match.known_tokens)
        cached, prefill, arriving = figures
        if policy is not None and self._prefill.per_pulled_token < math.inf:
            held = min(most_known, max(0, tokens - 1))
            prefill = with_pull(prefill, cached, held, tokens, self._prefill)
        columns = Columns(
            names,
            loads,
            cached,
            prefill * factors,
            slownesses,
            arriving * factors,
            lambda: np.array([known_tokens(model, rank) for rank in field.ranks], np.float64),
        )
        if policy is None:
            costs = decode_costs(request, columns)
        else:
            costs = policy.costs(request, columns, self._rng)
        return Options(
            field,
            columns,
            costs,
            order_of(costs, columns, self._rng),
            matches=matches,
            factors=factors,
            shared=self._calibration.shared(model),
        )


def _part(ask: Ask, role: Role, avoided: Collection[RankName]) -> Field:
    """Return the ranks that take the role's part of a request. Raises NoPodError if none does."""
    part = ask.field.part(role, avoided)
    if not part.ranks:
        found = f"no pod{model_phrase(ask.prompt.model)}"
        if role == "both":
            raise NoPodError(f"{found} may be picked")
        raise NoPodError(f"{found} that may be picked has the role {role}")
    return part


def _holding(field: Field, matches: Matches) -> Mapping[tuple[Match, str], list[int]]:
    """Return the places in a field of the ranks with each match and trust: many hold the same blocks."""
    holding: dict[tuple[Match, str], list[int]] = {}
    place_of, trusts = field.place_of.get, matches.trusts
    for rank, match in matches.items():
        place = place_of(rank)
        if place is not None:
            kind = match, (trusts.get(rank) or rank.trust).level
            if kind in holding:
                holding[kind].append(place)
            else:
                holding[kind] = [place]
    return holding


def _behind(loads: LoadColumns, field: Field, ahead: Mapping[RankName, float]) -> LoadColumns:
    """Return the loads of a field's ranks with the seconds `ahead` added to their waits."""
    wait = loads.wait.copy()
    for name, seconds in ahead.items():
        place = field.places.get(name)
        if place is not None:
            wait[place] += seconds
    return loads._replace(wait=wait)
