"""The pods that the router knows."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from indexer.rank import Rank


@dataclass(frozen=True, slots=True)
class Status:
    """What a pod says of itself over HTTP."""

    healthy: bool | None = None
    """None: it was not asked yet."""
    reason: str = "not asked yet"
    models: Sequence[str] = ()
    """The names that it serves, adapters' too."""


@dataclass(eq=False, slots=True)
class Pod:
    """One engine instance."""

    id: str
    address: str
    """host:port that serves requests."""
    model: str
    """The base model's name."""
    ranks: tuple[Rank, ...]
    status: Status = Status()

    @property
    def ready(self) -> bool:
        """Whether any rank's event stream is connected, and the pod does not say that it is ill."""
        if self.status.healthy is False:
            return False
        for rank in self.ranks:  # noqa: SIM110  asked for every pod of every Score
            if rank.is_connected:
                return True
        return False


class PodTable:
    """Pods by id and by model. One thread changes them; any may read: each change makes a new table."""

    def __init__(self, pods: Iterable[Pod] = ()) -> None:
        self._pods = {pod.id: pod for pod in pods}

    def __iter__(self) -> Iterator[Pod]:
        return iter(self._pods.values())

    def add(self, pod: Pod) -> None:
        """Know a pod from now on."""
        self._pods = {**self._pods, pod.id: pod}

    def remove(self, pod_id: str) -> Pod:
        """Forget a pod and return it. Raises KeyError where it is not known."""
        pod = self._pods[pod_id]
        self._pods = {name: other for name, other in self._pods.items() if other is not pod}
        return pod

    def serving(self, model: str) -> list[Pod]:
        """Return the pods of a model."""
        return [pod for pod in self._pods.values() if pod.model == model]
