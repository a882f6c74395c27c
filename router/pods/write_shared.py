"""Direct mode: a router that writes what it follows to the shared index, where nobody else does.

A publisher does the same beside its engine. This way is for engines beside which nothing can run: one
router follows them, and the others read from Redis what it wrote. Following and writing are indexer's
(`indexer.watch.engine_cache`, `indexer.shared.writer`); here is only what differs: many pods in one
process, and no claim taken from a publisher.
"""

import secrets
import time
from collections.abc import Sequence
from functools import partial

import zmq.asyncio

from indexer.follow.connect import Engine, Patience, connections
from indexer.follow.rank_ingest import RankIngest
from indexer.keys.key import fingerprint
from indexer.process.tasks import Work
from indexer.shared.layout.names import Names
from indexer.shared.redis.command import Redis
from indexer.shared.writer.machine import BUCKET_LIFE, Writer
from indexer.shared.writer.run import News, random_base, write
from indexer.watch.engine_cache import collect_forever, engine_cache
from router.config import schema as config

JOURNAL_BYTES = 16 << 20
"""Changes that are not written yet; past it everything is written anew."""
COLLECT_SECONDS = 0.02
"""How long a change may wait to be written. One router may follow a hundred engines, each in a loop."""
TIMEOUT_OF_A_LEASE = 0.1


class SharedWriting:
    """Follows engines for the shared index. Others' claims are respected: the first one writes."""

    def __init__(
        self, redis: Redis, table: config.SharedIndex, events: config.Events, *, hash_seed: str
    ) -> None:
        self.writers: dict[str, Writer] = {}
        """Those that run, by pod."""
        self._redis = redis
        self._table = table
        self._events = events
        self._hash_seed = hash_seed

    def works(
        self, engine: Engine, context: zmq.asyncio.Context, patience: Patience
    ) -> tuple[Sequence[RankIngest], list[Work]]:
        """Return an engine's ranks as they are followed, and what is to run for them."""
        cache = engine_cache(
            engine,
            hash_seed=self._hash_seed,
            journal_bytes=JOURNAL_BYTES,
            pending_bytes=self._events.pending_bytes,
            orphan_bytes=self._events.orphan_bytes,
            stale_after=self._events.stale_seconds,
            segmented=True,
            clock=time.monotonic,
        )
        table = self._table
        writer = self.writers[engine.pod] = Writer(
            Names(table.prefix),
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
        news = News()
        timeout = table.lease_seconds * TIMEOUT_OF_A_LEASE
        collect = partial(collect_forever, cache, [news.tell], pause=COLLECT_SECONDS)
        writing = partial(write, self._redis, writer, news, timeout=timeout)
        return cache.ranks, [
            *connections(engine, cache.ranks, context, patience),
            Work(f"collecting the changes of pod {engine.pod}", collect),
            Work(f"writing pod {engine.pod} to the shared index", writing),
        ]

    def drop(self, pod: str) -> None:
        """Forget a pod whose works were ended; it need not be one of them."""
        self.writers.pop(pod, None)
