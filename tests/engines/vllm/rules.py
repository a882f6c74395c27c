"""Why an engine may find other tokens than predicted, each with a check on the very request."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from warmpath.lab.verify.cause import found_after
from warmpath.lab.verify.stay import EventKeys
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb


@dataclass(frozen=True)
class Difference:
    """A request whose cached tokens are not those predicted. Figures are blocks."""

    body: dict[str, Any]
    trust: pb.Trust
    """The trust in the prediction."""
    keys: Sequence[int]
    """The keys of the prompt's blocks that could be found cached."""
    predicted: int
    cached: int
    before: Sequence[EventKeys]
    """The events of the batch that announced the request's own blocks, before these."""

    def found_after(self, events: Iterable[EventKeys]) -> int:
        """Return how many leading blocks would be found after some events, by the prediction."""
        return found_after(self.keys, self.predicted, events)

    @property
    def has_clear(self) -> bool:
        return any(kind == "cleared" for kind, _ in self.before)


@dataclass(frozen=True)
class Rule:
    """A reason for a difference; `reason` names the page that tells it to users."""

    name: str
    reason: str
    holds: Callable[[Difference], bool]


UNANNOUNCED = "docs/reference/events.md#what-engines-do-not-announce"
RULES = (
    Rule(
        "reset",
        f"vLLM announces a reset of its prefix cache only with its next step ({UNANNOUNCED})",
        lambda one: one.has_clear and one.found_after(one.before) == one.cached,
    ),
    Rule(
        "own step",
        "blocks were evicted by the very step that scheduled the request "
        "(docs/reference/events.md#tested-versions)",
        lambda one: (
            not one.has_clear
            and one.cached < one.predicted
            and one.found_after(one.before) == one.cached
        ),
    ),
    Rule(
        "samples",
        f"each sample after the first finds the prompt of the first one ({UNANNOUNCED})",
        lambda one: int(one.body.get("n") or 1) > 1 and one.predicted < one.cached == len(one.keys),
    ),
    Rule(
        "not exact",
        "the router said that its view was not exact (docs/start/your-engines.md#trust)",
        lambda one: one.trust.level != pb.Trust.EXACT,
    ),
)


def rule_of(difference: Difference) -> Rule | None:
    """Return the first rule that holds for a difference; None: it is not explained."""
    return next((rule for rule in RULES if rule.holds(difference)), None)
