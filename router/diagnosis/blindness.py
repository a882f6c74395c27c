"""Blind spots: the reasons why picks do not know which caches hold a prompt, logged each hour.

A pick is blind where no token of its prompt is known, or where no pod has ever shown a block. Clients
that spoil their own caches are told beside.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from warmpath.indexer.engines.table import ENGINES
from warmpath.indexer.rank import Rank
from warmpath.router.config.schema import PodSpec
from warmpath.router.diagnosis.attribution import FADING, FULL, Attribution, Evidence, Row
from warmpath.router.diagnosis.clients import Client
from warmpath.router.diagnosis.mispredictions import ENOUGH, GAP, Finding, allowed_gap, apart
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

TOKENIZER = "set `tokenizer` of its [[models]] to a folder with its tokenizer and chat template"
REMEDIES: Mapping[Blind | None, str] = {
    "time": f"raise limits.tokenize-seconds, or {TOKENIZER}",
    "body": "use an API whose prompts the router reads (docs/reference/inference-apis.md)",
}
"""By the reason for which single prompts stay unread: the way to have them read."""

DIFFERS = "the tokenizer, the chat template, salts or the block size may differ from the engines'"


class Unread(NamedTuple):
    """The share of a model's last prompts that stayed unread for a reason in REMEDIES."""

    share: float = 0.0
    why: Blind | None = None
    because: str = ""
    """The reason of the last one in words."""


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
        self._unread: dict[str, Unread] = {}

    def picked(self, model: str, blind: Blind | None, because: str = "") -> None:
        """Count a pick, if it is blind; `because` says in words why its prompt was not read."""
        missing = blind or ("blocks" if model in self._without_blocks else None)
        if missing:
            self.counts[missing] += 1
        if blind in REMEDIES or model in self._unread:
            before = self._unread.get(model, Unread())
            share = before.share * FADING + (blind in REMEDIES) / FULL
            last = (blind, because) if blind in REMEDIES else before[1:]
            self._unread[model] = Unread(share, *last)

    def news(self, now: float) -> Sequence[Finding]:
        """Return the spots that were not returned within the last hour; `now` is in seconds."""
        due = [
            one
            for one in self.spots()
            if now - self._said.get((one.model, one.kind), -math.inf) >= HOUR
        ]
        self._said |= {(one.model, one.kind): now for one in due}
        return due

    def spots(self) -> Sequence[Finding]:
        """Return the present spots, the gravest first."""
        models = self._by_model()
        found = [
            Finding(
                "tokenizer",
                f"its prompts cannot be tokenised: {trouble}; meanwhile Score refuses such prompts, and "
                f"Pick is blind: it goes by the bytes of their text. Do this: mend that, or {TOKENIZER}",
                model,
            )
            for model, trouble in self._troubles().items()
        ]
        lacking = [*_lacking(models)]
        self._without_blocks = frozenset(one.model for one in lacking)
        unread = (_of_unread(*one) for one in self._unread.items() if one[1].share > GAP)
        spoiled = (_spoiled(one) for one in self._attribution.clients if one.spoils)
        return [
            *found, *lacking, *unread, *_mispredicted(models), *spoiled, *_approximate(models)
        ]  # fmt: skip

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
        if quiet := [pod for pod in pods if not pod.has_events]:
            yield Finding("no-events", without_events(quiet, len(pods)), model)


def without_events(quiet: Sequence[Pod | PodSpec], pods: int) -> str:
    """Return in words that of a model's `pods` the `quiet` ones send no events, and what to do."""
    option = ENGINES[quiet[0].engine].events_option
    remedy = (
        f". Do this: start it with `{option}`, and set `events` and `replay` of its [[pods]], as "
        "the gateway's option `--engine` does"
    )
    return (
        f"{len(quiet)} of its {pods} pods send no events, such as {quiet[0].id}, so that their "
        f"caches are estimated from the router's own picks{remedy if option else ''}"
    )


def _of_unread(model: str, unread: Unread) -> Finding:
    text = (
        f"{unread.share:.0%} of its last prompts were not read ({unread.because}), so that picks for "
        f"them go by bytes or by load alone. Do this: {REMEDIES[unread.why]}"
    )
    return Finding(unread.why or "", text, model)


def _spoiled(one: Client) -> Finding:
    whose = f" of tenant {one.tenant!r}" if one.tenant else ""
    place = f" ({one.place})" if one.place else ""
    text = (
        f"the client {one.name or 'without a User-Agent'}{whose} repeats its sessions' prompts with a "
        f"change after some {one.alike_tokens:,} tokens{place}, so that {one.lost / one.tokens:.0%} of "
        "their tokens, though computed before, are computed again. Do this: have it put what changes (a "
        "time, a hash, a counter) at the prompt's end, and cut its history seldom"
    )
    return Finding("spoiled", text, one.model)


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
