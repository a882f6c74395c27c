"""Pods' caches as routers hear of them: by an engine's events, or by the prompts that were sent.

Events arrive as a publisher's deltas of block keys: where an engine holds several copies of a block, its
key is added with the first copy and removed with the last.
"""

from collections import OrderedDict
from collections.abc import Sequence

from warmpath.indexer.engines.event import Tier
from warmpath.indexer.keys.key import pack_words
from warmpath.indexer.resolve.holding import Holding
from warmpath.indexer.watch.watched_source import WatchedRank
from warmpath.lab.simworker.v1.cache.kv_cache_event import BlockRemoved, BlockStored, CacheEvent
from warmpath.proto.pb.warmpath.watch.v1 import cache_watch_pb2 as pb


class Followed:
    """One rank's cache as a publisher beside its engine would follow it.

    With `is_shared` several engines send events of one cache; a block then counts once.
    """

    def __init__(self, rank: WatchedRank, block_size: int, *, is_shared: bool = False) -> None:
        self._rank = rank
        self._is_shared = is_shared
        self._held = Holding()
        self._state = pb.RankState(
            trust="exact",
            reason="followed from the engine's start",
            groups=[pb.Group(number=0, kind="full_attention", block_size=block_size)],
        )
        rank.connected()
        rank.take_state(self._state)

    def died(self) -> None:
        """End the stream of events: the engine is dead."""
        self._rank.disconnected("the engine died")

    def began_anew(self) -> None:
        """Follow the engine that takes the dead one's place, from its start."""
        self._held = Holding()
        self._rank.connected()
        self._rank.begin_snapshot()
        self._rank.end_snapshot()
        self._rank.take_state(self._state)

    def take(self, events: Sequence[CacheEvent]) -> None:
        changes = []
        gone: list[int] = []
        for event in events:
            if isinstance(event, BlockRemoved):
                # vLLM names each evicted block in an event of its own; one change has them all.
                for name in event.block_hashes:
                    gone += self._release(int(name))
            elif isinstance(event, BlockStored):
                if gone:
                    changes.append(_gone(gone))
                    gone = []
                fresh = [key for name in event.block_hashes for key in self._hold(int(name))]
                changes.append(_added(fresh))
        if gone:
            changes.append(_gone(gone))
        if changes:
            self.change(changes)

    def _hold(self, name: int) -> Sequence[int]:
        if self._is_shared and name in self._held.copies:
            return ()
        return self._held.hold(name, (name,))

    def _release(self, name: int) -> Sequence[int]:
        if self._is_shared and name not in self._held.copies:
            return ()
        return self._held.release(name, (name,))

    def change(self, changes: Sequence[pb.Change]) -> None:
        self._rank.take_delta(pb.Delta(changes=changes, state=self._state))


def _added(keys: Sequence[int]) -> pb.Change:
    return pb.Change(added=pb.Keys(tier=Tier.GPU, keys=pack_words(keys)))


def _gone(keys: Sequence[int]) -> pb.Change:
    return pb.Change(gone=pb.Keys(tier=Tier.GPU, keys=pack_words(keys)))


class Record:
    """An LRU of the prompts sent to a pod; the router gets its changes in place of events."""

    def __init__(self, followed: Followed, blocks: int) -> None:
        self._followed = followed
        self._blocks = blocks
        self._sent: OrderedDict[int, None] = OrderedDict()

    def send(self, keys: Sequence[int]) -> None:
        sent = self._sent
        fresh = [key for key in keys if key not in sent]
        for key in reversed(keys):
            sent[key] = None
            sent.move_to_end(key)
        gone = []
        while len(sent) > self._blocks:
            gone.append(sent.popitem(last=False)[0])
        self._followed.change([_added(fresh), _gone(gone)])
