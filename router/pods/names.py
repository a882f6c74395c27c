"""Pods as sources find them, and their ids: names, and what tells them from others of the same name."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import msgspec.structs

from warmpath.router.config import schema as config


class Place(NamedTuple):
    """What distinguishes pods of one name: namespace and port."""

    namespace: str
    port: int
    """The port at which it serves requests."""


@dataclass(frozen=True, slots=True)
class FoundPod:
    """A pod that a source has found. With the same id but another identity it is a new pod."""

    spec: config.PodSpec
    identity: str = ""
    """The source's own identifier (a Kubernetes uid); empty if the source has none."""
    place: Place | None = None
    """Where it is, if `spec.id` is a name that others may have, too; None: it is this pod's alone."""
    name: str = ""
    """The `spec.id` that the source gave, if another id has taken its place; else empty."""
    withheld: str = field(default="", compare=False)
    """Why it takes no requests now although it is there; empty if it may. Nobody begins to follow such a
    pod, but a followed one stays followed: its engine may go on, with its cache."""
    is_unlisted: bool = field(default=False, compare=False)
    """Whether the source finds it no longer, so that only its own events show that it is there."""


class Names:
    """Gives pods their ids: a name alone, or a name with what tells its pod from the one that has it.

    The name alone is the id of the pod that was found first; when a source answers for the first time,
    its pods go before those of sources that were `expected` later. While any pod has the name, no other
    namespace and port gets it, even if that pod is away: ids do not change while pods come and go.
    """

    def __init__(self, expected: Iterable[str] = ()) -> None:
        self._order = {source: place for place, source in enumerate(expected)}
        self._said: dict[str, Mapping[str, FoundPod]] = {}
        self._of_source: dict[str, frozenset[str]] = {}
        self._owners: dict[str, tuple[str, Place]] = {}

    def heard(self, source: str, found: Mapping[str, FoundPod]) -> dict[str, dict[str, FoundPod]]:
        """Take the pods that a source has found; return pods by source and id.

        Other sources whose pods have other ids now come first, and this source is last.
        """
        self._order.setdefault(source, len(self._order))
        is_first = source not in self._of_source
        before = self._of_source.get(source, frozenset())
        places: dict[str, Place] = {}
        for one in found.values():
            if one.place is not None:
                places.setdefault(one.spec.id, one.place)
        names = self._of_source[source] = frozenset(places)
        for name in before - names:
            if not any(name in others for others in self._of_source.values()):
                del self._owners[name]
        self._said[source] = found
        changed: set[str] = set()
        for name, place in places.items():
            owner, _ = self._owners.setdefault(name, (source, place))
            if is_first and self._order[source] < self._order[owner]:
                changed.update(other for other, has in self._of_source.items() if name in has)
                self._owners[name] = source, place
        return {one: self._named(self._said[one]) for one in (*(changed - {source}), source)}

    def _named(self, found: Mapping[str, FoundPod]) -> dict[str, FoundPod]:
        named: dict[str, FoundPod] = {}
        for one in found.values():
            name, pod_id = one.spec.id, self._id(one)
            spec = msgspec.structs.replace(one.spec, id=pod_id)
            # A pod that the same set finds twice is one pod.
            named.setdefault(pod_id, one if pod_id == name else replace(one, spec=spec, name=name))
        return named

    def _id(self, one: FoundPod) -> str:
        name = one.spec.id
        if one.place is None:
            return name
        _, owner = self._owners[name]
        namespace = "" if one.place.namespace == owner.namespace else f"{one.place.namespace}/"
        port = "" if one.place.port == owner.port else f":{one.place.port}"
        return f"{namespace}{name}{port}"
