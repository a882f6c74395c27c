"""Chooses what answers for a pod that this router follows and writes: its own view, or the shared index.

The own view is made of the engine's events, so nothing that befalls Redis or another router changes it.
The shared index answers for ranks that another router writes and knows better: the engine ran before
this router did and replays nothing, or its events do not arrive here.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from warmpath.indexer.follow.stream_source import RankIngest
from warmpath.indexer.resolve.change import Change
from warmpath.indexer.shared.replica.run import Replica
from warmpath.indexer.shared.writer.machine import Writer
from warmpath.indexer.trust import PROMISED_SECONDS, Level
from warmpath.indexer.watch.pod_cache import PodCache
from warmpath.indexer.watch.watched_source import WatchedRank
from warmpath.proto.pb.warmpath.watch.v1 import cache_watch_pb2 as pb

CHOICE_SECONDS = 0.1
"""Seconds between two choices."""
PATIENCE_SECONDS = PROMISED_SECONDS
"""How long the own view may be in doubt before the shared index is read: most doubts end sooner."""
BY_INDEX = "by the shared index: "
"""The beginning of a trust's reason where the shared index answers."""
ORDER = (Level.COLD, Level.STALE, Level.DEGRADED, Level.EXACT)
"""The levels, the best one last."""


class OwnView:
    """One pod: the ranks that answer, each fed by this router's own view or by the shared index.

    `cache` follows the engine, `writer` writes what it holds, `replica` copies `ranks` from the shared
    index. Until the first choice the shared index answers for all.
    """

    def __init__(
        self,
        cache: PodCache,
        writer: Writer,
        ranks: Sequence[WatchedRank],
        replica: Replica,
        clock: Callable[[], float],
    ) -> None:
        self.pod = cache.pod
        self.writer = writer
        self.by_index: frozenset[int] = frozenset()
        """The numbers of the ranks for which the shared index answers."""
        self._cache = cache
        self._ranks = ranks
        self._replica = replica
        self._clock = clock
        self._leave_all_to_index()
        cache.told = self._told

    def _leave_all_to_index(self) -> None:
        for rank in self._ranks:
            rank.told_by = BY_INDEX
        self.by_index = frozenset(range(len(self._ranks)))
        self._replica.copy_only(self.pod, self.by_index)

    def answers(self) -> Mapping[int, bool]:
        """Return for each rank whether the own view answers."""
        return {rank.number: rank.number not in self.by_index for rank in self._ranks}

    def _told(self, state: pb.RankState, changes: Sequence[Change]) -> None:
        if state.rank not in self.by_index:
            self._ranks[state.rank].take_changes(changes, state)

    async def choose_forever(self) -> NoReturn:
        """Choose again and again."""
        while True:
            self.choose()
            await asyncio.sleep(CHOICE_SECONDS)

    def failed(self, _: str) -> None:
        """Let the own view be taken anew by the next choice: an error may have left it incomplete."""
        self._leave_all_to_index()

    def choose(self) -> None:
        """Choose for each rank what answers."""
        # What is collected only later would be told of a rank that has it already.
        self._cache.collect()
        both = list(zip(self._cache.ranks, self._ranks, strict=True))
        chosen = frozenset(rank.number for own, rank in both if self._is_index_better(own, rank))
        before, self.by_index = self.by_index, chosen
        if chosen != before:
            self._replica.copy_only(self.pod, chosen)
        for own, rank in both:
            if rank.number in chosen:
                rank.told_by = BY_INDEX
                continue
            if rank.number in before:
                self._take_over(rank)
            if own.is_connected:
                rank.heard()
                rank.connected()
            else:
                rank.disconnected(own.trust.reason)

    def _is_index_better(self, own: RankIngest, rank: WatchedRank) -> bool:
        level = own.trust.level
        # With the claim, the shared index has what this router has written itself.
        if level is Level.EXACT or self.writer.token:
            return False
        is_chosen = rank.number in self.by_index
        if not is_chosen and self._clock() - own.inexact_since < PATIENCE_SECONDS:
            return False
        said = self._replica.level(self.pod, rank.number)
        if said is None:
            # What was copied before may be believed as far as the copy says.
            said = rank.trust.level if is_chosen else Level.COLD
        there, here = ORDER.index(said), ORDER.index(level)
        return there > here or (is_chosen and there == here)

    def _take_over(self, rank: WatchedRank) -> None:
        rank.told_by = ""
        rank.take_whole(*self._cache.held(rank.number))
        # What was said of the copy does not hold for it.
        rank.connected()
        rank.limit("")
