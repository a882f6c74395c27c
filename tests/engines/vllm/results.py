"""What a run has found, phase by phase: a file each, so that a broken-off run goes on behind the last one."""

import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.engines.vllm.rules import RULES

LEAST_REQUESTS = 500
LEAST_EQUAL = 0.995


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
