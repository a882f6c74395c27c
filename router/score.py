"""From a prompt's tokens to what every rank holds of it, and to scores."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from indexer.engines.event import Tier
from indexer.extra import Item, extras_of, next_token
from indexer.group import Layout
from indexer.ingest import Ingest
from indexer.key import Keyspace, chain
from indexer.rank import Rank
from indexer.token import TOKEN_BYTES, unpack_tokens
from indexer.trust import Level
from scorer.match import Match, match_of
from scorer.reuse import Window, reusable
from scorer.strategy import Strategy

NOTHING = Match((), 0)

Runs = list[tuple[int, int, list[Tier]]]
"""Blocks (first, past the last) and the tiers that hold them, in order."""


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """A prompt as engines cache it.

    `ids` are packed little-endian uint32. `reads_cache` is False for a request that an engine
    computes anew whatever it holds (`router.prompt`).
    """

    model: str
    ids: bytes
    lora: str = ""
    cache_salt: str = ""
    items: tuple[Item, ...] = ()
    reads_cache: bool = True

    @property
    def tokens(self) -> int:
        """The number of tokens."""
        return len(self.ids) // TOKEN_BYTES

    def keys(self, block_size: int, hash_seed: str, *, lookahead: bool = False) -> list[int]:
        """Return the keys of the blocks that a request could find cached.

        The last token is always computed anew, so a block that ends with it does not count
        (`shared/engine-events.md`, 4.3). With `lookahead` a block names the token after it too.
        """
        if not self.reads_cache or not self.ids:
            return []
        blocks = (self.tokens - 1) // block_size
        root = Keyspace(
            model=self.model,
            block_size=block_size,
            lora=self.lora,
            cache_salt=self.cache_salt,
            hash_seed=hash_seed,
        ).root()
        extras = extras_of(self.items, block_size, blocks)
        if lookahead:
            ids = unpack_tokens(self.ids)
            extras = [next_token(ids[(block + 1) * block_size]) for block in range(blocks)]
        return chain(root, self.ids[: blocks * block_size * TOKEN_BYTES], block_size, extras)


@dataclass(frozen=True, slots=True)
class RankScore:
    """What one rank holds of a prompt, and what a strategy makes of it."""

    rank: Rank
    score: float
    match: Match

    @property
    def matched_tokens(self) -> int:
        """The leading tokens that a request would find cached."""
        return sum(self.match.tokens_by_tier().values())


class Scorer:
    """Scores prompts over one ingest's index."""

    def __init__(self, ingest: Ingest, hash_seed: str) -> None:
        self._ingest = ingest
        self._hash_seed = hash_seed

    def score(
        self, prompt: TokenPrompt, ranks: Iterable[Rank], strategy: Strategy
    ) -> Iterator[RankScore]:
        """Yield each rank's score, in the order given.

        Keys are computed once for each block size among the ranks. A rank whose stream is gone
        scores nothing: what it held says nothing of what it holds.
        """
        by_form: dict[tuple[int, bool], dict[Rank, Match]] = {}
        for rank in ranks:
            form = rank.layout.block_size, rank.layout.lookahead
            if not form[0] or rank.trust.level is Level.STALE:
                yield RankScore(rank, 0.0, NOTHING)
                continue
            if form not in by_form:
                by_form[form] = self._matches(prompt, *form)
            match = by_form[form].get(rank, NOTHING)
            yield RankScore(rank, strategy(match), match)

    def _matches(self, prompt: TokenPrompt, block_size: int, lookahead: bool) -> dict[Rank, Match]:
        """Return what each rank that holds anything of the prompt could reuse of it."""
        held: dict[Rank, dict[int, Runs]] = {}
        ingest = self._ingest
        keys = prompt.keys(block_size, self._hash_seed, lookahead=lookahead)
        for run in ingest.index.holders(keys):
            for slot in run.slots:
                place = ingest.slots.place(slot)
                rank = ingest.rank(place.pod, place.rank) if place else None
                if place is None or rank is None:
                    continue
                runs = held.setdefault(rank, {}).setdefault(place.group, [])
                if runs and runs[-1][0] == run.start:
                    runs[-1][2].append(place.tier)
                else:
                    runs.append((run.start, run.stop, [place.tier]))
        return {
            rank: match_of(_usable(groups, rank.layout, len(keys)), block_size)
            for rank, groups in held.items()
        }


def _usable(held: Mapping[int, Runs], layout: Layout, blocks: int) -> Runs:
    """Return the runs of a prompt's `blocks` that count, given those of each cache group."""
    groups = layout.groups
    if len(groups) < 2 and not any(group.needed for group in groups.values()):
        return held.get(next(iter(groups), 0), [])
    size, full = layout.block_size, layout.prefix
    shown = held.get(full[0], []) if full else [(0, blocks, [Tier.GPU])]
    prefix = min((_leading(held.get(number, [])) for number in full), default=blocks)
    windows = [
        Window(
            [(start, stop) for start, stop, _ in _joined(held.get(number, []))],
            step=max(1, group.block_size // size),
            needed=math.ceil(group.needed * min(1.0, group.block_size / size)),
        )
        for number, group in groups.items()
        if group.needed
    ]
    align = math.lcm(*(max(1, groups[number].block_size // size) for number in groups))
    most = reusable(prefix, windows, align)
    return [(start, min(stop, most), tiers) for start, stop, tiers in shown if start < most]


def _joined(runs: Runs) -> Runs:
    """Return runs of which no two touch."""
    found: Runs = []
    for start, stop, tiers in runs:
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], stop, tiers)
        else:
            found.append((start, stop, tiers))
    return found


def _leading(runs: Runs) -> int:
    """Return how many blocks are held from the first on."""
    joined = _joined(runs)
    return joined[0][1] if joined and joined[0][0] == 0 else 0
