"""Starts and ends pods while others serve, as Kubernetes' autoscaler (HPA) does, by one of two metrics.

    needed      the pods that the router says the work needs (`router.queue.demand`)
    running:N   the requests that engines have, N to a pod

Every SYNC seconds the number becomes what the metric asks for, but no less than at any look of the last
STABLE seconds. A new pod takes requests after its cold start, with an empty cache. One that ends
takes none from then on, and finishes those that it has.

Source: Kubernetes' "Horizontal Pod Autoscaling", algorithm details and default behaviour.
"""

import math
from collections import deque
from collections.abc import Callable

SYNC = 15.0
STABLE = 300.0
NEEDED, RUNNING = "needed", "running:"


def requests_a_pod(by: str) -> int:
    """Return N of running:N; 0 for any other metric. Raises ValueError for an unknown one."""
    if by in ("", NEEDED):
        return 0
    name, _, number = by.partition(":")
    if f"{name}:" != RUNNING or not number.isdecimal() or not int(number):
        raise ValueError(f"--scale is {by!r}, neither off, needed nor running:N")
    return int(number)


class Autoscaler:
    """The pods of a fleet of at most `most`, which begins with one.

    `metric` returns the pods that are asked for now, `start` and `end` tell the fleet of a pod by its
    number, `is_idle` says whether an ended pod has nothing left to do. Times are in seconds.
    """

    def __init__(
        self,
        most: int,
        cold_start: float,
        *,
        metric: Callable[[], float],
        is_idle: Callable[[int], bool],
        start: Callable[[int], None],
        end: Callable[[int], None],
    ) -> None:
        self._most = most
        self._cold_start = cold_start
        self._metric = metric
        self._is_idle = is_idle
        self._start = start
        self._end = end
        self._serving = [0]
        self._starting: list[tuple[float, int]] = []
        """When pods are ready, and their numbers; the soonest first."""
        self._asked: deque[tuple[float, int]] = deque()
        """The numbers that were asked for lately, and when."""
        self.pod_seconds = 0.0
        """Time of all pods so far, cold starts included."""
        self._at = 0.0

    def look(self, now: float) -> None:
        """Start or end pods, as the metric asks."""
        self._let_serve(now)
        asked = max(1, min(self._most, math.ceil(self._metric() - 1e-9)))
        self._asked.append((now, asked))
        while now - self._asked[0][0] > STABLE:
            self._asked.popleft()
        wanted = max(number for _, number in self._asked)
        there = len(self._serving) + len(self._starting)
        for _ in range(there - wanted):
            if self._starting:
                self._starting.pop()
            else:
                self._end(self._serving.pop())
        if asked > there:
            busy = {*self._serving, *(number for _, number in self._starting)}
            free = [one for one in range(self._most) if one not in busy and self._is_idle(one)]
            self._starting += [(now + self._cold_start, one) for one in free[: asked - there]]

    def _let_serve(self, now: float) -> None:
        count = len(self._serving) + len(self._starting)
        self.pod_seconds += count * (now - self._at)
        self._at = now
        while self._starting and self._starting[0][0] <= now:
            _, number = self._starting.pop(0)
            self._start(number)
            self._serving.append(number)
