"""The pods that the router knows."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address
from pathlib import Path
from typing import Literal

from warmpath.indexer.engines.table import ENGINES
from warmpath.indexer.rank import Rank

Role = Literal["both", "prefill", "decode"]

WELL = "/health answers"
"""The reason of a status whose probe found nothing wrong."""


@dataclass(frozen=True, slots=True)
class Status:
    """The result of the last probe of a pod."""

    healthy: bool | None = None
    """Whether it counts as up; None: not probed yet."""
    reason: str = "not asked yet"
    models: Sequence[str] = ()
    """The names that it serves, adapters included."""
    adapters: frozenset[str] = frozenset()
    """The adapters among `models`. One may have a base model's name (`ModelTable.shadow`)."""
    refusal: str = ""
    """The page that it refuses to the router with 401 or 403, and what to do; empty: none."""
    version: str = ""
    """The engine's version; empty: not known."""
    refuses: bool = False
    """Whether it answers that it accepts no requests: it drains, starts, or its engine is dead."""
    is_hybrid: bool = False
    """Whether its metrics show a cache of windows or states beside the full one (SGLang)."""
    drafts: bool = False
    """Whether its metrics show that it drafts tokens (vLLM's speculative decoding)."""
    is_late: bool = False
    """Whether the last probe got no answer in time, or one that says no more than that; nothing else is
    known against it."""
    looked_at: float = -math.inf
    """When the last successful probe began, by the ingest's clock."""


@dataclass(eq=False, slots=True, weakref_slot=True)
class Pod:
    """One engine instance."""

    id: str
    address: str
    """host:port that serves requests."""
    model: str
    ranks: tuple[Rank, ...]
    status: Status = Status()
    role: Role = "both"
    """The pod's task: `both`, unless prefill and decoding run on different pods."""
    has_events: bool = True
    blocks: int = 0
    """Blocks of a rank's cache; 0: not known."""
    shared: str = ""
    """The address of the shared index, if it is followed only through it; else empty."""
    engine: str = "vllm"
    asked: frozenset[str] = frozenset()
    """The kinds of namespaces (adapter, salt, …) that requests have used (`router.pods.namespaces`)."""
    first_rank: int = 0
    """The engine's own number of the first of its ranks."""
    https: bool = False
    key_file: Path | None = None
    """The file of its engine's API key; None: it asks for none."""
    may_be_eagle: bool = True
    """Whether its drafter, if it has one, may be of the EAGLE kind."""
    exposed: str = ""
    """The endpoint from which its events cross a network in plain text; empty if they do not, or if
    `events.trusted-network` is set."""

    events_option: str = ""
    """The engine's option by which it sends its events where they are followed; empty: it has none."""
    withheld: str = ""
    """Why the source that has found it says that it takes no requests; empty if it does not say so."""

    @property
    def url(self) -> str:
        """The beginning of the URL of its engine's pages."""
        return f"{'https' if self.https else 'http'}://{self.address}"

    @property
    def serves(self) -> bool:
        """Whether requests may be sent to it.

        When a pod dies, its event stream ends at once. When only the stream has ended, the next probe
        succeeds, and the pod serves again.
        """
        return self.ready or (
            self.status.healthy is True
            and not self.withheld
            and all(rank.lost_at < self.status.looked_at for rank in self.ranks)
        )

    @property
    def is_only_late(self) -> bool:
        """Whether it counts as down for late probes alone: its events, if it has any, are connected."""
        if self.status.healthy is not False or not self.status.is_late:
            return False
        return not self.has_events or self.is_heard

    @property
    def is_heard(self) -> bool:
        """Whether its events arrive."""
        return any(rank.is_connected for rank in self.ranks)

    def capacity_of(self, rank: Rank) -> int:
        """Return the blocks of a rank's cache: as configured, or as its engine says; 0: not known."""
        return self.blocks or rank.capacity

    @property
    def ready(self) -> bool:
        """Whether it serves, and if it has events, some stream is connected."""
        if self.status.healthy is False or self.withheld:
            return False
        for rank in self.ranks:  # a loop for speed: it runs for every pod of every Score
            if rank.is_connected:
                return True
        return not self.has_events


@lru_cache(4096)
def endpoint(address: str) -> str:
    """Return an address in the one form that equal endpoints share: IP:PORT, with IPv6 in brackets.

    A host's name stays as it is.
    """
    text = address.strip()
    host, _, port = text.rpartition(":")
    is_bare = ":" in host and not host.startswith("[")
    if not host or is_bare or not port.isdecimal():
        host, port = text, ""
    try:
        ip = ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return text
    shown = f"[{ip}]" if ip.version == 6 else str(ip)
    return f"{shown}:{port}" if port else shown


def that_serve(pods: Iterable[Pod]) -> list[Pod]:
    """Return the pods for which `Pod.serves` is true."""
    return [
        pod
        for pod in pods
        # Nearly all pods have a connected first rank or no events, which is tested faster.
        if (
            pod.status.healthy is not False
            and not pod.withheld
            and (not pod.has_events or (pod.ranks and pod.ranks[0].is_connected))
        )
        or pod.serves
    ]


def _finds_adapters(pod: Pod) -> bool:
    kind = ENGINES.get(pod.engine)
    return kind is not None and kind.finds_adapters


class PodTable:
    """Pods by id, model and address. One thread changes it, any may read.

    A change makes a new dict of those that a reader may go over.
    """

    def __init__(self, pods: Iterable[Pod] = ()) -> None:
        self._pods: dict[str, Pod] = {}
        self._of_model: dict[str, list[Pod]] = {}
        self._at: dict[str, list[str]] = {}
        for pod in pods:
            self.add(pod)

    def __iter__(self) -> Iterator[Pod]:
        return iter(self._pods.values())

    def at(self, address: str) -> Sequence[str]:
        """Return the ids of the pods at an address, as `endpoint` returns it."""
        return self._at.get(address, ()) if address else ()

    def add(self, pod: Pod) -> None:
        at = endpoint(pod.address)
        self._pods = {**self._pods, pod.id: pod}
        self._of_model[pod.model] = [*self._of_model.get(pod.model, ()), pod]
        self._at[at] = [*self.at(at), pod.id]

    def pod(self, pod_id: str) -> Pod:
        """Return a pod. Raises KeyError for an unknown id."""
        return self._pods[pod_id]

    def remove(self, pod_id: str) -> Pod:
        """Remove a pod and return it. Raises KeyError for an unknown id."""
        pods = {**self._pods}
        pod = pods.pop(pod_id)
        of_model = [*self._of_model[pod.model]]
        of_model.remove(pod)
        at = endpoint(pod.address)
        self._at[at] = [one for one in self._at[at] if one != pod_id]
        if not self._at[at]:
            del self._at[at]
        self._of_model[pod.model] = of_model
        self._pods = pods
        return pod

    def found_by_name(self) -> frozenset[str]:
        """Return the adapters of pods whose engines find them by a request's model.

        SGLang's requests name them beside it: by `lora_path`, or as MODEL:ADAPTER.
        """
        return frozenset().union(*(pod.status.adapters for pod in self if _finds_adapters(pod)))

    def of_model(self, model: str) -> list[Pod]:
        """Return a model's pods, healthy or not; all pods if `model` is empty."""
        return [*self._of_model.get(model, ())] if model else [*self]
