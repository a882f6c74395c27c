"""Pods that come and go: sources say who is there, the reconciler follows them and drops the gone."""

import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from router import config

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
    """What follows pods (`router.follow`)."""

    def follow(self, spec: config.Pod) -> None:
        """Begin to follow a pod."""

    async def drop(self, pod_id: str) -> None:
        """Follow a pod no longer."""


class Reconciler:
    """Brings what is followed to what the sources say."""

    def __init__(self, follower: Follows) -> None:
        self._follower = follower
        self._followed: dict[str, tuple[str, Found]] = {}
        """Each pod's source, and as what it was found."""

    async def run(self, source: PodSource) -> None:
        """Keep up with one source; returns only when cancelled."""
        async for found in source.sets():
            await self.reconcile(source.name, found)

    async def reconcile(self, source: str, found: Mapping[str, Found]) -> None:
        """Follow what the source has found, and drop what it has no longer.

        A pod that has changed in anything is dropped and followed anew, so that it inherits nothing.
        """
        for pod_id, (owner, before) in list(self._followed.items()):
            if owner == source and found.get(pod_id) != before:
                await self._follower.drop(pod_id)
                del self._followed[pod_id]
                what = "is another now in" if pod_id in found else "gone from"
                log.info("pod %s: %s %s", pod_id, what, source)
        for pod_id, one in found.items():
            owner, _ = self._followed.get(pod_id, ("", None))
            if owner and owner != source:
                log.error("pod %s: found by %s, but %s has it already", pod_id, source, owner)
            elif not owner:
                self._follower.follow(one.spec)
                self._followed[pod_id] = source, one
                log.info("pod %s: found by %s at %s", pod_id, source, one.spec.address)
