"""Why predictions are off for long: from the traces of a fault to the fault. Pure.

Which requests are predicted wrong says most: a fault of one part (salt, adapter, template, tokenizer)
shows in the requests that use it and in no others.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from router.diagnosis.evidence import Evidence, Tally
from router.diagnosis.facts import Finding, PodFacts
from router.match.scorer import ASSUMED_BLOCK_SIZE
from router.pick.weigh import Traits
from scorer.warmth import ASSUMED

ENOUGH = 30
"""Reports before anything is said of them: in fewer a few evictions at once look like a fault."""
OFF_SHARE = 0.3
"""The share of wrong predictions that is a fault. Evictions and races between events and picks make
some wrong on a healthy pod; an expectation, not a measurement, as the next one."""
FINE_SHARE = 0.15
"""The share of wrong predictions up to which requests count as right, where others are off."""
GAP = 0.1
"""Between predicted and delivered tokens, as a share of the larger: the one from which on it is a
finding though most predictions are right; an expectation too."""
FEW = 10
"""Reports from which on requests may count as right."""
MOSTLY = 0.5
"""The share that makes one cause the likely one."""
DISTINCT_HITS = 3
"""Different counts of cached tokens before their common divisor says anything of blocks: one shared
prefix has the same count again and again."""
CHURN = 0.5
"""Blocks removed for each one stored, from which on a cache turns over."""
_UNHELD = (
    "what was sent there is not what it holds (its `blocks`, pick.assumed-blocks or "
    "pick.assumed-seconds may be too large or small)"
)


def mispredictions(facts: PodFacts, *, is_doubtful: bool) -> list[Finding]:
    """Return why predictions are off for long; nothing where they are not.

    `is_doubtful` says that what is known of the pod's cache is: that alone explains wrong ones.
    """
    block_size = [*_block_size(facts)]
    if block_size:
        # Nothing else can be told apart while blocks are of another size.
        return block_size
    evidence = facts.row.evidence
    apart = [*_apart(evidence)]
    if apart:
        return apart
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
        # It reuses parts of blocks: what its blocks are does not show.
        return
    of_events = max((rank.block_size for rank in facts.ranks), default=0)
    unlike = f"what its engine finds cached comes in multiples of {found} tokens"
    if of_events:
        off = sum(hit % of_events != 0 for hit in hits) / len(hits)
        # Of the multiples of another size at least every second one is none of this.
        if off > OFF_SHARE:
            yield Finding(
                "block-size",
                f"{unlike}, its events tell of blocks of {of_events}: check block-size",
            )
    elif facts.has_events:
        yield Finding("block-size", f"{unlike}, but no event has told the size of a block")
    else:
        assumed = evidence.block_size or ASSUMED_BLOCK_SIZE
        if found % assumed and _is_off(evidence.of(lambda _: True)):
            yield Finding(
                "block-size",
                f"{unlike}; without events what was sent there counts in blocks of {assumed}",
            )


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of warmpath whose fault shows in some requests only."""

    kind: str
    uses: Callable[[Traits], bool]
    spared: Callable[[Traits], bool]
    requests: str
    reason: str


_PARTS = (
    _Part(
        "cache-salt",
        lambda traits: traits.has_salt,
        lambda traits: not traits.has_salt,
        "requests with a cache salt",
        "the engine gets another salt than the router, or none",
    ),
    _Part(
        "adapter",
        lambda traits: traits.has_adapter,
        lambda traits: not traits.has_adapter,
        "requests for an adapter",
        "the engine's events name adapters otherwise than requests do",
    ),
    _Part(
        "multimodal",
        lambda traits: traits.has_items,
        lambda traits: not traits.has_items,
        "requests with images or audio",
        "the items' hashes or the places of their tokens are others than the engine's",
    ),
    _Part(
        "template",
        lambda traits: traits.form == "chat",
        lambda traits: traits.form != "chat",
        "chats",
        "the router's chat template is not the engine's",
    ),
    _Part(
        "tokenizer",
        lambda traits: traits.form != "ids",
        lambda traits: traits.form == "ids",
        "texts and chats",
        "the router's tokenizer is not the engine's",
    ),
)


def _apart(evidence: Evidence) -> Iterator[Finding]:
    """Yield what is wrong with requests of one kind only, or with the router's count of tokens."""
    found = set()
    for part in _PARTS:
        off, fine = evidence.of(part.uses), evidence.of(part.spared)
        if part.kind == "tokenizer" and "template" in found:
            continue
        if _is_off(off) and fine.reports >= FEW and fine.off_share <= FINE_SHARE:
            found.add(part.kind)
            text = f"only {part.requests} are predicted wrong, {_how_much(off)}: {part.reason}"
            yield Finding(part.kind, text + _count_of(off))
    for form, kind, reason in (
        ("chat", "template", "the router's chat template or tokenizer is not the engine's"),
        ("text", "tokenizer", "the router's tokenizer is not the engine's"),
    ):
        off = evidence.of(lambda traits, form=form: traits.form == form)  # type: ignore[misc]
        if found.isdisjoint({kind, "tokenizer"}) and _is_off(off) and _is_miscounted(off):
            found.add(kind)
            yield Finding(
                kind, f"{form}s are predicted wrong, {_how_much(off)}: {reason}{_count_of(off)}"
            )


def _of_all(facts: PodFacts, whole: Tally) -> Finding:
    """Return what is likely wrong with all requests alike."""
    how_much = f"predictions are wrong, {_how_much(whole)}"
    blocks = sum(rank.blocks for rank in facts.ranks)
    if not facts.has_events:
        return Finding(
            "no-events",
            f"{how_much}: it has no events, and {_UNHELD}",
        )
    if whole.share(whole.blind) > MOSTLY and blocks:
        return Finding(
            "hash-seed",
            f"{how_much}: nothing of most prompts is ever found among the {blocks:,} blocks that its "
            "events told of. Keys differ: the hash seed or the model's name of its publisher, its "
            "tokenizer or template, or salts and adapters that only one side knows",
        )
    if whole.share(whole.void) > MOSTLY:
        return Finding(
            "cached-tokens",
            f"{how_much}: its engine says that it found nothing. Its prefix cache is off, or it does "
            "not tell (vLLM: --enable-prompt-tokens-details; SGLang: --enable-cache-report)",
        )
    stored = sum(rank.stored for rank in facts.ranks)
    removed = sum(rank.removed for rank in facts.ranks)
    # A publisher does not tell how many blocks came and went.
    if whole.over > whole.under and (not stored or removed >= CHURN * stored):
        gone = f". {removed:,} of {stored:,} stored blocks were removed" if stored else ""
        return Finding(
            "evictions",
            f"{how_much}: blocks are gone before requests get to them{gone}: its cache is too small "
            "for what is sent there",
        )
    return Finding("predictions", f"{how_much}: no reason shows")


def _gap(facts: PodFacts, whole: Tally) -> Iterator[Finding]:
    """Yield that predicted and delivered tokens are apart, where most predictions are right."""
    # Of what is only believed to be on a pod without events a share is not counted on anyway.
    allowed = GAP if facts.has_events else 1 - ASSUMED
    missing = whole.predicted - whole.delivered
    if whole.reports < ENOUGH or abs(whole.gap) <= allowed:
        return
    if abs(missing) <= whole.weight * facts.row.evidence.block_size:
        # A block a request: short prompts' last ones are computed anew.
        return
    predicted, found = whole.predicted / whole.tokens, whole.delivered / whole.tokens
    text = (
        f"{predicted:.0%} of its last requests' tokens were predicted to be cached, "
        f"{found:.0%} were found, "
    )
    if missing < 0:
        yield Finding(
            "gap",
            f"{text}{-whole.gap:.0%} of them more than predicted: its events come late, or others send "
            "there what this router does not see",
        )
        return
    believed = f"no event had told of {whole.believed / whole.predicted:.0%} of the predicted ones"
    if not facts.has_events:
        reason = f"it has no events, and {_UNHELD}"
    elif whole.believed > MOSTLY * missing:
        reason = (
            "prompts that are believed to be on their way do not come, or are evicted before events "
            "tell of them: look for requests that fail without a report, for events that come late, "
            "and at pick.confirm-seconds"
        )
    else:
        reason = (
            "blocks are evicted between pick and prefill, or events come late: look at its queue and at "
            "its cache's size for what is sent there"
        )
    yield Finding("gap", f"{text}{whole.gap:.0%} fewer; {believed}: {reason}")


def _is_off(tally: Tally) -> bool:
    return tally.reports >= ENOUGH and tally.off_share > OFF_SHARE


def _is_miscounted(tally: Tally) -> bool:
    return tally.miscounted_share > MOSTLY


def _count_of(tally: Tally) -> str:
    if not _is_miscounted(tally):
        return ""
    return f" (its engine counts other tokens than the router in {tally.miscounted_share:.0%})"


def _how_much(tally: Tally) -> str:
    over, under = tally.share(tally.over), tally.share(tally.under)
    return f"{tally.off_share:.0%} of the last ones ({over:.0%} too high, {under:.0%} too low)"
