"""Writes the blocks of engines that this router follows directly to the shared index, for other routers.

A publisher does the same beside its engine; this is for engines beside which no publisher can run.
Following and writing are in `indexer.watch.engine_cache` and `indexer.shared.writer`. This module adds
many pods in one process, and never takes a claim from a publisher.
"""

import secrets
import time
from collections.abc import Sequence
from functools import partial

import zmq.asyncio

from warmpath.indexer.follow.connect import Patience, connections
from warmpath.indexer.follow.instance import Engine
from warmpath.indexer.follow.stream_source import RankIngest
from warmpath.indexer.keys.key import fingerprint
from warmpath.indexer.shared.layout.names import KeyNames
from warmpath.indexer.shared.redis.command import Redis
from warmpath.indexer.shared.replica.run import Replica
from warmpath.indexer.shared.writer.machine import BUCKET_LIFE, Writer
from warmpath.indexer.shared.writer.run import News, random_base, write
from warmpath.indexer.watch.engine_cache import collect_forever, engine_cache
from warmpath.indexer.watch.watched_source import WatchedRank
from warmpath.process.tasks import Work
from warmpath.router.config import schema as config
from warmpath.router.pods.own_view import OwnView

JOURNAL_BYTES = 16 << 20
"""Most bytes of changes that are not written yet; beyond it the whole cache is written again."""
COLLECT_SECONDS = 0.02
"""How long changes are collected before a write. One router may follow a hundred engines."""
TIMEOUT_OF_A_LEASE = 0.1
"""Timeout of a write, as a share of the lease."""


class SharedWriting:
    """Follows engines and writes them to the shared index, unless another process has the claim."""

    def __init__(
        self,
        redis: Redis,
        replica: Replica,
        table: config.SharedIndexTable,
        events: config.EventsTable,
        *,
        hash_seed: str,
    ) -> None:
        self.views: dict[str, OwnView] = {}
        """The views of the pods that are followed and written, by pod."""
        self._redis = redis
        self._replica = replica
        self._table = table
        self._events = events
        self._hash_seed = hash_seed

    def works(
        self,
        engine: Engine,
        ranks: Sequence[WatchedRank],
        context: zmq.asyncio.Context,
        patience: Patience,
    ) -> tuple[Sequence[RankIngest], list[Work]]:
        """Return an engine's ranks as they are followed, and the tasks that follow and write them.

        The tasks also keep `ranks` current, the same ranks in this router's index.
        """
        cache = engine_cache(
            engine,
            hash_seed=self._hash_seed,
            journal_bytes=JOURNAL_BYTES,
            pending_bytes=self._events.pending_bytes,
            stale_after=self._events.stale_seconds,
            segmented=True,
            clock=time.monotonic,
        )
        table = self._table
        writer = Writer(
            KeyNames(table.prefix),
            cache,
            owner=secrets.token_hex(8),
            keyspace=fingerprint(engine.model, self._hash_seed),
            model=engine.model,
            watch="",
            take_over=False,
            lease=table.lease_seconds,
            bucket_life=BUCKET_LIFE,
            random_base=random_base,
            clock=time.monotonic,
        )
        view = OwnView(cache, writer, ranks, self._replica, time.monotonic)
        self.views[engine.pod] = view
        news = News()
        timeout = table.lease_seconds * TIMEOUT_OF_A_LEASE
        collect = partial(
            collect_forever, cache, [news.wake], pause=COLLECT_SECONDS, clock=time.monotonic
        )
        writing = partial(write, self._redis, writer, news, timeout=timeout)
        return cache.ranks, [
            *connections(engine, cache.ranks, context, patience),
            Work(f"collecting the changes of pod {engine.pod}", collect, view.failed),
            Work(f"choosing the view of pod {engine.pod}", view.choose_forever, view.failed),
            Work(f"writing pod {engine.pod} to the shared index", writing),
        ]

    def drop(self, pod: str) -> None:
        """Forget the view of a pod whose tasks have ended, if it has one."""
        self.views.pop(pod, None)
