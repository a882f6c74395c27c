"""The facts about a pod, and the likely cause of lasting wrong predictions of its cached tokens.

Pure functions. The kind of the requests that are predicted wrong is the best clue: a fault of one part
(salt, adapter, template, tokenizer) shows only in requests that use it.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from warmpath.indexer.trust import Trust
from warmpath.router.diagnosis.attribution import Evidence, ReportCounts, Row
from warmpath.router.match.match import ASSUMED_BLOCK_SIZE
from warmpath.router.pick.weigh import Traits
from warmpath.scorer.weigh import ASSUMED


@dataclass(frozen=True, slots=True)
class RankFacts:
    """The state of one rank now."""

    number: int
    trust: Trust
    trust_seconds: float
    """For how long it has had this trust."""
    inexact_seconds: float
    """For how long it has not been exact, with whatever trust."""
    block_size: int
    """Tokens per block; 0 before the first event."""
    blocks: int
    """Number of blocks that the rank holds, by its events."""
    stored: int
    """Blocks that events announced as stored since the router started; `removed`: as removed."""
    removed: int
    has_load: bool
    """Whether its engine or a gateway has reported its load lately."""
    bad_figures: Sequence[str] = ()
    """The figures that its latest metrics lack, or that cannot be (`Observed.bad`)."""
    stuck_seconds: float = 0.0
    """For how long it has answered nothing, if it is stuck (`router.load.stuck`)."""
    capacity: int = 0
    """Blocks of its fastest tier; 0: not known."""
    drifts: int = 0
    """How often more blocks were announced than its fastest tier has, since the router started."""
    lag_batches: int = 0
    """Batches of its events that were received and not applied yet."""


@dataclass(frozen=True, slots=True)
class PodFacts:
    """The present state of one pod, from which findings are made; texts are as in `Pod` and `Status`."""

    has_events: bool
    is_well: bool
    """Whether the last probe found it healthy; then its metrics were read too."""
    ranks: Sequence[RankFacts]
    row: Row
    typical_factor: float = 1.0
    """The median calibration of all ranks of the model's pods."""
    refusal: str = ""
    shared: str = ""
    engine: str = "vllm"
    events_option: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """A likely fault of a pod, or of the router. The text does not name the pod."""

    kind: str
    text: str
    model: str = ""
    """The model whose pods the finding is about; empty: those of all models, or one known pod."""


ENOUGH = 30
"""Least number of reports for a finding: among fewer, some simultaneous evictions look like a fault."""
OFF_SHARE = 0.3
"""Share of wrong predictions above which there is a fault. Evictions and races of events with picks
make some wrong on a healthy pod. Like FINE_SHARE it is an estimate, not measured."""
FINE_SHARE = 0.15
"""Share of wrong predictions up to which one kind of requests counts as right while another is off."""
GAP = 0.1
"""Difference of predicted and delivered tokens, as a share of the larger, above which there is a
finding although most predictions are right; also an estimate."""
FEW = 10
"""Least number of reports for one kind of requests to count as right."""
MOSTLY = 0.5
"""Share of the reports above which a cause counts as the likely one."""
DISTINCT_HITS = 3
"""Least number of different counts of cached tokens whose common divisor may be the block size: hits of
one shared prefix all have the same count."""
CHURN = 0.5
"""Blocks removed per block stored, from which on evictions are the likely cause."""
OF_PODS = "leave `tokenizer` and `hub` of its [[models]] out: the pods' own /tokenize is asked then"
_UNHELD = (
    "it does not hold the prompts that were sent there (its `blocks` or "
    "pick.assumed-seconds may be too large or too small)"
)


def mispredictions(facts: PodFacts, *, is_doubtful: bool) -> list[Finding]:
    """Return the likely causes of lasting wrong predictions.

    Where most predictions are right, a difference between the sums of predicted and delivered cached
    tokens is looked for instead.
    `is_doubtful`: the view of the pod's cache is incomplete, which alone explains wrong predictions.
    """
    block_size = [*_block_size(facts)]
    if block_size:
        # A wrong block size makes all predictions wrong, so no other cause can be recognised.
        return block_size
    evidence = facts.row.evidence
    of_kinds = [*apart(evidence)]
    if of_kinds:
        return of_kinds
    whole = evidence.of(lambda _: True)
    if is_doubtful:
        return []
    return [_of_all(facts, whole)] if _is_off(whole) else [*_gap(facts, whole)]


def _block_size(facts: PodFacts) -> Iterator[Finding]:
    evidence = facts.row.evidence
    hits = evidence.hits
    if len(hits) < ENOUGH or len(set(hits)) < DISTINCT_HITS:
        return
    found = math.gcd(*hits)
    if found == 1:
        # The engine reuses parts of blocks, so the block size cannot be seen.
        return
    of_events = max((rank.block_size for rank in facts.ranks), default=0)
    unlike = f"its engine finds multiples of {found} tokens cached"
    if of_events:
        off = sum(hit % of_events != 0 for hit in hits) / len(hits)
        # At least every second multiple of another block size is not a multiple of this one, unless this
        # one divides the other.
        if off > OFF_SHARE:
            yield Finding(
                "block-size",
                f"{unlike}, but its events have blocks of {of_events}: check block-size",
            )
    elif facts.has_events:
        yield Finding("block-size", f"{unlike}, but no event has had a block size yet")
    else:
        assumed = evidence.block_size or ASSUMED_BLOCK_SIZE
        if found % assumed and _is_off(evidence.of(lambda _: True)):
            yield Finding(
                "block-size",
                f"{unlike}; as it has no events, the router assumes blocks of {assumed}",
            )


_PARTS: Sequence[tuple[str, Callable[[Traits], bool], str, str]] = (
    (
        "cache-salt",
        lambda traits: traits.has_salt,
        "requests with a cache salt",
        "the engine gets another salt than the router, or none",
    ),
    (
        "adapter",
        lambda traits: traits.has_adapter,
        "requests for an adapter",
        "the engine's events have other names for adapters than requests",
    ),
    (
        "multimodal",
        lambda traits: traits.has_items,
        "requests with images or audio",
        "the items' hashes or the places of their tokens differ from the engine's",
    ),
    (
        "template",
        lambda traits: traits.form == "chat",
        "chats",
        "the router's chat template is not the engine's",
    ),
    (
        "tokenizer",
        lambda traits: traits.form != "ids",
        "texts and chats",
        "the router's tokenizer is not the engine's",
    ),
)
"""Parts of warmpath whose fault shows only in requests that use them: the kind of the finding, which
requests use it, these in words, and the reason."""


def apart(evidence: Evidence) -> Iterator[Finding]:
    """Yield findings about requests of one kind only, or about the router's count of tokens."""
    found = set()
    for kind, uses, requests, reason in _PARTS:
        off, fine = evidence.of(uses), evidence.of(lambda traits, uses=uses: not uses(traits))  # type: ignore[misc]
        if kind == "tokenizer" and "template" in found:
            continue
        if _is_off(off) and fine.reports >= FEW and fine.off_share <= FINE_SHARE:
            found.add(kind)
            text = f"only {requests} are predicted wrong, {_how_much(off)}: {reason}"
            yield Finding(kind, text + _count_of(off))
    for form, kind, reason in (
        ("chat", "template", "the router's chat template or tokenizer is not the engine's"),
        ("text", "tokenizer", "the router's tokenizer is not the engine's"),
    ):
        off = evidence.of(lambda traits, form=form: traits.form == form)  # type: ignore[misc]
        if found.isdisjoint({kind, "tokenizer"}) and _is_off(off) and _is_miscounted(off):
            found.add(kind)
            text = f"{form}s are predicted wrong, {_how_much(off)}: {reason}{_count_of(off)}"
            yield Finding(kind, f"{text}. Do this: {OF_PODS}")


def _of_all(facts: PodFacts, whole: ReportCounts) -> Finding:
    how_much = f"predictions are wrong, {_how_much(whole)}"
    blocks = sum(rank.blocks for rank in facts.ranks)
    if not facts.has_events:
        return Finding("no-events", f"{how_much}: it has no events, and {_UNHELD}")
    if whole.share(whole.blind) > MOSTLY and blocks:
        return Finding(
            "hash-seed",
            f"{how_much}: most prompts match none of the {blocks:,} blocks that its events announced. "
            "Keys differ: check the hash seed and the model's name of its publisher, its tokenizer "
            "and template, and salts and adapters that only one side knows",
        )
    if whole.share(whole.void) > MOSTLY:
        return Finding(
            "cached-tokens",
            f"{how_much}: its engine reports no cached tokens. Its prefix cache is off, or reporting "
            "is (vLLM: --enable-prompt-tokens-details; SGLang: --enable-cache-report)",
        )
    stored = sum(rank.stored for rank in facts.ranks)
    removed = sum(rank.removed for rank in facts.ranks)
    # A publisher sends no counts of stored and removed blocks.
    if whole.over > whole.under and (not stored or removed >= CHURN * stored):
        gone = f". {removed:,} of {stored:,} stored blocks were removed" if stored else ""
        return Finding(
            "evictions",
            f"{how_much}: blocks are evicted before requests use them{gone}: its cache is too small "
            "for the prompts that are sent there",
        )
    return Finding("predictions", f"{how_much}: no cause is apparent")


def allowed_gap(*, has_events: bool) -> float:
    """Return the difference of predicted and delivered tokens up to which nothing looks wrong."""
    # Without events all holdings are beliefs, and only the share ASSUMED of them is counted on.
    return GAP if has_events else 1 - ASSUMED


def _gap(facts: PodFacts, whole: ReportCounts) -> Iterator[Finding]:
    """Yield a finding if predicted and delivered tokens differ though most predictions are right."""
    allowed = allowed_gap(has_events=facts.has_events)
    missing = whole.predicted - whole.delivered
    if whole.reports < ENOUGH or abs(whole.gap) <= allowed:
        return
    if abs(missing) <= whole.weight * facts.row.evidence.block_size:
        # Up to one block per request: engines compute the last block of short prompts again.
        return
    predicted, found = whole.predicted / whole.tokens, whole.delivered / whole.tokens
    text = (
        f"{predicted:.0%} of its last requests' tokens were predicted to be cached, "
        f"{found:.0%} were found, "
    )
    if missing < 0:
        yield Finding(
            "gap",
            f"{text}{-whole.gap:.0%} of them more than predicted: its events come late, or it gets "
            "requests that this router does not see",
        )
        return
    believed = f"{whole.believed / whole.predicted:.0%} of the predicted ones were not in any event"
    if not facts.has_events:
        reason = f"it has no events, and {_UNHELD}"
    elif whole.believed > MOSTLY * missing:
        reason = (
            "blocks that are believed to be arriving do not arrive, or are evicted before events "
            "announce them: look for requests that fail without a report, or for events that come late"
        )
    else:
        reason = (
            "blocks are evicted between pick and prefill, or events come late: look at its queue, and "
            "whether its cache is large enough for the prompts that are sent there"
        )
    yield Finding("gap", f"{text}{whole.gap:.0%} fewer; {believed}: {reason}")


def _is_off(tally: ReportCounts) -> bool:
    return tally.reports >= ENOUGH and tally.off_share > OFF_SHARE


def _is_miscounted(tally: ReportCounts) -> bool:
    return tally.miscounted_share > MOSTLY


def _count_of(tally: ReportCounts) -> str:
    if not _is_miscounted(tally):
        return ""
    return (
        " (its engine's and the router's token counts differ in "
        f"{tally.miscounted_share:.0%} of them)"
    )


def _how_much(tally: ReportCounts) -> str:
    over, under = tally.share(tally.over), tally.share(tally.under)
    return f"{tally.off_share:.0%} of the last ones ({over:.0%} too high, {under:.0%} too low)"
