"""Follows the pods that sources find, and drops those that have gone.

`SourceState` says whether a source can be asked, for the log, readiness and findings.
"""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from warmpath.router.config import schema as config
from warmpath.router.config.schema import PodSpec
from warmpath.router.pods.names import FoundPod, Names
from warmpath.router.pods.table import Pod
from warmpath.router.pods.twins import of_twin, twins

log = logging.getLogger(__name__)

STAY = "the pods stay as they were"
REACHED = "look whether it can be reached from here"


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a source cannot be asked."""

    since: float
    """The time, in seconds of its clock, at which the source could first not be asked."""
    problem: str
    effect: str
    advice: str
    """The remedy, for whoever runs the router; may be empty."""


class SourceState:
    """The state of one source, as the source itself reports it. Any thread may read it.

    `name` names the source in messages; `model` is its pods' model, empty if they may have several. A
    source that works says something at least every `due` seconds.
    """

    def __init__(
        self, name: str, model: str, clock: Callable[[], float], due: float = math.inf
    ) -> None:
        self.name = name
        self.model = model
        self._clock = clock
        self._due = due
        self._spoke_at = clock()
        """When it said something last, or the state began."""
        self._trouble: Trouble | None = Trouble(
            self._spoke_at, "it has not answered yet", STAY, REACHED
        )
        self._said = ""

    @property
    def trouble(self) -> Trouble | None:
        """Why it cannot be asked; None if it answered the last time, and that is not too long ago."""
        if self._trouble is None and self.silence > self._due:
            problem = f"it has said nothing for more than {self._due:.0f} s"
            return Trouble(self._spoke_at, problem, STAY, REACHED)
        return self._trouble

    @property
    def silence(self) -> float:
        """The seconds since it said something about its pods; before that, since the start."""
        return self._clock() - self._spoke_at

    def failed(self, problem: str, effect: str, advice: str = "") -> None:
        """Note that it cannot be asked; log a problem once, until it has ended or changed."""
        before = self.trouble
        since = self._clock() if before is None else before.since
        self._trouble = Trouble(since, problem, effect, advice)
        if problem != self._said:
            log.warning("%s: %s; %s", self.name, problem, effect)
        self._said = problem

    def spoke(self) -> None:
        """Note that the source sent something, which ends no trouble, unlike `answered`."""
        self._spoke_at = self._clock()

    def answered(self) -> None:
        self.spoke()
        self._trouble = None
        if self._said:
            log.info("%s: it answers again", self.name)
        self._said = ""


def unasked(sources: Iterable[SourceState]) -> str:
    """Return which sources cannot be asked and why, to be put behind a sentence; empty if all can."""
    return "".join(
        f"; {source.name}: {trouble.problem}"
        for source in sources
        if (trouble := source.trouble) is not None
    )


CONFIGURATION = "the configuration"
"""The name, as a place where pods are found, of [[pods]] in the configuration's own file."""
AT_ONCE = 256
"""How many pods that a source describes anew are looked at in one step of the loop."""
LAST = "pod %s: %s finds it no longer; it takes requests all the same, as no listed pod is healthy"


class SourceError(OSError):
    """A source cannot be asked; the message says why, `brief` without its name, `advice` the remedy.

    `mistakes` are those in a file, each with its line. `empty`: it is not there, so it has no pods.
    """

    def __init__(
        self,
        problem: str,
        *,
        brief: str = "",
        advice: str = "",
        mistakes: tuple[str, ...] = (),
        empty: bool = False,
    ) -> None:
        super().__init__(problem)
        self.brief = brief or problem
        self.advice = advice
        self.mistakes = mistakes
        self.empty = empty


class PodSource(Protocol):
    """A place where pods are found."""

    @property
    def state(self) -> SourceState:
        """The source's name, and whether it can be asked; `sets` keeps this current."""

    async def look(self) -> Mapping[str, FoundPod]:
        """Return the source's pods now, by name. Raises SourceError."""

    def sets(self) -> AsyncIterator[Mapping[str, FoundPod]]:
        """Yield all pods by name, now and after each change, in a new mapping; ends only with its task.

        Names differ within a source; two sources may have different pods of one name. A pod that has
        not changed is the same object again: it costs its reader nothing.
        """


class Follows(Protocol):
    """Starts and stops following pods (implemented by `router.pods.follow`)."""

    def follow(self, spec: config.PodSpec, name: str) -> None:
        """Begin to follow a pod; `name` is as in `FoundPod`."""

    def pod(self, pod_id: str) -> Pod:
        """Return a followed pod."""

    def at(self, address: str) -> Sequence[str]:
        """Return the ids of the followed pods at an address, in the order in which they came."""

    async def drop(self, pod_id: str) -> None:
        """Stop following a pod."""


class Reconciler:
    """Keeps the followed pods equal to those that the sources find.

    If several sources find a pod, the first one's description counts; once that source drops the pod,
    another one's does. Different pods of one name get different ids (`router.pods.names`).
    """

    def __init__(self, follower: Follows, expected: Iterable[str] = ()) -> None:
        """Prepare for sources; a name goes to the pod of the first `expected` source that has it."""
        self._follower = follower
        self._names = Names(expected)
        self._found: dict[str, dict[str, FoundPod]] = {}
        """The latest pods of each source by id."""
        self._followed: dict[str, tuple[str, FoundPod]] = {}
        """Each followed pod's source and description."""
        self._unlisted: dict[str, None] = {}
        """The followed pods that their sources find no longer: each set of pods may end them."""
        self._turn = asyncio.Lock()

    async def run(self, source: PodSource) -> None:
        """Keep up with one source; returns only when cancelled."""
        async for found in source.sets():
            await self.reconcile(source.state.name, found)

    async def reconcile(self, source: str, found: Mapping[str, FoundPod]) -> None:
        """Follow the pods that a source has found and drop those that it finds no longer.

        A pod whose description has changed is dropped and followed again as a new one. One that takes no
        requests stays followed. Unlisted pods take requests for as long as they live and no listed pod
        could in their place, since the source is then more likely to be wrong than all engines gone.
        """
        async with self._turn:
            for one, changes in self._names.heard(source, found).items():
                await self._settle(one, changes)

    async def _settle(self, source: str, changes: Mapping[str, FoundPod | None]) -> None:
        found = self._found.setdefault(source, {})
        new = {pod_id for pod_id, one in changes.items() if one and pod_id not in found}
        for pod_id, one in changes.items():
            if one is not None and _fits(pod_id, source):
                found[pod_id] = one
            else:
                found.pop(pod_id, None)
        touched = {**changes, **self._unlisted}
        is_any = self._unlisted or any(one and one.is_unlisted for one in changes.values())
        served = self._served() if is_any else frozenset()
        for nth, pod_id in enumerate(touched, 1):
            if not nth % AT_ONCE:
                await asyncio.sleep(0)
            owner, followed = self._followed.get(pod_id, ("", None))
            if followed is not None and owner == source:
                await self._keep_or_drop(pod_id, source, followed, served)
        for pod_id in touched:
            if pod_id not in self._followed:
                self._follow(pod_id)
                # A step of the loop follows one pod: a source may find thousands at once.
                await asyncio.sleep(0)
            elif pod_id in new and (owner := self._followed[pod_id][0]) != source:
                log.error(
                    "pod %s: %s finds it too; it is followed as %s describes it",
                    pod_id, source, owner,
                )  # fmt: skip

    async def _keep_or_drop(
        self, pod_id: str, source: str, followed: FoundPod, served: frozenset[tuple[str, str]]
    ) -> None:
        """Drop a pod that has changed or is gone; else note whether it takes requests."""
        one = self._found[source].get(pod_id)
        is_last = served.isdisjoint({_part(followed), (followed.spec.model, "both")})
        if one is None and followed.is_unlisted and is_last:
            one = followed
        pod = self._follower.pod(pod_id)
        is_there = pod.is_heard or (is_last and pod.status.healthy is True)
        if one is None or one != followed or (one.is_unlisted and not is_there):
            await self._drop(pod_id, source)
            return
        self._unlisted.pop(pod_id, None)
        if one.is_unlisted:
            self._unlisted[pod_id] = None
            if is_last:
                one = replace(one, withheld="")
                if not followed.is_unlisted:
                    log.warning(LAST, pod_id, source)
        self._followed[pod_id] = source, one
        if one.withheld != followed.withheld:
            pod.withheld = one.withheld
            log.info("pod %s: %s", pod_id, one.withheld or "it may take requests again")

    def _served(self) -> frozenset[tuple[str, str]]:
        return frozenset(
            _part(followed)
            for pod_id, (owner, followed) in self._followed.items()
            if (one := self._found[owner].get(pod_id)) is not None
            and not one.is_unlisted
            and self._follower.pod(pod_id).serves
        )

    async def _drop(self, pod_id: str, source: str) -> None:
        del self._followed[pod_id]
        self._unlisted.pop(pod_id, None)
        await self._follower.drop(pod_id)
        one = self._found[source].get(pod_id)
        what = "changed" if one is not None and not one.is_unlisted else "gone"
        log.info("pod %s: %s according to %s", pod_id, what, source)

    def _follow(self, pod_id: str) -> None:
        for source, found in self._found.items():
            one = found.get(pod_id)
            if one is None or one.withheld:
                continue
            try:
                self._follower.follow(one.spec, one.name)
            except Exception:
                # The other pods must be followed nevertheless.
                log.exception("pod %s of %s cannot be followed: a bug of ours", pod_id, source)
                return
            self._followed[pod_id] = source, one
            log.info("pod %s: found by %s at %s", pod_id, source, one.spec.address)
            self._tell_twin(source, one.spec)
            return

    def _tell_twin(self, source: str, spec: PodSpec) -> None:
        """Log the pod that is the same engine as a new one, if there is one."""
        there = [self._followed[other] for other in self._follower.at(spec.address)]
        for (_, one), twin in twins((place, other.spec) for place, other in there):
            if one.id == spec.id:
                log.warning("pod %s of %s: %s", spec.id, source, of_twin(spec.address, twin))


def _part(one: FoundPod) -> tuple[str, str]:
    return one.spec.model, one.spec.role


def _fits(pod_id: str, source: str) -> bool:
    fits = len(pod_id) <= config.MOST_ID_CHARACTERS
    if not fits:
        log.error(
            "%s: a pod is ignored, whose id has %d characters, more than %d: %s",
            source, len(pod_id), config.MOST_ID_CHARACTERS, pod_id[:100],
        )  # fmt: skip
    return fits
