"""The pods that the router knows."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from indexer.rank import Rank
from indexer.trust import Level

Role = Literal["both", "prefill", "decode"]


@dataclass(frozen=True, slots=True)
class Status:
    """What a pod says of itself over HTTP."""

    healthy: bool | None = None
    """None: it was not asked yet."""
    reason: str = "not asked yet"
    models: Sequence[str] = ()
    """The names that it serves, adapters' too."""
    version: str = ""
    """The engine's; empty where it did not say."""
    refuses: bool = False
    """Whether it says itself that it takes no requests: it drains, starts, or its engine is dead."""
    looked_at: float = -math.inf
    """When it was last found well, by the ingest's clock."""


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
    role: Role = "both"
    """What it is for, where prefill and decoding are apart."""
    has_events: bool = True
    blocks: int = 0
    """Of a rank's cache; 0: not known."""
    shared: str = ""
    """The shared index that it is followed through, in words; empty where it is not."""
    engine: str = "vllm"
    """vllm, sglang or trtllm."""
    asked: frozenset[str] = frozenset()
    """What requests came with that sets their blocks apart (`router.pods.namespaces`)."""
    followed: tuple[Rank, ...] = ()
    """Its ranks as this router follows them for others (`router.pods.write_shared`): `ranks` are what is
    read back, and learn nothing of the engine."""
    first_rank: int = 0
    """The engine's own number of the first of its ranks."""
    https: bool = False
    """Whether it serves requests over HTTPS."""
    exposed: str = ""
    """The endpoint from which its events cross a network in plain text; empty where they do not, or
    `events.trusted-network` is set."""

    @property
    def serves(self) -> bool:
        """Whether requests may be sent to it.

        When a pod dies its event stream ends at once, and some looks at its health later it is known to
        be ill. When only the stream is gone, the looks that follow say that it is well.
        """
        status = self.status
        if status.healthy is False:
            return False
        for rank in self.ranks:  # a loop, as it is asked for every pod of every Pick
            if rank.is_connected:
                return True
        return not self.has_events or (
            status.healthy is True
            and all(
                rank.trust.level is Level.COLD or rank.trust.since < status.looked_at
                for rank in self.ranks
            )
        )

    @property
    def ready(self) -> bool:
        """Whether any rank's event stream is connected, if it has one, and the pod is not known ill."""
        if self.status.healthy is False:
            return False
        for rank in self.ranks:  # a loop, as it is asked for every pod of every Score
            if rank.is_connected:
                return True
        return not self.has_events


def that_serve(pods: Iterable[Pod]) -> list[Pod]:
    """Return those of the pods that serve (`Pod.serves`)."""
    return [
        pod
        for pod in pods
        # Of nearly all pods the first rank is connected; to ask the property takes longer than that.
        if (pod.status.healthy is not False and pod.ranks and pod.ranks[0].is_connected)
        or pod.serves
    ]


class PodTable:
    """Pods by id and by model. One thread changes them; any may read: each change makes a new table."""

    def __init__(self, pods: Iterable[Pod] = ()) -> None:
        self._change({pod.id: pod for pod in pods})

    def __iter__(self) -> Iterator[Pod]:
        return iter(self._pods.values())

    def add(self, pod: Pod) -> None:
        """Know a pod from now on."""
        self._change({**self._pods, pod.id: pod})

    def remove(self, pod_id: str) -> Pod:
        """Forget a pod and return it. Raises KeyError where it is not known."""
        pod = self._pods[pod_id]
        self._change({name: other for name, other in self._pods.items() if other is not pod})
        return pod

    def _change(self, pods: dict[str, Pod]) -> None:
        of_model: dict[str, list[Pod]] = {}
        for pod in pods.values():
            of_model.setdefault(pod.model, []).append(pod)
        self._pods, self._of_model = pods, of_model

    def serving(self, model: str) -> list[Pod]:
        """Return the pods of a model."""
        return [*self._of_model.get(model, ())]
