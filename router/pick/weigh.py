"""Weighs the ranks that could take a request: what each holds, how long it waits, what that costs.

    matches (index, beliefs) ─┐
    load (bookings, engines)  ├─► candidates ─► policy ─► choice
    session, utilisation     ─┘

Of very many ranks it weighs columns (`router.pick.weigh_many`), where the policy knows them.

Nothing is booked here: what follows from a choice is `router.pick.picker`'s.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from indexer.rank import Rank
from indexer.trust import Level
from router.load.table import LoadTable
from router.pick.calibration import Calibration
from router.pick.options import FewOptions, Field, Option, Options
from router.pick.scorer import NOTHING, Prompt, Scorer
from router.pick.sessions import Sessions
from router.pick.utilisation import Utilisation
from router.pick.weigh_many import MANY, ManyWeigher
from router.pods.table import Pod
from scorer.candidate import Candidate, Load, Ranked, Request
from scorer.columns import ColumnPolicy
from scorer.decode import rank_decode
from scorer.match import Match
from scorer.policy import Policy, make_policy
from scorer.prefill import PrefillModel
from scorer.reason import reason
from scorer.strategies.longest_prefix import longest_prefix
from scorer.warmth import Warmth, warmth


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
    booking_id: str = ""
    """The name that its caller gave the pick; empty: none."""
    traits: Traits = Traits()
    unread: int = 0
    """Tokens, as reckoned, that the prompt has besides: of a text that was not tokenised."""
    unread_because: str = ""
    beside: tuple[str, int] | None = None
    """The pod and rank where its group goes: it goes there too if it may, whatever that costs."""

    @property
    def tokens(self) -> int:
        """The number of tokens, known or estimated."""
        return self.prompt.tokens + self.unread


@dataclass(frozen=True, slots=True)
class Choice:
    """All options, best first."""

    policy: str
    prompt_tokens: int
    utilisation: float
    busy: float
    """The share of ranks with a prefill to do, at this moment."""
    options: Options
    decode: Sequence[Option] = ()
    """Of a disaggregated request: where to decode; `options` are for the prefill."""
    is_beside: bool = False
    """Whether the first is not the best, but where the request's group goes."""

    @property
    def reason(self) -> str:
        """The sentence why the first one won."""
        text = reason(
            self.prompt_tokens,
            self.options.telling(),
            self.policy,
            names_ranks=self.options.has_ranks(),
            is_beside=self.is_beside,
        )
        if self.options[0].pod.serves:
            return text
        return f"{text} It is not known to be well, and no other is."

    @property
    def source(self) -> Option | None:
        """The option that holds most, where that is more than what the best one holds."""
        most = self.options.fullest()
        return most if most.match.known_tokens > self.options[0].match.matched_tokens else None


class Weigher:
    """Weighs with one policy unless another is asked for. `now` is the ingest's clock, seconds.

    `options` are the policy's. What was sent to a rank without events is believed to be there for
    `assumed_seconds`.
    """

    def __init__(
        self,
        scorer: Scorer,
        loads: LoadTable,
        sessions: Sessions,
        calibration: Calibration,
        *,
        policy: str,
        options: Mapping[str, float],
        prefill: PrefillModel,
        assumed_seconds: float,
        rng: Random,
    ) -> None:
        self._scorer = scorer
        self._loads = loads
        self._sessions = sessions
        self._calibration = calibration
        self._usual = policy
        self._prefill = prefill
        self._assumed_seconds = assumed_seconds
        self._rng = rng
        self._many = ManyWeigher(
            scorer,
            loads,
            calibration,
            prefill=prefill,
            assumed_seconds=assumed_seconds,
            rng=rng,
        )
        self._policies: dict[str, Policy] = {policy: make_policy(policy, options)}
        self._utilisations: dict[str, Utilisation] = {}

    def weigh(self, ask: Ask, now: float) -> Choice:
        """Return the options, best first; nothing is booked or remembered.

        Raises NoPodError, and UnknownPolicyError for `ask.policy`.
        """
        policy = self._policy(ask.policy)
        field = self._many.field(ask.pods)
        is_many = len(field.ranks) >= MANY and not ask.disaggregated
        # Last, as it takes microseconds.
        if is_many and isinstance(policy, ColumnPolicy):
            return self._weigh_many(ask, policy, field, now)
        prefilling = _ranks(ask.pods, {"both", "prefill"} if ask.disaggregated else None)
        decoding = _ranks(ask.pods, {"both", "decode"}) if ask.disaggregated else []
        if not prefilling or (ask.disaggregated and not decoding):
            missing = "decode" if prefilling else "prefill"
            raise NoPodError(f"no pod of {ask.prompt.model!r} has the role {missing}")
        pod_of = {rank: pod for pod, rank in [*prefilling, *decoding]}
        names = [(pod.id, rank.number) for rank, pod in pod_of.items()]
        loads = dict(zip(pod_of, self._loads.loads(names, now), strict=True))
        busy = sum(loads[rank].waiting > 0 for _, rank in prefilling) / len(prefilling)
        utilisation = self._utilisation(ask.prompt.model).after(busy, now)
        needs_known = getattr(policy, "needs_known_tokens", False)
        weighed = self._weighed(ask, pod_of, loads, utilisation, now, needs_known=needs_known)
        first = [weighed[rank] for _, rank in prefilling]
        second = [weighed[rank] for _, rank in decoding]
        request = Request(ask.tokens, utilisation, ask.session)
        options = _ordered(first, policy.rank(request, _candidates(first), self._rng))
        best = options[0]
        if ask.beside is not None:
            options.sort(key=lambda one: one.candidate[:2] != ask.beside)
        return Choice(
            policy=ask.policy or self._usual,
            prompt_tokens=ask.tokens,
            utilisation=utilisation,
            busy=busy,
            options=options,
            decode=_ordered(second, rank_decode(request, _candidates(second), self._rng)),
            is_beside=options[0] is not best,
        )

    def _weigh_many(self, ask: Ask, policy: ColumnPolicy, field: Field, now: float) -> Choice:
        loaded = self._many.loaded(field, now)
        utilisation = self._utilisation(ask.prompt.model).after(loaded.busy, now)
        request = Request(ask.tokens, utilisation, ask.session)
        last = self._sessions.get(ask.session, now) if ask.session else None
        options = self._many.weigh(ask.prompt, request, policy, loaded, session=last, now=now)
        best = options[0].candidate[:2]
        if ask.beside is not None:
            options.put_first(ask.beside)
        return Choice(
            policy=ask.policy or self._usual,
            prompt_tokens=ask.tokens,
            utilisation=utilisation,
            busy=loaded.busy,
            options=options,
            is_beside=options[0].candidate[:2] != best,
        )

    def see(self, model: str, busy: float, now: float) -> None:
        """Take note of what share of a model's ranks was busy at a pick (`Choice.busy`)."""
        self._utilisation(model).see(busy, now)

    def _policy(self, name: str) -> Policy:
        name = name or self._usual
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
        self,
        ask: Ask,
        pod_of: Mapping[Rank, Pod],
        loads: Mapping[Rank, Load],
        utilisation: float,
        now: float,
        *,
        needs_known: bool,
    ) -> dict[Rank, Option]:
        model, tokens, prefill = ask.prompt.model, ask.tokens, self._prefill
        matches = self._scorer.matches(
            ask.prompt,
            list(pod_of),
            longest_prefix,
            stale_since=now - self._assumed_seconds,
        )
        last = self._sessions.get(ask.session, now) if ask.session else None
        factor_of, slowness_of = self._calibration.factor, self._calibration.slowness
        # Many ranks hold the same of a prompt: nothing, mostly.
        warm_of: dict[tuple[Match, Level], Warmth] = {}
        options: dict[Rank, Option] = {}
        for rank, pod in pod_of.items():
            name, number = pod.id, rank.number
            trust = rank.trust
            match = matches.get(rank, NOTHING)
            warm = warm_of.get((match, trust.level))
            if warm is None:
                warm = warmth(match, trust.level, tokens, prefill)
                warm_of[match, trust.level] = warm
            factor = factor_of(model, name, number, utilisation)
            candidate = Candidate(
                name,
                number,
                warm.cached,
                warm.prefill * factor,
                loads[rank],
                self._scorer.held_tokens(model, rank) if needs_known else 0,
                last == (name, number),
                slowness_of(model, name, number),
                warm.arriving * factor,
            )
            options[rank] = Option(pod, rank, match, trust, candidate, 0.0, (), factor)
        return options


def _ranks(pods: Sequence[Pod], roles: set[str] | None) -> list[tuple[Pod, Rank]]:
    return [(pod, rank) for pod in pods if roles is None or pod.role in roles for rank in pod.ranks]


def _candidates(options: Sequence[Option]) -> list[Candidate]:
    return [one.candidate for one in options]


def _ordered(options: Sequence[Option], ranked: Sequence[Ranked]) -> FewOptions:
    """Return the options as a policy has ranked their candidates."""
    by_name = {one.candidate[:2]: one for one in options}
    ordered = FewOptions()
    for candidate, cost, terms in ranked:
        pod, rank, match, trust, _, _, _, factor = by_name[candidate[:2]]
        ordered.append(Option(pod, rank, match, trust, candidate, cost, terms, factor))
    return ordered
