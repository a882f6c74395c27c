"""Pods as sources find them, and their ids: names, and what tells them from others of the same name."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import compress, filterfalse
from operator import is_not
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
        self._owners: dict[str, tuple[str, Place]] = {}
        self._uses: Counter[str] = Counter()
        """How many pods have each of these names."""

    def heard(
        self, source: str, found: Mapping[str, FoundPod]
    ) -> dict[str, dict[str, FoundPod | None]]:
        """Take all pods that a source has found; return the changed ones by source and id.

        None: the source has no pod of the id any more. A pod that is the same object as before has not
        changed. Other sources whose pods have other ids now come first, and this source is last.
        """
        order = self._order.setdefault(source, len(self._order))
        is_first = source not in self._said
        before = self._said.get(source, {})
        # No step of Python for each pod: an event changes one of thousands.
        new = list(compress(found, map(is_not, found.values(), map(before.get, found))))
        old = [name for name in new if name in before]
        if len(before) + len(new) - len(old) > len(found):
            old += filterfalse(found.__contains__, before)
        added, removed = [found[name] for name in new], [before[name] for name in old]
        changes: dict[str, dict[str, FoundPod | None]] = {}
        ours: dict[str, FoundPod | None] = dict.fromkeys(map(self._id, removed))
        self._uses.update(one.spec.id for one in added if one.place)
        self._uses.subtract(one.spec.id for one in removed if one.place)
        for name in {one.spec.id for one in removed if one.place}:
            if not self._uses[name]:
                del self._uses[name], self._owners[name]
        owners: dict[str, tuple[str, Place]] = {}
        for one in added:
            owner = self._owners.get(one.spec.id)
            if one.place and (owner is None or (is_first and order < self._order[owner[0]])):
                owners.setdefault(one.spec.id, (source, one.place))
        taken = owners.keys() & self._owners.keys()
        moved = {
            other: [one for one in pods.values() if one.place and one.spec.id in taken]
            for other, pods in (self._said.items() if taken else ())
        }
        for other, pods in moved.items():
            changes[other] = dict.fromkeys(map(self._id, pods))
        self._owners |= owners
        self._said[source] = found
        moved[source], changes[source] = added, ours
        for other, pods in moved.items():
            changes[other].update((one.spec.id, one) for one in map(self._named, pods))
        return changes

    def _named(self, one: FoundPod) -> FoundPod:
        """Return the pod under its id."""
        name, pod_id = one.spec.id, self._id(one)
        if pod_id == name:
            return one
        return replace(one, spec=msgspec.structs.replace(one.spec, id=pod_id), name=name)

    def _id(self, one: FoundPod) -> str:
        name = one.spec.id
        if one.place is None:
            return name
        _, owner = self._owners[name]
        namespace = "" if one.place.namespace == owner.namespace else f"{one.place.namespace}/"
        port = "" if one.place.port == owner.port else f":{one.place.port}"
        return f"{namespace}{name}{port}"
