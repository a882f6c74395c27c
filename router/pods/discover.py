"""Pods that come and go: sources say who is there, the reconciler follows them and drops the gone."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from router.config import schema as config

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Found:
    """A pod that is there. A pod of another identity under the same id is another pod."""

    spec: config.Pod
    identity: str = ""
    """What the source knows it by (a Kubernetes uid); empty: nothing but its id."""


class PodSource(Protocol):
    """Where pods are found."""

    @property
    def name(self) -> str:
        """What the source is called in the log."""

    def sets(self) -> AsyncIterator[Mapping[str, Found]]:
        """Yield all pods by id, now and whenever they have changed; ends only with its task."""


class Follows(Protocol):
    """What follows pods (`router.pods.follow`)."""

    def follow(self, spec: config.Pod) -> None:
        """Begin to follow a pod."""

    async def drop(self, pod_id: str) -> None:
        """Follow a pod no longer."""


class Reconciler:
    """Brings what is followed to what the sources say.

    A pod that several sources find is followed as the first one says, and where that one drops it, as
    another one does.
    """

    def __init__(self, follower: Follows) -> None:
        self._follower = follower
        self._found: dict[str, Mapping[str, Found]] = {}
        """The pods of each source, as it said last."""
        self._followed: dict[str, tuple[str, Found]] = {}
        """Each pod's source, and as what it was found."""
        self._turn = asyncio.Lock()

    async def run(self, source: PodSource) -> None:
        """Keep up with one source; returns only when cancelled."""
        async for found in source.sets():
            await self.reconcile(source.name, found)

    async def reconcile(self, source: str, found: Mapping[str, Found]) -> None:
        """Follow what the source has found, and drop what it has no longer.

        A pod that has changed in anything is dropped and followed anew, so that it inherits nothing.
        """
        async with self._turn:
            before = self._found.get(source, {})
            self._found[source] = found
            for pod_id, (owner, one) in list(self._followed.items()):
                if owner == source and found.get(pod_id) != one:
                    await self._drop(pod_id, source)
            for pod_id in {**before, **found}:
                self._follow(pod_id)
            for pod_id in found.keys() - before.keys():
                owner, _ = self._followed.get(pod_id, (source, None))
                if owner != source:
                    log.error("pod %s: found by %s, but %s has it already", pod_id, source, owner)

    async def _drop(self, pod_id: str, source: str) -> None:
        del self._followed[pod_id]
        await self._follower.drop(pod_id)
        what = "is another now in" if pod_id in self._found[source] else "gone from"
        log.info("pod %s: %s %s", pod_id, what, source)

    def _follow(self, pod_id: str) -> None:
        """Follow a pod that nobody follows, as the first source says that has it."""
        if pod_id in self._followed:
            return
        for source, found in self._found.items():
            one = found.get(pod_id)
            if one is None:
                continue
            try:
                self._follower.follow(one.spec)
            except Exception:
                # The others of the set are to be followed nevertheless.
                log.exception("pod %s of %s cannot be followed: a bug of ours", pod_id, source)
                return
            self._followed[pod_id] = source, one
            log.info("pod %s: found by %s at %s", pod_id, source, one.spec.address)
            return
