"""The one sentence that says why a candidate won, from the numbers that it was weighed by."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from scorer.candidate import Ranked
from scorer.order import rounded

IN_SECONDS = frozenset({"warmpath", "study-mix", "overlap-time"})
"""The policies whose cost is in seconds; of others only their own terms can be told."""

GUARD = "hot_spot"
"""The term of a candidate that has too much to do, however warm it is."""
SESSION = "session"
"""The term of a candidate that the session would have to move to."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A candidate as it was ranked, and what it holds of the prompt. Tokens."""

    ranked: Ranked
    held: int
    """Leading tokens, known or believed; `Candidate.cached` is what of them was counted."""
    believed: int = 0
    """Those of them that no event has told of."""
    trust: str = "exact"


def reason(policy: str, prompt_tokens: int, contenders: Sequence[Contender]) -> str:
    """Return why the first one won. `contenders` are all of them, best first, at least one."""
    return _Reason(prompt_tokens, contenders).told(policy)


class _Reason:
    def __init__(self, prompt_tokens: int, contenders: Sequence[Contender]) -> None:
        self._tokens = prompt_tokens
        self._all = contenders
        self._best = contenders[0]
        pods = {one.ranked.candidate.pod for one in contenders}
        self._names_ranks = len(pods) < len(contenders)

    def told(self, policy: str) -> str:
        best, name = self._best, self._name(self._best)
        if len(self._all) == 1:
            return f"{name} is the only candidate; it has {self._holding(best)} and {_queue(best)}."
        second = self._all[1]
        if policy not in IN_SECONDS:
            return (
                f"{policy} puts {name} first: its cost is {_cost(best)}; {self._unitless(second)}."
            )
        return f"{self._first()}; {self._against(second)}."

    # The winner

    def _first(self) -> str:
        best, name = self._best, self._name(self._best)
        if not any(one.held for one in self._all):
            none = f"no candidate has any of the {self._tokens:,} tokens cached"
            return f"{none}, and {name} has {_queue(best)}"
        return f"{name} has {self._holding(best)} and {_queue(best)}"

    def _holding(self, one: Contender) -> str:
        if not one.held:
            return f"none of {self._tokens:,} tokens cached"
        text = f"{one.held:,} of {self._tokens:,} tokens cached"
        if one.believed:
            text += f" ({one.believed:,} of them not confirmed by events)"
        return text

    # Those that lost

    def _against(self, second: Contender) -> str:
        """Return what kept the one that most would have expected from winning."""
        best = self._best
        guarded = self._least_without(GUARD)
        if guarded is not None:
            return (
                f"{self._name(guarded)} would cost {_less(best, guarded, GUARD)} less but for its "
                f"{_requests(guarded)} in flight, which are past the load margin"
            )
        moved = self._least_without(SESSION)
        if moved is not None and best.ranked.candidate.is_session:
            return (
                f"its session stays there: {self._name(moved)} would cost only "
                f"{_less(best, moved, SESSION)} less, which is within the margin"
            )
        if _is_tie(best, second):
            return self._tie(second)
        warmest = max(self._all, key=lambda one: one.held)
        if warmest.held > best.held:
            return self._warmer(warmest)
        return self._next(second)

    def _least_without(self, term: str) -> Contender | None:
        """Return who would have won but for a term; None where the winner would have anyway."""
        found = min(self._all[1:], key=lambda one: _without(one, term))
        return (
            found if rounded(_without(found, term)) < rounded(_without(self._best, term)) else None
        )

    def _tie(self, second: Contender) -> str:
        return f"{self._name(second)} costs the same, and {_tie_rule(self._best, second)}"

    def _warmer(self, one: Contender) -> str:
        """Say why one that holds more has lost."""
        counted = one.ranked.candidate.cached
        if counted < min(one.held, self._tokens - 1) and one.trust != "exact":
            holds = f"may hold more ({one.held:,} tokens, of which {counted:,} count: its view is "
            holds += f"{one.trust})"
        else:
            holds = f"holds more ({one.held:,} tokens)"
        return f"{self._name(one)} {holds} but {self._drawback(one)}"

    def _next(self, second: Contender) -> str:
        longer = _first_token(second) - _first_token(self._best)
        if longer >= 0.001 and _dearest(self._best, second) in {"wait", "prefill"}:
            how_much = f"would take {seconds(longer)} longer"
        else:
            how_much = f"would cost {seconds(second.ranked.cost - self._best.ranked.cost)} more"
        return f"{self._name(second)}, next, {how_much}: {self._drawback(second)}"

    def _drawback(self, one: Contender) -> str:
        """Say what costs a candidate most beside the winner."""
        name = _dearest(self._best, one)
        if name in _DRAWBACKS:
            return _DRAWBACKS[name](one, self._tokens)
        return f"its {name} is {seconds(dict(one.ranked.terms).get(name, 0.0))}"

    def _unitless(self, second: Contender) -> str:
        name = self._name(second)
        if _is_tie(self._best, second):
            return f"{name} costs the same, and {_tie_rule(self._best, second)}"
        return f"{name}, next, costs {_cost(second)}"

    def _name(self, one: Contender) -> str:
        candidate = one.ranked.candidate
        return f"{candidate.pod} rank {candidate.rank}" if self._names_ranks else candidate.pod


def seconds(value: float) -> str:
    """Return a duration for people: two digits that count."""
    if value < 0.0005:
        return "less than 1 ms"
    if value < 0.0995:
        return f"{value * 1e3:.0f} ms"
    return f"{value:.2g} s" if value < 9.95 else f"{value:,.0f} s"


_DRAWBACKS: Mapping[str, Callable[[Contender, int], str]] = {
    "wait": lambda one, _: f"{seconds(one.ranked.candidate.load.wait)} of work are queued there",
    "prefill": lambda one, tokens: (
        f"its prefill takes {seconds(one.ranked.candidate.prefill)} "
        f"({tokens - one.ranked.candidate.cached:,} tokens to compute)"
    ),
    "decode": lambda one, _: f"it has {_requests(one)} in flight",
    "crowding": lambda one, _: f"it has {_requests(one)} in flight",
    SESSION: lambda _, __: "the session would have to move",
    GUARD: lambda one, _: f"its {_requests(one)} in flight are past the load margin",
}


def _queue(one: Contender) -> str:
    load = one.ranked.candidate.load
    if load.wait > 0:
        return f"{seconds(load.wait)} of work waiting"
    return "nothing waiting"


def _requests(one: Contender) -> str:
    count = one.ranked.candidate.load.in_flight
    return f"{count:,} request" if count == 1 else f"{count:,} requests"


def _first_token(one: Contender) -> float:
    return one.ranked.candidate.load.wait + one.ranked.candidate.prefill


def _without(one: Contender, term: str) -> float:
    return one.ranked.cost - dict(one.ranked.terms).get(term, 0.0)


def _less(best: Contender, other: Contender, term: str) -> str:
    return seconds(_without(best, term) - _without(other, term))


def _dearest(best: Contender, other: Contender) -> str:
    """Return the term by which one is furthest above the winner."""
    own = dict(best.ranked.terms)
    above = {name: value - own.get(name, 0.0) for name, value in other.ranked.terms}
    return max(above, key=lambda name: above[name], default="cost")


def _is_tie(best: Contender, other: Contender) -> bool:
    return rounded(best.ranked.cost) == rounded(other.ranked.cost)


def _tie_rule(best: Contender, other: Contender) -> str:
    """Say which step of `scorer.order` decided."""
    one, two = best.ranked.candidate, other.ranked.candidate
    if one.load.in_flight < two.load.in_flight:
        return (
            f"has more requests in flight ({two.load.in_flight:,} against {one.load.in_flight:,})"
        )
    if one.cached > two.cached:
        return f"has fewer tokens cached ({two.cached:,} against {one.cached:,})"
    return "the draw decided"


def _cost(one: Contender) -> str:
    terms = ", ".join(f"{name} {value:,.6g}" for name, value in one.ranked.terms)
    return f"{one.ranked.cost:,.6g}" + (f" ({terms})" if terms else "")
