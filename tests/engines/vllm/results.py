"""What a run has found, phase by phase: a file each, so that a broken-off run goes on behind the last one.

A rule says why an engine may find other tokens than predicted; each checks the very request.
"""

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from warmpath.lab.verify.cause import found_after
from warmpath.lab.verify.stay import EventKeys
from warmpath.proto.pb.warmpath.v1 import router_pb2 as pb

LEAST_REQUESTS = 500
LEAST_EQUAL = 0.995


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


@dataclass(frozen=True)
class Outcome:
    """One request."""

    path: str
    via: str
    """`gateway`, or `straight`."""
    pod: str
    rank: int
    trust: str
    """Of the prediction, with its reason."""
    prompt_tokens: int
    predicted: int
    cached: int
    """As the engine reported, in tokens."""
    picked: int | None = None
    """As the picker predicted at the pick; None for a request that was sent straight."""
    rule: str = ""
    """The name of the rule that explains a difference; empty where there is none."""
    because: str = ""
    """Of a difference: everything that helps to understand it."""

    @property
    def is_equal(self) -> bool:
        return self.predicted == self.cached


@dataclass(frozen=True)
class PhaseResult:
    name: str
    outcomes: list[Outcome]
    forms: int
    """Distinct forms of requests whose text and tokens were compared with the engine's."""
    notes: list[str]


class Results:
    """The files of finished phases in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def _file(self, phase: str) -> Path:
        return self._folder / f"{phase}.json"

    def read(self, phase: str) -> PhaseResult | None:
        """Return a finished phase, None if it has not been run to its end."""
        if not self._file(phase).exists():
            return None
        found = json.loads(self._file(phase).read_text(encoding="utf-8"))
        outcomes = [Outcome(**line) for line in found.pop("outcomes")]
        return PhaseResult(outcomes=outcomes, **found)

    def write(self, result: PhaseResult) -> None:
        part = self._file(result.name).with_suffix(".part")
        part.write_text(json.dumps(asdict(result), indent=1), encoding="utf-8")
        part.replace(self._file(result.name))

    def clear(self) -> None:
        """Forget all phases."""
        for file in self._folder.glob("*.json"):
            file.unlink()


def print_table(results: Sequence[PhaseResult]) -> None:
    """Print a line for each phase, then what each rule that was used says."""
    print(f"\n{'phase':<20} {'requests':>8} {'equal':>6} {'forms':>6}  explained by")
    for one in (*results, _all(results)):
        rules = Counter(outcome.rule for outcome in one.outcomes if not outcome.is_equal)
        said = ", ".join(f"{name or 'NOTHING'}: {count}" for name, count in rules.items())
        equal = sum(outcome.is_equal for outcome in one.outcomes)
        print(f"{one.name:<20} {len(one.outcomes):>8} {equal:>6} {one.forms:>6}  {said or '-'}")
    used = {outcome.rule for one in results for outcome in one.outcomes}
    for rule in RULES:
        if rule.name in used:
            print(f"  {rule.name}: {rule.reason}")
    for one in results:
        for note in one.notes:
            print(f"  {one.name}: {note}")


def _all(results: Sequence[PhaseResult]) -> PhaseResult:
    outcomes = [outcome for one in results for outcome in one.outcomes]
    return PhaseResult("all", outcomes, sum(one.forms for one in results), [])


def verdict(results: Sequence[PhaseResult]) -> int:
    """Say whether the run has passed; return the exit status."""
    outcomes = _all(results).outcomes
    equal = sum(one.is_equal for one in outcomes)
    problems = [f"not explained: {one}" for one in outcomes if not one.is_equal and not one.rule]
    problems += [
        f"the picker said otherwise than Score: {one}"
        for one in outcomes
        if one.picked not in (None, one.predicted)
    ]
    if len(outcomes) < LEAST_REQUESTS:
        problems.append(f"{len(outcomes)} requests are fewer than {LEAST_REQUESTS}")
    if equal < LEAST_EQUAL * len(outcomes):
        problems.append(f"{equal} of {len(outcomes)} are equal, fewer than {LEAST_EQUAL:.1%}")
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0
