"""Writes the sentence that says why a candidate won, from the costs of the candidates."""

from collections.abc import Callable, Mapping, Sequence

from warmpath.process.command_line import seconds
from warmpath.router.pick.messages import Weighed
from warmpath.scorer.weigh import rounded_one


def reason(
    prompt_tokens: int,
    contenders: Sequence[Weighed],
    policy: str,
    *,
    costs_seconds: bool,
    unread: int = 0,
    names_ranks: bool = False,
    is_well: bool = True,
) -> str:
    """Return why the first contender won.

    `contenders` are some of the candidates, best first: the best two (or the only one), and the one that
    holds most of the prompt. With `names_ranks` the sentence names pods and ranks.
    `is_well`: the first is known to be healthy. `costs_seconds`: the costs are seconds, and the sentence
    explains them as times; otherwise it lists their terms. `unread` of the prompt's tokens are only
    estimated.
    """
    told = _Reason(prompt_tokens, contenders, unread=unread, names_ranks=names_ranks)
    text = told.sentence(policy, costs_seconds=costs_seconds)
    return text if is_well else f"{text} It is not known to be healthy, and no other pod is."


class _Reason:
    def __init__(
        self,
        prompt_tokens: int,
        contenders: Sequence[Weighed],
        *,
        unread: int,
        names_ranks: bool,
    ) -> None:
        self._tokens = prompt_tokens
        self._is_known = unread < prompt_tokens or not prompt_tokens
        self._all = contenders
        self._best = contenders[0]
        self._names_ranks = names_ranks

    def sentence(self, policy: str, *, costs_seconds: bool) -> str:
        best, name = self._best, self._name(self._best)
        if len(self._all) == 1:
            return f"{name} is the only candidate; it has {self._holding(best)} and {_queue(best)}."
        second = self._all[1]
        if not costs_seconds:
            return (
                f"{policy} puts {name} first: its cost is {_cost(best)}; {self._unitless(second)}."
            )
        return f"{self._first()}; {self._against(second)}."

    # The winner

    def _first(self) -> str:
        best, name = self._best, self._name(self._best)
        if not self._is_known:
            none = f"the prompt is not known (its {self._tokens:,} tokens are estimated)"
            return f"{none}, so no cache counts, and {name} has {_queue(best)}"
        if not any(one.match.matched_tokens for one in self._all):
            none = f"no candidate has any of the {self._tokens:,} tokens cached"
            return f"{none}, and {name} has {_queue(best)}"
        return f"{name} has {self._holding(best)} and {_queue(best)}"

    def _holding(self, one: Weighed) -> str:
        if not self._is_known:
            return f"{self._tokens:,} tokens to compute, estimated"
        if not one.match.matched_tokens:
            return f"none of {self._tokens:,} tokens cached"
        text = f"{one.match.matched_tokens:,} of {self._tokens:,} tokens cached"
        if one.match.believed_tokens:
            text += f" ({one.match.believed_tokens:,} of them not confirmed by events)"
        return text

    # Those that lost

    def _against(self, second: Weighed) -> str:
        """Return why the most obvious other candidate lost."""
        best = self._best
        if _is_tie(best, second):
            return self._tie(second)
        warmest = max(self._all, key=lambda one: one.match.matched_tokens)
        if warmest.match.matched_tokens > best.match.matched_tokens:
            return self._warmer(warmest)
        return self._next(second)

    def _tie(self, second: Weighed) -> str:
        return f"{self._name(second)} costs the same, and {_tie_rule(self._best, second)}"

    def _warmer(self, one: Weighed) -> str:
        """Return why a contender lost though it holds more of the prompt."""
        held, counted = one.match.matched_tokens, one.candidate.cached
        if counted < min(held, self._tokens - 1) and one.trust.level != "exact":
            view = f"the view of its cache is {one.trust.level}"
            holds = f"may hold more ({held:,} tokens; only {counted:,} count, as {view})"
        else:
            holds = f"holds more ({held:,} tokens)"
        return f"{self._name(one)} {holds} but {self._drawback(one)}"

    def _next(self, second: Weighed) -> str:
        longer = _first_token(second) - _first_token(self._best)
        if longer >= 0.001 and _dearest(self._best, second) in {"wait", "prefill"}:
            how_much = f"would take {seconds(longer)} longer"
        else:
            how_much = f"would cost {seconds(second.cost - self._best.cost)} more"
        return f"{self._name(second)}, next, {how_much}: {self._drawback(second)}"

    def _drawback(self, one: Weighed) -> str:
        """Return the reason for a contender's largest cost above the winner's."""
        name = _dearest(self._best, one)
        if name in _DRAWBACKS:
            return _DRAWBACKS[name](one, self._tokens)
        return f"its {name} is {seconds(_term(one, name))}"

    def _unitless(self, second: Weighed) -> str:
        name = self._name(second)
        if _is_tie(self._best, second):
            return f"{name} costs the same, and {_tie_rule(self._best, second)}"
        return f"{name}, next, costs {_cost(second)}"

    def _name(self, one: Weighed) -> str:
        candidate = one.candidate
        return f"{candidate.pod} rank {candidate.rank}" if self._names_ranks else candidate.pod


_DRAWBACKS: Mapping[str, Callable[[Weighed, int], str]] = {
    "wait": lambda one, _: f"{seconds(one.candidate.load.wait)} of work are queued there",
    "prefill": lambda one, tokens: (
        f"its prefill takes {seconds(one.candidate.prefill)} "
        f"({tokens - one.candidate.cached:,} tokens to compute)"
    ),
    "decode": lambda one, _: f"it has {_requests(one)} in flight",
    "others": lambda one, tokens: (
        f"its prefill of {tokens - one.candidate.cached:,} tokens would delay the requests that come "
        "after it" + (f" ({_requests(one)} in flight)" if one.candidate.load.in_flight else "")
    ),
    "crowding": lambda one, _: f"it has {_requests(one)} in flight",
}


def _queue(one: Weighed) -> str:
    load = one.candidate.load
    if load.wait > 0:
        return f"{seconds(load.wait)} of work waiting"
    return "nothing waiting"


def _requests(one: Weighed) -> str:
    count = one.candidate.load.in_flight
    return f"{count:,} request" if count == 1 else f"{count:,} requests"


def _first_token(one: Weighed) -> float:
    return one.candidate.load.wait + one.candidate.prefill


def _term(one: Weighed, term: str) -> float:
    for name, value in one.terms:
        if name == term:
            return value
    return 0.0


def _dearest(best: Weighed, other: Weighed) -> str:
    """Return the name of the term by which `other` exceeds the winner most."""
    own = dict(best.terms)
    above = {name: value - own.get(name, 0.0) for name, value in other.terms}
    return max(above, key=lambda name: above[name], default="cost")


def _is_tie(best: Weighed, other: Weighed) -> bool:
    return rounded_one(best.cost) == rounded_one(other.cost)


def _tie_rule(best: Weighed, other: Weighed) -> str:
    """Return which step of the tie rule in `scorer.weigh` decided."""
    one, two = best.candidate, other.candidate
    if one.load.in_flight < two.load.in_flight:
        return (
            f"has more requests in flight ({two.load.in_flight:,} against {one.load.in_flight:,})"
        )
    if one.cached > two.cached:
        return f"has fewer tokens cached ({two.cached:,} against {one.cached:,})"
    return "a random draw decided"


def _cost(one: Weighed) -> str:
    terms = ", ".join(f"{name} {value:,.6g}" for name, value in one.terms)
    return f"{one.cost:,.6g}" + (f" ({terms})" if terms else "")
