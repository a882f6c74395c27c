"""Finds and follows pods while the router runs; at its end, saves the blocks that they hold.

All of this runs in a thread of its own (`process.loop`), beside the one that answers.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

from warmpath.indexer.follow.saved import SavedRank
from warmpath.indexer.ranks import SWEEP_BUDGET, TICK_SECONDS, Ingest
from warmpath.process.tasks import Work, kept
from warmpath.router import state_file
from warmpath.router.config.schema import Config, IndexTable, PodSpec
from warmpath.router.pods.discover import CONFIGURATION, PodSource, Reconciler
from warmpath.router.pods.follow import Follower
from warmpath.router.pods.found_pod import FoundPod

log = logging.getLogger(__name__)


def saved_ranks(table: IndexTable, folder: Path) -> list[SavedRank]:
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
async def following(
    config: Config,
    folder: Path,
    ingest: Ingest,
    follower: Follower,
    sources: Sequence[PodSource],
) -> AsyncIterator[Reconciler]:
    """Follow the configured pods and those of `sources` for as long as the context is open."""
    async with AsyncExitStack() as stack:
        stack.callback(_save, config.index, folder, ingest)
        stack.push_async_callback(follower.close)
        reconciler = Reconciler(follower)
        await follow_configured(reconciler, config.pods)
        for source in sources:
            reconciler.expect(source.state.name)
        for source in sources:
            finding = Work(f"finding pods: {source.state.name}", partial(reconciler.run, source))
            stack.callback(kept(finding).cancel)
        ticking = kept(Work("the index's housekeeping", partial(_tick, ingest)))
        stack.callback(ticking.cancel)
        yield reconciler


async def follow_configured(reconciler: Reconciler, pods: Sequence[PodSpec]) -> None:
    """Follow the pods of the configuration's [[pods]], and no others of it."""
    await reconciler.reconcile(CONFIGURATION, {pod.id: FoundPod(pod) for pod in pods})


async def _tick(ingest: Ingest) -> None:
    while True:
        ingest.tick(SWEEP_BUDGET)
        ingest.beat()
        await asyncio.sleep(TICK_SECONDS)


def _save(table: IndexTable, folder: Path, ingest: Ingest) -> None:
    """Save the index and the stream positions. Raises OSError, which names the file."""
    if not table.state_file:
        return
    path = folder / table.state_file
    try:
        size = state_file.save(path, ingest.save(), table.hash_seed)
        log.info("index.state-file: %d bytes saved to %s", size, path)
    except (OSError, state_file.BadStateError) as error:
        raise OSError(f"index.state-file: nothing is saved to {path}: {error}") from error
