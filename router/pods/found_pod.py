"""A pod as a source has found it."""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import msgspec.structs

from warmpath.router.config import schema as config


class Place(NamedTuple):
    """What distinguishes pods of one name: namespace and port."""

    namespace: str
    port: int
    """Where it serves requests."""


@dataclass(frozen=True, slots=True)
class FoundPod:
    """A pod that a source has found. With the same id but another identity it is a new pod."""

    spec: config.PodSpec
    identity: str = ""
    """The source's own identifier (a Kubernetes uid); empty if the source has none."""
    place: Place | None = None
    """None where `spec.id` is the pod's own; else that is a name, which others may have, too."""
    name: str = ""
    """That name, where the id has become another one."""
    withheld: str = field(default="", compare=False)
    """Why it takes no requests now although it is there; empty if it may. It is not followed for that,
    but if it is followed, it stays so: its engine may go on, with its cache."""
    is_unlisted: bool = field(default=False, compare=False)
    """Whether the source finds it no longer, so that only its own events show that it is there."""

    def called(self, pod_id: str) -> "FoundPod":
        """Return the same pod with this id in place of its name."""
        spec = msgspec.structs.replace(self.spec, id=pod_id)
        return replace(self, spec=spec, name=self.spec.id)
