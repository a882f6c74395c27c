"""Whether the router is ready: one state, which /readyz, gRPC's health and metrics show. No I/O here.

Also the conditions that follow from the state of the router's parts.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from warmpath.indexer.trust import Level
from warmpath.router.pods.discover import SourceState, unasked
from warmpath.router.pods.table import Pod

STAYING = "staying"
"""The condition that nobody has asked the process to end."""
LISTENING = "listening"
"""The condition that gRPC listens."""
ALWAYS = (STAYING, LISTENING)
"""The conditions that every configuration requires."""


@dataclass(frozen=True, slots=True)
class Condition:
    """Whether a condition holds, with the reason."""

    holds: bool
    reason: str


class Readiness:
    """The conditions of a router, which is ready while all required ones hold.

    A condition is set, or looked at whenever it matters. `required` are the names of `server.ready`;
    each of them must be set or looked at before `ready` is called.
    """

    def __init__(self, required: Iterable[str]) -> None:
        self._looks: dict[str, Callable[[], Condition]] = {}
        self.require(required)
        self.set(STAYING, holds=True, reason="the process was not asked to end")
        self.set(LISTENING, holds=False, reason="gRPC does not listen yet")

    def require(self, names: Iterable[str]) -> None:
        """Make the conditions of these names, and those of ALWAYS, the ones that must hold."""
        self._required = frozenset({*names, *ALWAYS})

    def set(self, name: str, *, holds: bool, reason: str) -> None:
        """Set a condition. Any thread may do so."""
        condition = Condition(holds, reason)
        self._looks[name] = lambda: condition

    def look(self, name: str, look: Callable[[], Condition]) -> None:
        self._looks[name] = look

    def end(self) -> None:
        self.set(STAYING, holds=False, reason="the process was asked to end")

    def requires(self, name: str) -> bool:
        return name in self._required

    def ready(self, *, besides: str = "") -> bool:
        """Whether every required condition holds, `besides` left out."""
        # Conditions that are not required may be dear to look at, and clients' health checks are many.
        return all(self._looks[name]().holds for name in self._required if name != besides)

    def report(self) -> dict[str, Condition]:
        """Return every condition by name, required or not."""
        return {name: look() for name, look in list(self._looks.items())}


PODS = "pods"
INDEX = "index"
COVERAGE = "coverage"
TOKENIZERS = "tokenizers"


def a_pod_is_well(pods: Iterable[Pod], sources: Sequence[SourceState] = ()) -> Condition:
    """Return whether any pod serves requests, as far as is known, and does not refuse them.

    If none does, a Pick still tries pods that do not refuse (`router.pick.eligible`). Sources of pods
    that cannot be asked are named, and change nothing: routers outlive an API server.
    """
    known = list(pods)
    well, doubtful = sum(_may_serve(pod) for pod in known), unasked(sources)
    if well:
        return Condition(holds=True, reason=f"{well} of {len(known)} pods are healthy{doubtful}")
    if not known:
        return Condition(holds=False, reason=f"no pod is known{doubtful}")
    reason = f"none of {len(known)} pods is healthy; {known[0].id}: {_why(known[0])}{doubtful}"
    return Condition(holds=False, reason=reason)


def pods_are_covered(
    pods: Iterable[Pod], sources: Sequence[SourceState], least: float
) -> Condition:
    """Return whether the view of at least a share, `least`, of the healthy pods is exact.

    Pods without events do not count. Without pods that count the condition holds: whether a pod is
    well is another condition. Sources of pods that cannot be asked are named, and change nothing.
    """
    counted = [pod for pod in pods if pod.has_events and _may_serve(pod)]
    doubtful = [doubt for pod in counted if (doubt := _doubt(pod))]
    exact = len(counted) - len(doubtful)
    reason = f"the view of {exact} of {len(counted)} well pods with events is exact"
    if exact >= least * len(counted):
        return Condition(holds=True, reason=reason + unasked(sources))
    reason = f"{reason}, {least:g} of them must be; {doubtful[0]}{unasked(sources)}"
    return Condition(holds=False, reason=reason)


def tokenizers_are_loaded(models: int, lacking: Mapping[str, str]) -> Condition:
    """Return whether all tokenizers are loaded; `models` is the number of models that have one.

    `lacking` says by model why its tokenizer is not loaded (`TokenizerCache.lacking`).
    """
    reason = f"{models - len(lacking)} of {models} tokenizers are loaded"
    for model, why in lacking.items():
        return Condition(holds=False, reason=f"{reason}; {model}: {why}")
    return Condition(holds=True, reason=reason)


def _may_serve(pod: Pod) -> bool:
    # If the pod itself is not probed, an unreachable shared index does not mean that it is down.
    unasked = bool(pod.shared) and pod.status.healthy is None
    # All pods may be late where load is high, and they serve.
    takes = pod.serves or unasked or pod.is_only_late
    return takes and not pod.status.refuses and not pod.withheld


def _why(pod: Pod) -> str:
    if pod.withheld:
        return pod.withheld
    if pod.status.healthy is False:
        return pod.status.reason
    return f"its event stream is not connected, {pod.status.reason}"


def _doubt(pod: Pod) -> str:
    for rank in pod.ranks:
        trust = rank.trust
        if trust.level is not Level.EXACT:
            level = trust.level.name.lower()
            return f"{pod.id} rank {rank.number} is {level}: {trust.reason}"
    return ""
