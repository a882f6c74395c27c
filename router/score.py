"""From a prompt's tokens to what every rank holds of it, and to scores."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from indexer.extra import Item, extras_of
from indexer.ingest import Ingest, RankIngest
from indexer.key import Keyspace, chain
from indexer.token import TOKEN_BYTES
from indexer.trust import Level
from scorer.match import Match, match_of
from scorer.strategy import Strategy

NOTHING = Match((), 0)


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

    def keys(self, block_size: int, hash_seed: str) -> list[int]:
        """Return the keys of the blocks that a request could find cached.

        The last token is always computed anew, so a block that ends with it does not count
        (`shared/engine-events.md`, 4.3).
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
        return chain(root, self.ids[: blocks * block_size * TOKEN_BYTES], block_size, extras)


@dataclass(frozen=True, slots=True)
class RankScore:
    """What one rank holds of a prompt, and what a strategy makes of it."""

    rank: RankIngest
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
        self, prompt: TokenPrompt, ranks: Iterable[RankIngest], strategy: Strategy
    ) -> Iterator[RankScore]:
        """Yield each rank's score, in the order given.

        Keys are computed once for each block size among the ranks. A rank whose stream is gone
        scores nothing: what it held says nothing of what it holds.
        """
        by_size: dict[int, dict[RankIngest, Match]] = {}
        for rank in ranks:
            size = rank.resolver.block_size
            if not size or rank.trust.level is Level.STALE:
                yield RankScore(rank, 0.0, NOTHING)
                continue
            if size not in by_size:
                by_size[size] = self._matches(prompt, size)
            match = by_size[size].get(rank, NOTHING)
            yield RankScore(rank, strategy(match), match)

    def _matches(self, prompt: TokenPrompt, block_size: int) -> dict[RankIngest, Match]:
        """Return what each rank that holds anything of the prompt holds."""
        held: dict[RankIngest, list[tuple[int, int, list[str]]]] = {}
        ingest = self._ingest
        for run in ingest.index.holders(prompt.keys(block_size, self._hash_seed)):
            for slot in run.slots:
                place = ingest.slots.place(slot)
                rank = ingest.rank(place.pod, place.rank) if place else None
                if place is None or rank is None:
                    continue
                runs = held.setdefault(rank, [])
                if runs and runs[-1][0] == run.start:
                    runs[-1][2].append(place.tier)
                else:
                    runs.append((run.start, run.stop, [place.tier]))
        return {rank: match_of(runs, block_size) for rank, runs in held.items()}
