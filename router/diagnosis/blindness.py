"""Blind spots: the reasons why picks do not know which caches hold a prompt, logged each hour.

A pick is blind where no token of its prompt is known, or where no pod has ever shown a block.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from warmpath.indexer.engines.table import ENGINES
from warmpath.indexer.rank import Rank
from warmpath.router.diagnosis.attribution import Attribution, Evidence, Row
from warmpath.router.diagnosis.mispredictions import ENOUGH, Finding, allowed_gap, apart
from warmpath.router.pods.table import Pod, PodTable
from warmpath.router.prompt.token_prompt import Blind

HOUR = 3600.0
"""Seconds after which a spot that is still there is logged again."""
LONG_TOKENS = 64
"""Tokens of the mean prompt from which on answered requests must have left blocks behind."""
COMPARED = 100
"""Least number of engines' reports that show a lasting difference from predicted cached tokens."""

Models = Mapping[str, tuple[list[Pod], list[Row]]]
"""The pods of each model, and what was counted of them."""

DIFFERS = "the tokenizer, the chat template, salts or the block size may differ from the engines'"


class Blindness:
    """Counts blind picks, and finds blind spots.

    `troubles` returns why models' texts could not be tokenised the last time, by model.
    """

    def __init__(
        self, pods: PodTable, attribution: Attribution, troubles: Callable[[], Mapping[str, str]]
    ) -> None:
        self._pods = pods
        self._attribution = attribution
        self._troubles = troubles
        self.counts: Counter[Blind] = Counter()
        """The number of blind picks, by the missing part."""
        self._said: dict[tuple[str, str], float] = {}
        """When `news` returned each spot last."""
        self._without_blocks: frozenset[str] = frozenset()

    def picked(self, model: str, blind: Blind | None) -> None:
        """Count a pick, if it is blind."""
        missing = blind or ("blocks" if model in self._without_blocks else None)
        if missing:
            self.counts[missing] += 1

    def news(self, now: float) -> Sequence[Finding]:
        """Return the spots that were not returned within the last hour; `now` is in seconds."""
        models = self._by_model()
        spots = [*self._spots(models), *_approximate(models)]
        due = [
            one for one in spots if now - self._said.get((one.model, one.kind), -math.inf) >= HOUR
        ]
        self._said |= {(one.model, one.kind): now for one in due}
        return due

    def spots(self) -> Sequence[Finding]:
        """Return the present spots, without those of models whose pods send no events."""
        return self._spots(self._by_model())

    def _spots(self, models: Models) -> Sequence[Finding]:
        found = [
            Finding(
                "tokenizer",
                f"its prompts cannot be tokenised: {trouble}; meanwhile Score refuses such prompts, and "
                "Pick is blind: it goes by the bytes of their text",
                model,
            )
            for model, trouble in self._troubles().items()
        ]
        lacking = [*_lacking(models)]
        self._without_blocks = frozenset(one.model for one in lacking)
        return [*found, *lacking, *_mispredicted(models)]

    def _by_model(self) -> Models:
        models: dict[str, tuple[list[Pod], list[Row]]] = {}
        for pod in self._pods:
            pods, rows = models.setdefault(pod.model, ([], []))
            pods.append(pod)
            if row := self._attribution.row(pod.id, pod.model):
                rows.append(row)
        return models


def _approximate(models: Models) -> Iterator[Finding]:
    for model, (pods, _) in models.items():
        if not any(pod.has_events for pod in pods):
            option = ENGINES[pods[0].engine].events_option
            option = f": start the engines with {option}, and set `events`" if option else ""
            text = (
                "no pod of it sends events, so caches are approximate, estimated from this router's "
                f"own picks{option}"
            )
            yield Finding("no-events", text, model)


def _lacking(models: Models) -> Iterator[Finding]:
    for model, (pods, rows) in models.items():
        ended = sum(row.evidence.ends for row in rows)
        tokens = sum(row.prompt_tokens for row in rows)
        requests = sum(row.requests for row in rows)
        ranks = [rank for pod in pods if pod.has_events for rank in pod.ranks]
        if not ranks or ended < ENOUGH or tokens < LONG_TOKENS * requests:
            continue
        if not any(rank.is_remote or _has_shown(rank) for rank in ranks):
            yield Finding(
                "blind",
                f"none of its {len(ranks)} ranks has announced a block, though {ended:,} requests "
                "were answered. Do this: turn on the engines' prefix caching and events, and "
                "compare the events' ports with the configuration (`warmpath doctor --config FILE`)",
                model,
            )


def _mispredicted(models: Models) -> Iterator[Finding]:
    for model, (pods, rows) in models.items():
        evidence = Evidence.joined(row.evidence for row in rows)
        whole = evidence.of(lambda _: True)
        allowed = allowed_gap(has_events=all(pod.has_events for pod in pods))
        if whole.reports < COMPARED or abs(whole.gap) <= allowed:
            continue
        predicted, found = whole.predicted / whole.tokens, whole.delivered / whole.tokens
        causes = "; ".join(one.text for one in apart(evidence))
        yield Finding(
            "gap",
            f"{predicted:.0%} of its last requests' tokens were predicted to be cached, {found:.0%} "
            f"were found: {causes or DIFFERS}",
            model,
        )


def _has_shown(rank: Rank) -> bool:
    # A publisher tells the blocks that are held, and counts none that were stored.
    return bool(sum(rank.blocks().values()) or rank.counts().get("stored_blocks"))
