"""Doubts a source that finds a pod no longer: one answer without it, or an empty one, may be wrong.

A name server that has lost its upstream says that a name does not exist, and a file is empty while it is
written.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from warmpath.router.pods.found_pod import FoundPod

ANSWERS = 3
"""How many answers in a row have to lack a pod."""
KEPT_SECONDS = 300.0
"""How long a pod may stay unlisted, if it stays at all."""


@dataclass(frozen=True, slots=True)
class Lacking:
    """A pod that was found before, and not since."""

    pod: FoundPod
    since: float
    answers: int


class Absences:
    """The pods that a source has found, and those that its last answers lack.

    A pod is believed to be gone once ANSWERS in a row have lacked it, over at least `seconds`. If
    `unlisted` is given, it stays for KEPT_SECONDS, withheld for that reason, as long as its events come.
    """

    def __init__(self, seconds: float, unlisted: str = "") -> None:
        self._seconds = seconds
        self._unlisted = unlisted
        self._found: Mapping[str, FoundPod] = {}
        self._lacking: dict[str, Lacking] = {}

    @property
    def are_there(self) -> bool:
        """Whether the last answers lack any pod that still counts as there."""
        return bool(self._lacking)

    def believe(self, found: Mapping[str, FoundPod], now: float) -> dict[str, FoundPod]:
        """Take an answer; return the pods that are there, by id. `now` is in seconds."""
        gone = {pod_id: Lacking(pod, now, 0) for pod_id, pod in self._found.items()} | self._lacking
        self._found, self._lacking = found, {}
        there = dict(found)
        for pod_id, one in gone.items():
            if pod_id in found:
                continue
            lacking = replace(one, answers=one.answers + 1)
            is_sure = lacking.answers >= ANSWERS and now - one.since >= self._seconds
            if is_sure and (not self._unlisted or now - one.since >= KEPT_SECONDS):
                continue
            self._lacking[pod_id] = lacking
            there[pod_id] = (
                replace(one.pod, withheld=self._unlisted, is_unlisted=True) if is_sure else one.pod
            )
        return there
