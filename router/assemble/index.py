"""Builds the index, and the parts that keep it current with each pod."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from warmpath.indexer.compiled.memory import Memory
from warmpath.indexer.embedded import embedded_index
from warmpath.indexer.follow.instance import EngineTls
from warmpath.indexer.index.slot import RankName
from warmpath.indexer.mirror import Mirror
from warmpath.indexer.past import Past
from warmpath.indexer.processes.heritage import Heir, inherited
from warmpath.indexer.processes.publish import Publisher
from warmpath.indexer.ranks import Ingest
from warmpath.indexer.shared.query.index import RemoteIndex
from warmpath.indexer.shared.redis.command import Redis
from warmpath.indexer.stream.machine import PENDING_BYTES
from warmpath.process.grpc_tls import channel_credentials
from warmpath.process.loop import LoopThread
from warmpath.process.tls import ClientTls
from warmpath.router.assemble.means import Means
from warmpath.router.config.schema import PodSpec
from warmpath.router.pods.discover import PodSource, Reconciler, SourceState
from warmpath.router.pods.follow import Follower, follow_configured, following
from warmpath.router.pods.look import sources
from warmpath.router.pods.probe import Links
from warmpath.router.pods.shared_index import asking, is_asked_by_answers, reached, shared
from warmpath.router.pods.table import PodTable
from warmpath.router.readiness import INDEX, Condition

COPYING = "the pods' blocks are being copied for the first time"


@dataclass(slots=True)
class Indexed:
    """The index, the pods, and the thread that follows them."""

    means: Means
    ingest: Ingest
    pods: PodTable
    thread: LoopThread
    redis: Redis | None
    """Redis for the loop that answers calls; None: neither an answer nor a booking needs it."""
    sources: list[PodSource]
    publishers: ClientTls | None
    engines: EngineTls
    heirs: Sequence[Heir] = ()
    """The ranks that another process has followed before."""
    follower: Follower | None = None
    reconciler: Reconciler | None = None

    @property
    def states(self) -> list[SourceState]:
        """The state of each source of pods: whether it answers."""
        return [source.state for source in self.sources]

    async def follow(self, links: Links) -> None:
        """Follow pods; the loop that calls this also calls `observed`, `ended` and `gone` of `links`."""
        call = partial(_call_in, asyncio.get_running_loop())
        self.follower = Follower(
            self.ingest,
            self.pods,
            whole=self.means.config,
            folder=self.means.folder,
            credentials=channel_credentials(self.publishers) if self.publishers else None,
            tls=self.engines,
            links=replace(
                links,
                observed=partial(call, links.observed),
                ended=partial(call, links.ended),
                gone=partial(call, links.gone),
            ),
            heirs=self.heirs,
        )
        follows = following(self.follower, self.sources)
        self.reconciler = await self.thread.enter(follows, self.means.stack)

    async def follow_configured(self, pods: list[PodSpec]) -> None:
        """Follow `pods` in place of those that the configuration's [[pods]] had before."""
        assert self.reconciler is not None
        await self.thread.call(follow_configured(self.reconciler, pods))

    def doubt_models(self, model: str) -> None:
        """Ask the pods of a model (empty: all pods) which models they serve now."""
        if self.follower is not None:
            self.thread.soon(self.follower.doubt_models, model)


async def index(means: Means, publishers: ClientTls | None, engines: EngineTls) -> Indexed:
    """Build the index; `means.stack` closes it. No pod is followed before `Indexed.follow`."""
    config, folder, readiness = means.config, means.folder, means.readiness
    stack = means.stack
    table = config.shared_index
    redis = remote = None
    if table.url and is_asked_by_answers(table):
        redis = await stack.enter_async_context(reached(table, folder))
        if table.mode == "shared":
            remote = await stack.enter_async_context(asking(table, redis))
    ingest, heirs = _ingest(means, remote)
    publisher = ingest.publisher
    readiness.set(INDEX, holds=True, reason="this router copies no index")
    thread = await stack.enter_async_context(LoopThread("following"))
    if isinstance(ingest, Mirror):
        if table.url and table.mode == "replica":
            readiness.look(INDEX, partial(_is_copied, ingest))
    elif table.url:
        if table.mode == "replica":
            readiness.set(INDEX, holds=False, reason=COPYING)

        # All pods are copied, or the first attempt has failed.
        def settled(reason: str) -> None:
            readiness.set(INDEX, holds=True, reason=reason)
            if publisher is not None:
                publisher.ready()

        await thread.enter(shared(table, folder, ingest, settled), stack)
    places = list(sources(config, folder))
    return Indexed(
        means, ingest, PodTable(), thread, redis, places, publishers, engines, heirs=heirs
    )


def _ingest(means: Means, remote: RemoteIndex | None) -> tuple[Ingest, Sequence[Heir]]:
    """Return what follows the ranks, or shows those that another process follows; and what it left."""
    config = means.config
    if means.memory is not None and not means.follows:
        mirror = Mirror(
            means.memory, hash_seed=config.index.hash_seed, clock=time.monotonic, remote=remote
        )
        return mirror, ()
    publisher = memory = old = None
    heirs: Sequence[Heir] = ()
    if means.memory is not None:
        current = means.memory.current
        if current >= 0:
            old = Memory(means.memory, current)
            heirs = inherited(old)
        memory = Memory(means.memory, 1 - max(current, 0))
        # A process that did not come to be read may have written there.
        memory.clear()
        publisher = Publisher(memory, time.monotonic)
    ingest = Ingest(
        embedded_index(config.index.max_bytes, memory),
        hash_seed=config.index.hash_seed,
        pending_bytes=PENDING_BYTES,
        stale_after=config.events.stale_seconds,
        clock=time.monotonic,
        remote=remote,
        past=Past(time.monotonic) if means.shadow and means.shadow.log else None,
        publisher=publisher,
    )
    if publisher is not None:
        publisher.begin(old, (RankName(one.saved.pod, one.saved.rank) for one in heirs))
    return ingest, heirs


def _is_copied(mirror: Mirror) -> Condition:
    if mirror.is_settled():
        return Condition(holds=True, reason="the process that follows the pods has copied them")
    return Condition(holds=False, reason=COPYING)


def _call_in(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *args: object) -> None:
    # The loop may be closed already, when the process is about to end.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *args)
