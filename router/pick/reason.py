"""Writes the sentence that says why a candidate won, from the costs of the candidates.

`router.pick.eligible` says why no rank may take a request.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from warmpath.process.command_line import seconds
from warmpath.router.pick.options import Option
from warmpath.scorer.weigh import rounded


class Reason(msgspec.Struct, frozen=True):
    """Why the first contender won; `str` writes the sentence.

    `contenders` are some of the candidates, best first: the best two (or the only one), the one that
    holds most of the prompt, and maybe others. With `names_ranks` the sentence names pods and ranks.
    `costs_seconds`: the costs are seconds, and the sentence explains them as times; otherwise it lists
    their terms. `unread` of the prompt's tokens are only estimated; with `is_blind` all of them are, and
    bytes of the text stand in for them.
    """

    prompt_tokens: int
    contenders: Sequence[Option]
    policy: str
    costs_seconds: bool
    unread: int = 0
    names_ranks: bool = False
    is_blind: bool = False

    def __str__(self) -> str:
        best = self.contenders[0]
        ill = "" if best.serves else " It is not known to be healthy, and no other pod is."
        blind = "Blind, by the bytes of its text: " if self.is_blind else ""
        return blind + self._sentence(best) + ill

    def _sentence(self, best: Option) -> str:
        name = self._name(best)
        if len(self.contenders) == 1:
            return f"{name} is the only candidate; it has {self._holding(best)} and {_queue(best)}."
        second = self.contenders[1]
        if self.costs_seconds:
            return f"{self._first(best)}; {self._against(best, second)}."
        lost = self._tie(best, second) or f"{self._name(second)}, next, costs {_cost(second)}"
        return f"{self.policy} puts {name} first: its cost is {_cost(best)}; {lost}."

    @property
    def _is_known(self) -> bool:
        return self.is_blind or self.unread < self.prompt_tokens or not self.prompt_tokens

    def _first(self, best: Option) -> str:
        name = self._name(best)
        if not self._is_known:
            none = f"the prompt is not known (its {self.prompt_tokens:,} tokens are estimated)"
            return f"{none}, so no cache counts, and {name} has {_queue(best)}"
        if not any(one.match.matched_tokens for one in self.contenders):
            none = f"no candidate has any of the {self.prompt_tokens:,} tokens cached"
            return f"{none}, and {name} has {_queue(best)}"
        return f"{name} has {self._holding(best)} and {_queue(best)}"

    def _holding(self, one: Option) -> str:
        if not self._is_known:
            return f"{self.prompt_tokens:,} tokens to compute, estimated"
        if not one.match.matched_tokens:
            return f"none of {self.prompt_tokens:,} tokens cached"
        text = f"{one.match.matched_tokens:,} of {self.prompt_tokens:,} tokens cached"
        if one.match.believed_tokens:
            text += f" ({one.match.believed_tokens:,} of them not confirmed by events)"
        return text

    def _against(self, best: Option, second: Option) -> str:
        warmest = max(self.contenders, key=lambda one: one.match.matched_tokens)
        if warmest.match.matched_tokens > best.match.matched_tokens:
            return self._tie(best, second) or self._warmer(best, warmest)
        return self._tie(best, second) or self._next(best, second)

    def _tie(self, best: Option, second: Option) -> str:
        """Return which step of the tie rule in `scorer.weigh` decided; empty if the costs differ."""
        if rounded(best.cost) != rounded(second.cost):
            return ""
        one, two = best.candidate, second.candidate
        rule = "a random draw decided"
        if one.load.in_flight < two.load.in_flight:
            more, fewer = two.load.in_flight, one.load.in_flight
            rule = f"has more requests in flight ({more:,} against {fewer:,})"
        elif one.cached > two.cached:
            rule = f"has fewer tokens cached ({two.cached:,} against {one.cached:,})"
        return f"{self._name(second)} costs the same, and {rule}"

    def _warmer(self, best: Option, one: Option) -> str:
        held, counted = one.match.matched_tokens, one.candidate.cached
        if counted < min(held, self.prompt_tokens - 1) and one.trust.level != "exact":
            view = f"the view of its cache is {one.trust.level}"
            holds = f"may hold more ({held:,} tokens; only {counted:,} count, as {view})"
        else:
            holds = f"holds more ({held:,} tokens)"
        return f"{self._name(one)} {holds} but {self._drawback(best, one)}"

    def _next(self, best: Option, second: Option) -> str:
        longer = second.predicted_ttft - best.predicted_ttft
        if longer >= 0.001 and _dearest(best, second) in {"wait", "prefill"}:
            how_much = f"would take {seconds(longer)} longer"
        else:
            how_much = f"would cost {seconds(second.cost - best.cost)} more"
        return f"{self._name(second)}, next, {how_much}: {self._drawback(best, second)}"

    def _drawback(self, best: Option, one: Option) -> str:
        name = _dearest(best, one)
        if name in _DRAWBACKS:
            return _DRAWBACKS[name](one, self.prompt_tokens)
        return f"its {name} is {seconds(dict(one.terms).get(name, 0.0))}"

    def _name(self, one: Option) -> str:
        candidate = one.candidate
        return f"{candidate.pod} rank {candidate.rank}" if self.names_ranks else candidate.pod


_DRAWBACKS: Mapping[str, Callable[[Option, int], str]] = {
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


def _queue(one: Option) -> str:
    load = one.candidate.load
    if load.wait > 0:
        return f"{seconds(load.wait)} of work waiting"
    return "nothing waiting"


def _requests(one: Option) -> str:
    count = one.candidate.load.in_flight
    return f"{count:,} request" if count == 1 else f"{count:,} requests"


def _dearest(best: Option, other: Option) -> str:
    """Return the name of the term by which `other` exceeds the winner most."""
    own = dict(best.terms)
    above = {name: value - own.get(name, 0.0) for name, value in other.terms}
    return max(above, key=lambda name: above[name], default="cost")


def _cost(one: Option) -> str:
    terms = ", ".join(f"{name} {value:,.6g}" for name, value in one.terms)
    return f"{one.cost:,.6g}" + (f" ({terms})" if terms else "")
