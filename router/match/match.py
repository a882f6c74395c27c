"""Computes how much of a prompt a request can reuse on each rank, and the trust in that, in one walk.

One file, since the steps of the walk share its state.
"""

import logging
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from msgspec.structs import replace

from warmpath.indexer.believed import Believed
from warmpath.indexer.embedded import packed_keys
from warmpath.indexer.engines.cache_groups import Layout, Lookahead
from warmpath.indexer.index.slot import RankName
from warmpath.indexer.keys.key import WORD_BYTES, Chain
from warmpath.indexer.rank import Rank
from warmpath.indexer.ranks import Ingest
from warmpath.indexer.trust import Level, Trust
from warmpath.router.match.forms import UNKNOWN, BlockForm, KeptForms, Layouts
from warmpath.router.tracing.steps import NO_STEPS, Step, Steps
from warmpath.scorer.match import NOTHING, Match, Span, Window, match_of, reusable, spans_of
from warmpath.scorer.strategies import LEADING, Strategy

log = logging.getLogger(__name__)

Held = tuple[int, int, int, str]
"""The number of a cache group, blocks of it (first, past the last) and the tier that holds them."""

Stretches = list[tuple[int, int, str]]
"""Blocks (first, past the last) and the tier that holds them."""

Beliefs = dict[tuple[str, int], tuple[int, int]]
"""How many leading blocks each rank is believed to hold: (arriving, assumed)."""


def share(held: dict[Rank, list[Held]], ranks: Iterable[Rank], tiers: Collection[str]) -> None:
    """Give each of `ranks` the blocks that any of them holds in the shared tiers."""
    pool = {piece for pieces in held.values() for piece in pieces if piece[3] in tiers}
    for rank in ranks if pool else ():
        own = held.setdefault(rank, [])
        own.extend(pool.difference(own))


def reusable_match(held: Sequence[Held], layout: Layout, blocks: int) -> Match:
    """Return how much of a prompt's `blocks` a rank can reuse, given the stretches that it holds."""
    if len(held) == 1 and held[0][0] == layout.only:
        return match_of((held[0][1:],), layout.block_size)
    stretches: dict[int, Stretches] = {}
    for number, start, stop, tier in held:
        stretches.setdefault(number, []).append((start, stop, tier))
    groups = layout.groups
    if layout.only is not None:
        return match_of(stretches.get(layout.only, []), layout.block_size)
    size, full = layout.block_size, layout.prefix
    spans = {number: spans_of(of) for number, of in stretches.items()}
    shown = spans.get(full[0], ()) if full else (Span(0, blocks, "gpu"),)
    by_tier = stretches.get(full[0], ()) if full else shown
    prefix = min((_leading(spans.get(number, ())) for number in full), default=blocks)
    windows = [
        Window(
            _joined(spans.get(number, ())),
            step=max(1, group.block_size // size),
            needed=math.ceil(group.needed * min(1.0, group.block_size / size)),
        )
        for number, group in groups.items()
        if group.needed
    ]
    align = math.lcm(*(max(1, groups[number].block_size // size) for number in groups))
    most = reusable(prefix, windows, align)
    kept = [Span(start, min(stop, most), tier) for start, stop, tier in shown if start < most]
    return Match(tuple(kept), size, held=by_tier)


def _joined(spans: Sequence[Span]) -> list[tuple[int, int]]:
    """Return spans, in order and apart, as (first, past the last), with adjacent ones joined."""
    found: list[tuple[int, int]] = []
    for start, stop, _ in spans:
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], stop)
        else:
            found.append((start, stop))
    return found


def _leading(spans: Sequence[Span]) -> int:
    joined = _joined(spans)
    return joined[0][1] if joined and joined[0][0] == 0 else 0


class Matches(dict[Rank, Match]):
    """The match of each rank that holds, or is believed to hold, any block of a prompt.

    `trusts` has the trust at the look-up of each rank that holds a block, and of every rank in shared
    mode, since a look-up in Redis may time out for one prompt and not for another; others have the
    rank's own. `chains` has the prompt's blocks that were looked up, by their form, and `texts` those of
    its bytes, unless its tokens are always known.
    """

    __slots__ = ("chains", "texts", "trusts")

    def __init__(self) -> None:
        super().__init__()
        self.chains: dict[BlockForm, Chain] = {}
        self.texts: dict[BlockForm, Chain] = {}
        self.trusts: dict[Rank, Trust] = {}

    def trust(self, rank: Rank) -> Trust:
        return self.trusts.get(rank) or rank.trust


def _with_text(beliefs: Beliefs, of_text: Beliefs, sought: Chain, text: Chain) -> Beliefs:
    """Return beliefs by a prompt's tokens or, if more, by its bytes, in blocks of tokens."""
    scale = sought.blocks / max(1, text.blocks)
    found = {**beliefs}
    for name, blocks in of_text.items():
        by_tokens = found.get(name, (0, 0))
        arriving, assumed = (
            max(one, int(of * scale)) for one, of in zip(by_tokens, blocks, strict=True)
        )
        found[name] = arriving, assumed
    return found


UNMATCHED = "its blocks cannot be matched with prompts: a bug of ours"

UNKNOWN_PAST = "the blocks that it held when the request began are not known"

BLIND = (
    "blind: the prompt's tokens are not known; what is cached is estimated from where this router has "
    "sent its text"
)
"""The reason of the trust in matches of a prompt that has bytes in place of tokens."""

ASSUMED_BLOCK_SIZE = 64
"""Tokens per block in beliefs about a rank whose block size no event has shown."""


class KeyedPrompt(Protocol):
    """A prompt in the form that the scorer needs (`router.prompt.token_prompt`)."""

    @property
    def model(self) -> str:
        """The base model's name."""

    @property
    def tokens(self) -> int:
        """The number of tokens."""

    @property
    def is_blind(self) -> bool:
        """Whether its keys are made of bytes, since its tokens are not known: no event has such keys."""

    @property
    def by_bytes(self) -> "KeyedPrompt | None":
        """The prompt with keys of its text's bytes, as if no tokens were known; None without text."""

    def chain(
        self, block_size: int, hash_seed: str, *, lookahead: Lookahead = Lookahead.NONE
    ) -> Chain:
        """Return the blocks that a request could find cached."""


class Elsewhere(Protocol):
    """Prompts that other routers have sent and no event has announced (`router.peers.marks`)."""

    def __bool__(self) -> bool:
        """Return whether any prompt is on its way."""

    def match(self, keys: bytes) -> Mapping[RankName, int]:
        """Return how many leading blocks of a prompt are on their way to each rank, by packed keys."""


class Scorer:
    """Scores prompts by one ingest's index and by beliefs.

    `shared_tiers` names, by model, the tiers that all its pods share: a block that one rank holds
    there, all hold. `elsewhere` are other routers' beliefs. `assumed_block_size` is for models whose
    block size no event has shown yet.
    """

    def __init__(
        self,
        ingest: Ingest,
        hash_seed: str,
        *,
        believed: Believed | None = None,
        elsewhere: Elsewhere | None = None,
        shared_tiers: Mapping[str, Collection[str]] = MappingProxyType({}),
        assumed_block_size: int = ASSUMED_BLOCK_SIZE,
        steps: Steps = NO_STEPS,
    ) -> None:
        self.remote = ingest.remote
        """The shared index that `refresh` asks; None outside shared mode."""
        self._steps = steps
        self._ingest = ingest
        self._hash_seed = hash_seed
        self._believed = believed
        self._elsewhere = elsewhere
        self._shared_tiers = shared_tiers
        self._assumed_form: BlockForm = (assumed_block_size, Lookahead.NONE)
        self._usual_form: dict[str, BlockForm] = {}
        self._forms = KeptForms(ingest, believed)

    def matches(
        self,
        prompt: KeyedPrompt,
        ranks: Sequence[Rank],
        strategy: Strategy,
        *,
        stale_since: float = math.inf,
        as_of: float | None = None,
    ) -> Matches:
        """Return how much of the prompt each rank could reuse, for ranks that hold any block of it.

        Only the blocks that the strategy needs are looked up. Keys are computed once for each form of
        blocks. A rank whose stream ended before `stale_since` (the ingest's clock) has no known match,
        since its cache may have changed since then. With `as_of` (the same clock) the matches are those
        of that time, as far as the ingest knows its past; where it does not, no rank is exact.
        """
        self._ingest.expire()
        forms = self._forms.of(ranks)
        # A cache with a sliding window may hold later blocks without the prompt's beginning.
        leading = strategy in LEADING and forms.has_prefix
        shared = self._shared_tiers.get(prompt.model, ())
        of_form = {**forms.known}
        if forms.usual is not None:
            self._usual_form[prompt.model] = forms.usual
        if forms.unknown and self._believed is not None:
            assumed = self._form(prompt.model, UNKNOWN)
            of_form[assumed] = {**of_form.get(assumed, {}), **forms.unknown}
        matches = Matches()
        by_bytes = prompt.by_bytes
        for form, alike in of_form.items():
            sought = matches.chains[form] = self._sought(prompt, form)
            held: dict[Rank, list[Held]] = {}
            if prompt.is_blind:
                blind = ((rank, Trust(Level.DEGRADED, BLIND, rank.trust.since)) for rank in alike)
                matches.trusts.update(blind)
            else:
                held = self._held(sought, alike, matches.trusts, leading=leading, as_of=as_of)
            if shared:
                share(held, alike, shared)
            self._match_all(matches, held, alike, stale_since, sought.blocks)
            beliefs = self._beliefs(sought, matches)
            if by_bytes is not None:
                text = matches.texts[form] = self._sought(by_bytes, form)
                beliefs = _with_text(beliefs, self._beliefs(text, matches), sought, text)
            self._believe(matches, beliefs, alike, sought.block_size)
        return matches

    def keys(self, prompt: KeyedPrompt, ranks: Sequence[Rank]) -> dict[BlockForm, bytes]:
        """Return the packed keys of a prompt's blocks, by each known or assumed form of these ranks."""
        shown = {rank.layout.form for rank in ranks}
        forms = {self._form(prompt.model, form) for form in shown}
        return {
            (size, lookahead): packed_keys(prompt.chain(size, self._hash_seed, lookahead=lookahead))
            for size, lookahead in forms
        }

    def came(self, pod: str, rank: int) -> tuple[int | None, Trust] | None:
        """Return a value that changes whenever `has_announced` may; None: that may change without it."""
        known = self._ingest.rank(pod, rank)
        if known is None or (known.sequence is None and known.trust.level is Level.EXACT):
            return None
        return known.sequence, known.trust

    def has_announced(self, pod: str, rank: int, keys: bytes) -> bool:
        """Return whether a rank holds all blocks with these packed keys according to its events.

        Engines store a prompt's blocks in order, so the last block of each group suffices. The result
        is False for ranks in shared mode, whose blocks only Redis knows, and for ranks that are not
        exact.
        """
        known = self._ingest.rank(pod, rank)
        if known is None or known.is_remote or known.trust.level is not Level.EXACT:
            return False
        ends = known.layout.ends(len(keys) // WORD_BYTES)
        for end, groups in ends.items():
            key = keys[(end - 1) * WORD_BYTES : end * WORD_BYTES]
            if not groups <= self._holding(pod, rank, key):
                return False
        return bool(ends)

    def _holding(self, pod: str, rank: int, key: bytes) -> set[int]:
        """Return the groups of a rank's cache in which it holds a block, by its packed key."""
        chain = Chain(0, b"", 1, 1, (), key)
        return {
            place.group
            for place, _, _ in self._ingest.match(chain)
            if (place.pod, place.rank) == (pod, rank)
        }

    def form(self, model: str, pod: str, rank: int) -> BlockForm:
        """Return the form of a rank's blocks.

        While no event has shown it, the form of most of the model's ranks, or else the configured one,
        is assumed.
        """
        known = self._ingest.rank(pod, rank)
        form = known.layout.form if known else UNKNOWN
        return form if form[0] else self._form(model, form)

    def _form(self, model: str, form: BlockForm) -> BlockForm:
        """Return a form; if it is unknown, that of most of the model's ranks, or the assumed one."""
        return form if form[0] else self._usual_form.get(model, self._assumed_form)

    def held_tokens(self, model: str, rank: Rank) -> int:
        """Return how many tokens a model's rank holds, by its events or, if more, by beliefs."""
        blocks = sum(rank.blocks().values())
        if self._believed is not None and rank.trust.level is not Level.EXACT:
            blocks = max(blocks, self._believed.count(rank.pod, rank.number))
        return blocks * self._form(model, rank.layout.form)[0]

    async def refresh(self, prompt: KeyedPrompt, ranks: Sequence[Rank], timeout: float) -> None:
        """Read a prompt's keys from the shared index into memory, within `timeout` seconds.

        It raises nothing: a key that was not read in time lowers the trusts in the prompt's `Matches`.
        """
        if self.remote is None or prompt.is_blind:
            return
        known = [rank for rank in ranks if rank.is_remote and rank.layout.block_size]
        if known:
            with self._steps.step(Step.LOOK_UP):
                await self.remote.refresh(self.keys(prompt, known).values(), timeout)

    def _sought(self, prompt: KeyedPrompt, form: BlockForm) -> Chain:
        chain = prompt.chain(form[0], self._hash_seed, lookahead=form[1])
        # The index and the beliefs are both looked up, so the keys are made once for the two.
        if self._believed or self._elsewhere:
            return replace(chain, made=packed_keys(chain))
        return chain

    def _held(
        self,
        sought: Chain,
        wanted: Layouts,
        trusts: dict[Rank, Trust],
        *,
        leading: bool,
        as_of: float | None,
    ) -> dict[Rank, list[Held]]:
        """Return the blocks that ranks hold; add trusts of ranks in shared mode to `trusts`."""
        held: dict[Rank, list[Held]] = {}
        rank_of = self._ingest.ranks.get
        past = self._ingest.past
        found = self._ingest.match(sought, leading=leading and as_of is None)
        if as_of is not None:
            if past is not None:
                found = past.rewound(found, packed_keys(sought), as_of)
            for rank in wanted:
                trust = rank.trust
                if trust.level is Level.EXACT and not (past and past.knows(rank, as_of)):
                    trusts[rank] = Trust(Level.DEGRADED, UNKNOWN_PAST, trust.since)
        if self.remote is not None:
            there, doubt = self.remote.match(sought, leading=leading)
            found += there
            trusts |= {rank: rank.in_answer(doubt) for rank in wanted if rank.is_remote}
        for place, start, stop in found:
            holder = rank_of(place.name)
            if holder is not None:
                piece = (place.group, start, stop, place.tier)
                if holder in held:
                    held[holder].append(piece)
                else:
                    held[holder] = [piece]
        return held

    def _match_all(
        self,
        matches: Matches,
        held: Mapping[Rank, list[Held]],
        wanted: Layouts,
        stale_since: float,
        blocks: int,
    ) -> None:
        """Add the matches of the ranks `wanted`, which have one form, with a prompt's `blocks`."""
        trusts = matches.trusts
        layout_of, trust_of, stale = wanted.get, trusts.get, Level.STALE
        # Most ranks hold one stretch, and few stretches differ.
        of_piece: dict[Held, Match] = {}
        for rank, pieces in held.items():
            layout = layout_of(rank)
            if layout is None:
                continue
            trust = trust_of(rank)
            if trust is None:
                trust = trusts[rank] = rank.trust
            if trust.level is stale and trust.since < stale_since:
                continue
            piece = pieces[0]
            is_alone = len(pieces) == 1 and piece[0] == layout.only
            match = of_piece.get(piece) if is_alone else None
            if match is None:
                try:
                    match = reusable_match(pieces, layout, blocks)
                except Exception:
                    # One pod's odd events must not fail the answer about the others.
                    if UNMATCHED not in rank.trust.reason:
                        log.exception("pod %s rank %d: %s", rank.pod, rank.number, UNMATCHED)
                    rank.limit(UNMATCHED, UNMATCHED)
                    continue
                if is_alone:
                    # Ranks of one form have blocks of the same size.
                    of_piece[piece] = match
            matches[rank] = match

    def _believe(
        self, matches: Matches, beliefs: Beliefs, wanted: Layouts, block_size: int
    ) -> None:
        """Add what is believed of the ranks `wanted` to their matches."""
        for name, (arriving, sent) in beliefs.items():
            holder = self._ingest.rank(*name)
            if holder is None or holder not in wanted:
                continue
            # An exact view replaces assumptions about prompts sent before its events came.
            assumed = 0 if matches.trust(holder).level is Level.EXACT else sent
            if arriving or assumed:
                known = matches.get(holder, NOTHING)
                matches[holder] = Match(
                    known.spans,
                    block_size,
                    held=known.held,
                    arriving_tokens=arriving * block_size,
                    assumed_tokens=assumed * block_size,
                )

    def _beliefs(self, sought: Chain, matches: Matches) -> Beliefs:
        """Return what is believed of each rank, given the `matches` by events.

        The index of beliefs has a prompt's blocks from the first one that its rank did not hold. They
        count while events tell that the rank holds all blocks before them; if it loses one of those, the
        rank has no more than its events tell until they announce that block anew.
        """
        found: Beliefs = {}
        if self._believed:
            for belief, start, stop in self._believed.match(sought, leading=False):
                arriving, assumed = found.get(name := belief[:2], (0, 0))
                if belief.kind == "arriving":
                    holder = start > arriving and self._ingest.rank(*name)
                    known = matches.get(holder, NOTHING).known_tokens if holder else 0
                    if start <= max(arriving, known // sought.block_size):
                        arriving = stop
                elif not start:
                    assumed = stop
                found[name] = arriving, assumed
        if self._elsewhere:
            for name, blocks in self._elsewhere.match(sought.made).items():
                arriving, assumed = found.get(name, (0, 0))
                found[name] = max(arriving, blocks), assumed
        return found
