"""How many pods a model's present work needs, for autoscalers of engines (docs/guides/scale-engines.md).

Three things can fill a rank, and the fullest counts. Figures are in ranks, then divided by ranks a pod:

    prefill   seconds of prefill that come in a second, by a rank's share of time for it           / 0.6
    memory    shares of KV memory that requests hold, by the share that leaves room for the next  / 0.8
    backlog   seconds of prefill that wait, by the time in which they are to be gone              / 30 s

What comes is what ranks compute, and by how much the backlog grows: more than all ranks can do, too. The
first two are averages over seconds. The sum of their maximum and the backlog rises at once and falls
over minutes: a pod that is missing costs users now, and one too many costs minutes of a machine.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from warmpath.indexer.index.slot import RankName
from warmpath.router.load.table import FOREIGN, LoadTable
from warmpath.router.pods.table import Pod, Role
from warmpath.scorer.columns import KV_USAGE, WAITING

PREFILL_SHARE = 0.6
"""Share of the time that a rank may have a prompt to compute: beyond it prompts wait long for others."""
MEMORY_SHARE = 0.8
"""Share of KV memory that requests may hold."""
BACKLOG_SECONDS = 30.0
"""Time in which booked prefills are to be gone."""
AVERAGE_SECONDS = 15.0
"""Time constant of the averages of prefill and memory."""
FALL_SECONDS = 120.0
"""Time constant with which the number of needed pods falls."""
NO_PODS = 0.05
"""Fewer pods than this are none: a model without requests."""

Kind = tuple[str, Role]
"""A model, and the role of pods of it: each kind of pods is scaled by itself."""


class Demanded(NamedTuple):
    """The demand for one kind of pods."""

    saturation: float = 0.0
    """The larger of the shares of ranks' time that prefill takes, and of KV memory that is held: 0 to 1;
    1 where requests wait for a first pod."""
    wait_seconds: float = 0.0
    """Seconds of prefill that no rank has computed yet."""
    pods: float = 0.0
    """Pods that the present work needs."""


@dataclass(slots=True)
class _Past:
    """The last look at one kind of pods, and averages in ranks."""

    wait: float = 0.0
    prefill: float = 0.0
    memory: float = 0.0
    pods: float = 0.0


class Demand:
    """The demand for all kinds of pods.

    `kinds` are those of the configuration, `pods` those that are there. `held` returns the number of
    requests that wait for a first pod, by model.
    """

    def __init__(
        self,
        kinds: Iterable[Kind],
        pods: Iterable[Pod],
        loads: LoadTable,
        held: Callable[[], Mapping[str, int]],
    ) -> None:
        self._pods = pods
        self._loads = loads
        self._held = held
        self._past: dict[Kind, _Past] = {kind: _Past() for kind in kinds}
        self._at: float | None = None
        self.rows: Mapping[Kind, Demanded] = {kind: Demanded() for kind in self._past}
        """The demand when it was last looked at."""

    def look(self, now: float) -> None:
        """Take the loads at `now`, in seconds of the table's clock, into the averages."""
        passed = 0.0 if self._at is None else max(0.0, now - self._at)
        self._at = now
        there: dict[Kind, list[Pod]] = {}
        for pod in self._pods:
            if pod.serves and not (pod.withheld or pod.status.refuses):
                there.setdefault((pod.model, pod.role), []).append(pod)
        held = self._held()
        kinds: dict[Kind, object] = {**self._past, **there}
        models = {model for model, _ in kinds}
        kinds |= {(model, "both"): None for model in held if model not in models}
        self.rows = {
            kind: self._of(kind, there.get(kind, ()), held.get(kind[0], 0), now, passed)
            for kind in kinds
        }

    def _of(
        self, kind: Kind, pods: Sequence[Pod], held: int, now: float, passed: float
    ) -> Demanded:
        past = self._past.setdefault(kind, _Past())
        names = [RankName(pod.id, rank.number) for pod in pods for rank in pod.ranks]
        prefill = memory = wait = 0.0
        if names:
            figures, rows, _ = self._loads.current(names, now)
            prefill = float(np.count_nonzero(figures[WAITING, rows]))
            memory = float(figures[KV_USAGE, rows].sum())
            wait = sum(self._loads.drained(names, now)) + float(figures[FOREIGN, rows].sum())
        if passed:
            prefill += (wait - past.wait) / passed
        past.wait = wait
        weight = min(1.0, passed / AVERAGE_SECONDS)
        past.prefill += weight * (prefill - past.prefill)
        past.memory += weight * (memory - past.memory)
        needed = max(0.0, past.prefill / PREFILL_SHARE, past.memory / MEMORY_SHARE)
        needed = (needed + wait / BACKLOG_SECONDS) * len(pods) / max(1, len(names))
        if held:
            needed = max(needed, 1.0)
        past.pods = max(needed, past.pods + min(1.0, passed / FALL_SECONDS) * (needed - past.pods))
        saturation = min(1.0, max(0.0, past.prefill, past.memory) / max(1, len(names)))
        return Demanded(
            float(bool(held)) or saturation, wait, past.pods if past.pods >= NO_PODS else 0.0
        )
