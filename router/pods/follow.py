"""Follows pods: runs the tasks of each pod from its discovery until its removal.

At the router's end it saves the blocks that they hold. All of this runs in a thread of its own
(`process.loop`), beside the one that answers.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import grpc
import zmq.asyncio

from warmpath.indexer.engines.table import ENGINES
from warmpath.indexer.follow.connect import connections
from warmpath.indexer.follow.endpoint import EXPOSED, is_exposed
from warmpath.indexer.follow.instance import Engine, EngineTls, Patience
from warmpath.indexer.follow.stream_source import RankIngest, SavedRank
from warmpath.indexer.keys.key import fingerprint
from warmpath.indexer.mirror import Mirror
from warmpath.indexer.processes.heritage import KILLED, Heir
from warmpath.indexer.rank import Rank
from warmpath.indexer.ranks import SWEEP_BUDGET, TICK_SECONDS, Ingest
from warmpath.indexer.watch.client import Watcher
from warmpath.process.tasks import Work, cancel, kept
from warmpath.router import state_file
from warmpath.router.config import schema as config
from warmpath.router.config.files import EngineKey
from warmpath.router.config.schema import Config, IndexTable, PodSpec
from warmpath.router.pods.discover import CONFIGURATION, PodSource, Reconciler
from warmpath.router.pods.names import FoundPod
from warmpath.router.pods.probe import Links, Prober
from warmpath.router.pods.table import Pod, PodTable, endpoint

log = logging.getLogger(__name__)

MOST_PROBES = 1250
"""The most probes a second, of all pods together, which take a third of a core. With 5,000 pods each
observed load is younger than `pick.load-stale-seconds` has it by default."""


@dataclass(eq=False)
class Follower:
    """Follows pods; close it at the end. All is called in the thread that follows pods."""

    ingest: Ingest
    pods: PodTable
    whole: Config
    folder: Path
    """The folder to which the files of pods' keys are relative."""
    credentials: Callable[[], grpc.ChannelCredentials] | None
    """Returns the credentials for the next connection to a publisher; None: plain connections."""
    tls: EngineTls
    """The TLS to engines with HTTPS."""
    links: Links
    heirs: Sequence[Heir] = ()
    """The ranks to go on from where another process of this router has followed them before."""

    def __post_init__(self) -> None:
        self._patience = Patience(tls=self.tls)
        heirs = self.heirs
        if not heirs and not isinstance(self.ingest, Mirror):
            saved = _saved_ranks(self.whole.index, self.folder)
            heirs = [Heir(one, is_doubted=False) for one in saved]
        self._heirs = {(one.saved.pod, one.saved.rank, one.saved.model): one for one in heirs}
        self._context = zmq.asyncio.Context()
        # A followed rank takes three sockets, a replay one more; the default is 1,023 in total.
        self._context.set(zmq.MAX_SOCKETS, self._context.get(zmq.SOCKET_LIMIT))
        self._tasks: dict[str, list[asyncio.Task[None]]] = {}
        self._probers: dict[str, Prober] = {}

    def follow(self, spec: config.PodSpec, name: str = "") -> None:
        """Start following a pod. Raises ValueError if a pod with its id is followed already.

        `name` is what its publisher may call it besides its id; empty: nothing.
        """
        ranks, works = self._followed(spec, name)
        index = self.whole.shared_index
        is_shared = bool(index.url) and not (spec.events or spec.watch)
        exposed = (
            spec.events if is_exposed(spec.events) and not self.whole.events.trusted_network else ""
        )
        if exposed:
            log.warning(EXPOSED, spec.id, exposed)
        key_file = self.folder / spec.key_file if spec.key_file else None
        pod = Pod(
            spec.id,
            spec.address,
            spec.model,
            tuple(ranks),
            role=spec.role,
            engine=spec.engine,
            has_events=bool(spec.events or spec.watch or is_shared),
            blocks=spec.blocks,
            shared=f"{index.url} under prefix {index.prefix!r}" if is_shared else "",
            exposed=exposed,
            events_option=ENGINES[spec.engine].events_option_at(spec.events, spec.replay),
            first_rank=spec.first_rank,
            https=spec.https,
            key_file=key_file,
            may_be_eagle=spec.eagle,
        )
        self.pods.add(pod)
        if self.whole.probe.interval_seconds:
            prober = self._probers[spec.id] = Prober(
                pod,
                self._interval,
                self.whole.probe.timeout_seconds,
                self.tls if spec.https else None,
                EngineKey(key_file),
                self.links,
            )
            works.append(Work(f"looking at pod {spec.id}", prober.run))
        self._tasks[spec.id] = [kept(work) for work in works]

    def _interval(self) -> float:
        """Return the pause between two probes of a pod, in seconds."""
        return max(self.whole.probe.interval_seconds, len(self._probers) / MOST_PROBES)

    def _followed(self, spec: config.PodSpec, name: str) -> tuple[Sequence[Rank], list[Work]]:
        index = self.whole.shared_index
        if isinstance(self.ingest, Mirror) and (
            spec.watch or spec.events or (index.url and index.mode == "replica")
        ):
            return [self.ingest.mirror(spec.id, number) for number in range(spec.ranks)], []
        if spec.watch:
            return self._watched(spec, name)
        if spec.events:
            return self._direct(spec)
        if self.whole.shared_index.url:
            return self._shared(spec), []
        return [self.ingest.add_blind(spec.id, number) for number in range(spec.ranks)], []

    def _direct(self, spec: config.PodSpec) -> tuple[list[Rank], list[Work]]:
        engine = Engine(
            pod=spec.id,
            model=spec.model,
            engine=spec.engine,
            events=spec.events,
            replay=spec.replay,
            topic=spec.topic,
            ranks=spec.ranks,
            first_rank=spec.first_rank,
            blocks=spec.blocks,
            block_size=spec.block_size,
        )
        ranks = [self.ingest.add(source) for source in engine.sources()]
        for rank in ranks:
            heir = self._heirs.pop((spec.id, rank.number, spec.model), None)
            if heir is not None:
                _restore(rank, heir)
        return [*ranks], connections(engine, ranks, self._context, self._patience)

    def _watched(self, spec: config.PodSpec, name: str) -> tuple[list[Rank], list[Work]]:
        ranks = [self.ingest.watch(spec.id, number) for number in range(spec.ranks)]
        watcher = Watcher(
            ranks,
            spec.watch,
            keyspace=fingerprint(spec.model, self.whole.index.hash_seed),
            credentials=self.credentials,
            retry_seconds=self._patience.reconnect_seconds,
            name=name,
        )
        return [*ranks], [Work(f"watching pod {spec.id}", watcher.run, watcher.failed)]

    def _shared(self, spec: config.PodSpec) -> Sequence[Rank]:
        """Follow a pod through the shared index: by a copy, or in Redis itself.

        Copies are stale once Redis has been unreachable for `shared-index.stale-seconds`.
        """
        keyspace = fingerprint(spec.model, self.whole.index.hash_seed)
        if (replica := self.ingest.replica) is None:
            return [
                self.ingest.add_shared(spec.id, number, keyspace=keyspace, ranks=spec.ranks)
                for number in range(spec.ranks)
            ]
        stale_after = self.whole.shared_index.stale_seconds
        ranks = [
            self.ingest.watch(spec.id, number, stale_after=stale_after)
            for number in range(spec.ranks)
        ]
        replica.add(spec.id, ranks, keyspace)
        return ranks

    def doubt_models(self, model: str) -> None:
        """Ask the pods of a model, all pods if it is empty, for the models that they serve now."""
        for pod in self.pods.of_model(model):
            if prober := self._probers.get(pod.id):
                prober.doubt_models()

    def pod(self, pod_id: str) -> Pod:
        return self.pods.pod(pod_id)

    def at(self, address: str) -> Sequence[str]:
        return self.pods.at(endpoint(address))

    async def drop(self, pod_id: str) -> None:
        pod = self.pods.remove(pod_id)
        self._probers.pop(pod_id, None)
        await cancel(self._tasks.pop(pod_id))
        if (replica := self.ingest.replica) is not None and pod_id in replica:
            replica.remove(pod_id)
        for rank in pod.ranks:
            self.ingest.remove(pod_id, rank.number)
        self.links.gone(pod)
        if pod.status.adapters:
            self.links.listed()

    async def close(self) -> None:
        for tasks in self._tasks.values():
            await cancel(tasks)
        self._context.destroy(linger=0)


def _restore(rank: RankIngest, heir: Heir) -> None:
    try:
        rank.restore(heir.saved)
        if heir.is_doubted:
            rank.missed(KILLED)
    except Exception as error:  # noqa: BLE001  the router starts with any file
        # The text could quote the file, so only the kind of error is logged.
        kind = type(error).__name__
        log.warning(
            "index.state-file: pod %s rank %d: %s: starting cold", rank.pod, rank.number, kind
        )
        rank.state.forget()


def _saved_ranks(table: IndexTable, folder: Path) -> list[SavedRank]:
    """Return the ranks that the last process saved; none if the file cannot be used."""
    if not table.state_file:
        return []
    try:
        return state_file.load(folder / table.state_file, table.hash_seed)
    except state_file.BadStateError as error:
        log.warning("index.state-file: %s; starting cold", error)
        with contextlib.suppress(OSError, state_file.BadStateError):
            state_file.put_aside(folder / table.state_file)
        return []


@asynccontextmanager
async def following(follower: Follower, sources: Sequence[PodSource]) -> AsyncIterator[Reconciler]:
    """Follow the configured pods and those of `sources` for as long as the context is open."""
    async with AsyncExitStack() as stack:
        stack.callback(_save, follower)
        stack.push_async_callback(follower.close)
        reconciler = Reconciler(follower, [source.state.name for source in sources])
        await follow_configured(reconciler, follower.whole.pods)
        for source in sources:
            finding = Work(f"finding pods: {source.state.name}", partial(reconciler.run, source))
            stack.callback(kept(finding).cancel)
        ticking = kept(Work("the index's housekeeping", partial(_tick, follower.ingest)))
        stack.callback(ticking.cancel)
        yield reconciler


async def follow_configured(reconciler: Reconciler, pods: Sequence[PodSpec]) -> None:
    """Follow `pods` in place of those that the configuration's [[pods]] had before."""
    await reconciler.reconcile(CONFIGURATION, {pod.id: FoundPod(pod) for pod in pods})


async def _tick(ingest: Ingest) -> None:
    while True:
        ingest.tick(SWEEP_BUDGET)
        ingest.beat()
        await asyncio.sleep(TICK_SECONDS)


def _save(follower: Follower) -> None:
    """Save the index and the stream positions. Raises OSError, which names the file."""
    table = follower.whole.index
    if not table.state_file or isinstance(follower.ingest, Mirror):
        return
    path = follower.folder / table.state_file
    try:
        size = state_file.save(path, follower.ingest.save(), table.hash_seed)
        log.info("index.state-file: %d bytes saved to %s", size, path)
    except (OSError, state_file.BadStateError) as error:
        raise OSError(f"index.state-file: nothing is saved to {path}: {error}") from error
