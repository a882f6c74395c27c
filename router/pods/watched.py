"""The pods of which Kubernetes tells, in the pages of a list and the events of a watch. No sockets.

Only the fields that are named here are decoded: a pod's object may have many kilobytes.
"""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec
from msgspec import Struct, field

from warmpath.router.config import schema as config
from warmpath.router.pods.inference_pool import ACTIVE_PORTS, InferencePool, active_ports
from warmpath.router.pods.names import FoundPod, Place

WATCHES = 5
"""How many watches follow a list. A list that wrongly lacked a pod is put right by the next."""
LISTS = 3
"""A pod that nobody said was deleted is gone after so many lists without it."""
ENDED = ("Succeeded", "Failed")
"""The phases of a pod whose containers do not run any more; its object may stay for days."""
GONE = 410
"""The status of a version that is too old: the pods have to be listed again."""
UNREADY = "Kubernetes says that the pod is not ready"
INACTIVE = "the pod's annotation active-ports does not name port {}"
"""Why an endpoint takes no requests although it is there."""


class _Annotations(Struct):
    new: str | None = field(default=None, name=ACTIVE_PORTS[0])
    old: str | None = field(default=None, name=ACTIVE_PORTS[1])


class _Metadata(Struct, rename="camel"):
    name: str
    uid: str
    resource_version: str = ""
    deletion_timestamp: str | None = None
    annotations: _Annotations | None = None


class _Condition(Struct):
    type: str = ""
    status: str = ""


class _PodStatus(Struct):
    phase: str = ""
    address: str = field(default="", name="podIP")
    conditions: list[_Condition] | None = None


class _PodObject(Struct):
    metadata: _Metadata
    status: _PodStatus | None = None


class _ListMetadata(Struct):
    version: str = field(default="", name="resourceVersion")
    next: str = field(default="", name="continue")


class _Page(Struct):
    metadata: _ListMetadata
    items: list[_PodObject] | None
    """Go writes an empty list as null."""


class _Event(Struct):
    type: str
    object: msgspec.Raw


class _Bookmark(Struct):
    metadata: _ListMetadata


class Status(Struct):
    """An answer that is an error."""

    code: int = 0
    reason: str = ""
    message: str = ""


class ToldError(Exception):
    """A watch ended with an error."""

    def __init__(self, status: Status) -> None:
        super().__init__(status.message)
        self.status = status


_PAGE = msgspec.json.Decoder(_Page)
_EVENT = msgspec.json.Decoder(_Event)
_POD = msgspec.json.Decoder(_PodObject)
_BOOKMARK = msgspec.json.Decoder(_Bookmark)
_STATUS = msgspec.json.Decoder(Status)


class _Pod(NamedTuple):
    """What is kept of a pod's object."""

    name: str
    found: Mapping[str, FoundPod]
    """Its endpoints; none while it has no address, or ends."""

    def says_same_as(self, other: "_Pod | None") -> bool:
        """Return whether `other`, read of an earlier object of the pod, has the same endpoints."""
        return other is not None and self.found == other.found and self.withheld == other.withheld

    @property
    def withheld(self) -> list[str]:
        return [one.withheld for one in self.found.values()]


class WatchedPods:
    """Keeps a set's pods by uid, and how a watch goes on."""

    def __init__(self, pods: config.PodSetSpec) -> None:
        self.pool = InferencePool(pods.selector, ())
        """Which pods to ask for; with another one they have to be listed."""
        self.version: str | None = None
        """The version from which a watch may begin; None: the pods have to be listed before."""
        self._pods = pods
        self._watches_left = 0
        """How many watches may begin before the next list."""
        self._known: dict[str, _Pod] = {}
        """The pods that have the labels of `_selector`, by uid."""
        self._found: dict[str, FoundPod] = {}
        """Their endpoints."""
        self._selector = pods.selector
        self._listed: dict[str, _Pod] = {}
        """The pods of a list's pages so far."""
        self._listed_version = ""
        self._lacking: dict[str, int] = {}
        """How many lists in a row have lacked each of these pods, by uid."""

    @property
    def needs_list(self) -> bool:
        """Whether no watch may begin before a list."""
        return self.version is None or not self._watches_left or bool(self._lacking)

    @property
    def is_empty(self) -> bool:
        return not self._known

    @property
    def is_doubtful(self) -> bool:
        """Whether lists have lacked pods that nobody said were deleted."""
        return bool(self._lacking)

    def found(self) -> dict[str, FoundPod]:
        """Return the endpoints of all pods, by name and, for further ports of a pod, port."""
        return self._found.copy()

    def read_page(self, body: bytes, *, is_first: bool) -> str:
        """Read a page of a list; return the token of the next one, empty after the last.

        Raises ValueError if this is no list of pods.
        """
        page = _PAGE.decode(body)
        if is_first:
            self._listed = {}
        for pod in page.items or ():
            read, before = self._read(pod), self._known.get(pod.metadata.uid)
            # Whoever gets the set sees by the objects what has changed.
            kept = before if before is not None and read.says_same_as(before) else read
            self._listed[pod.metadata.uid] = kept
        self._listed_version = page.metadata.version
        return page.metadata.next

    def end_list(self) -> None:
        """Take the pods of a list whose pages have all been read.

        A pod that an earlier list had stays until LISTS in a row have lacked it.
        """
        self.version, self._watches_left = self._listed_version, WATCHES
        listed, self._listed = self._listed, {}
        names = {pod.name for pod in listed.values()}
        if self.pool.selector != self._selector:
            self._selector = self.pool.selector
            self._known, self._lacking = {}, {}
        self._lacking = {
            uid: lacks
            for uid, pod in self._known.items()
            if uid not in listed
            and pod.name not in names
            and (lacks := self._lacking.get(uid, 0) + 1) < LISTS
        }
        self._known = {**{uid: self._known[uid] for uid in self._lacking}, **listed}
        self._found = {}
        for pod in self._known.values():
            self._found.update(pod.found)

    def begin_watch(self) -> None:
        """Note that a watch begins."""
        self._watches_left -= 1

    def read_event(self, line: bytes) -> bool:
        """Note what a watch says; return whether the endpoints have changed.

        Raises ToldError if it says that it has failed, ValueError if this is no event of pods. After
        GONE, the pods have to be listed.
        """
        event = _EVENT.decode(line)
        if event.type == "ERROR":
            status = _STATUS.decode(event.object)
            if status.code == GONE:
                self.version = None
            raise ToldError(status)
        if event.type not in ("ADDED", "MODIFIED", "DELETED"):
            self.version = _BOOKMARK.decode(event.object).metadata.version
            return False
        pod = _POD.decode(event.object)
        self.version = pod.metadata.resource_version
        return self._keep(pod.metadata.uid, None if event.type == "DELETED" else self._read(pod))

    def _keep(self, uid: str, read: _Pod | None) -> bool:
        before = self._known.pop(uid, None)
        if read is not None:
            self._known[uid] = read
            if read.says_same_as(before):
                return False
        for name in before.found if before else ():
            # Another pod may have got the name.
            if name in self._found and self._found[name].identity == uid:
                del self._found[name]
        if read is not None:
            self._found.update(read.found)
        return bool(before and before.found) or bool(read and read.found)

    def _read(self, pod: _PodObject) -> _Pod:
        metadata, status = pod.metadata, pod.status
        name = metadata.name
        if metadata.deletion_timestamp or not status or not status.address or status.phase in ENDED:
            return _Pod(name, {})
        is_ready = any(
            one.type == "Ready" and one.status == "True" for one in status.conditions or ()
        )
        said = metadata.annotations or _Annotations()
        active = active_ports((said.new, said.old), self.pool.ports)
        found = {}
        for nth, port in enumerate(self.pool.ports or (self._pods.port,)):
            takes = not self.pool.ports or port in active
            found[f"{name}:{port}" if nth else name] = FoundPod(
                self._pods.pod(name, status.address, port=port, nth=nth),
                identity=metadata.uid,
                place=Place(self._pods.namespace, port),
                withheld=UNREADY if not is_ready else "" if takes else INACTIVE.format(port),
            )
        return _Pod(name, found)
