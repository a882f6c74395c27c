"""Finds pods through the Kubernetes API: by labels, or by an InferencePool's selector and ports.

Needs the extra `warmpath-router[kubernetes]` and the right to list and watch pods (and to get the
pool) in the namespace.
"""

import asyncio
import json
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from random import Random
from typing import Any, NamedTuple

import aiohttp
from aiohttp.http import HttpProcessingError

from warmpath.process.command_line import in_words
from warmpath.process.tasks import cancel
from warmpath.router.config import schema as config
from warmpath.router.pods.api_access import connect
from warmpath.router.pods.api_client import ApiClient
from warmpath.router.pods.discover import STAY, SourceError, SourceState
from warmpath.router.pods.inference_pool import InferencePool, active_ports, read_pool
from warmpath.router.pods.names import FoundPod, Place

POOL_GROUPS = (("inference.networking.k8s.io", "v1"), ("inference.networking.x-k8s.io", "v1alpha2"))
RETRY_SECONDS = 2.0
ANSWER_SECONDS = 30.0
WATCH_SECONDS = 120
"""How long a watch lasts at most. The API server ends it, and the next one goes on where it ended."""
LEAST_WATCH = 0.75
"""The least share of WATCH_SECONDS that a watch lasts: routers that begin together do not go on so."""
WATCHES = 5
"""How many watches follow a list. A list that wrongly lacked a pod is put right by the next."""
OVERDUE_SECONDS = 10.0
"""A watch that lasts this much longer than it was to counts as silent: nothing arrives."""
POOL_SECONDS = 2.0
"""Pause between two looks at an InferencePool. A watch of it would take more rights than `get`."""
LISTS = 3
"""A pod that nobody said was deleted is gone after so many lists without it, RETRY_SECONDS apart."""
ENDED = ("Succeeded", "Failed")
"""The phases of a pod whose containers do not run any more; its object may stay for days."""
GONE = 410
"""The status of a watch whose version is too old: the pods have to be listed again."""
REACH = "look whether the API server runs, and whether a NetworkPolicy lets this process reach it"
SILENT = (
    "look at the load balancer or proxy before the API server: it drops idle connections silently"
)
LOG_IN = "renew the service account's token or the kubeconfig, which the API server does not accept"
CORRECT = "correct `spec` of the InferencePool"
"""The advice where the `spec` cannot be read; those above are for other troubles."""
CUT = "the connection was closed in the middle of an answer"
NO_EVENT = "watch pods: the answer is no event of pods"
LISTED = "the pods are those of the last list"
"""The effect of a watch that is silent or refused."""
UNREADY = "Kubernetes says that the pod is not ready"
INACTIVE = "the pod's annotation active-ports does not name port {}"
"""Why an endpoint takes no requests although it is there."""


class _Pod(NamedTuple):
    """What is read of a pod's object, which may have many kilobytes."""

    name: str
    found: Mapping[str, FoundPod]
    """Its endpoints; none while it has no address, or ends."""

    def says_same_as(self, other: "_Pod | None") -> bool:
        """Return whether `other`, read of an earlier object of the pod, has the same endpoints."""
        return other is not None and self.found == other.found and self.withheld == other.withheld

    @property
    def withheld(self) -> list[str]:
        return [one.withheld for one in self.found.values()]


class KubernetesSource:
    """Lists and watches pods with `api`.

    Without it the source makes a client for each watch, so that renewed tokens, certificates and
    authorities are used within `WATCH_SECONDS`, and at once where the old ones are refused.
    """

    def __init__(
        self, pods: config.PodSetSpec, *, api: ApiClient | None = None, rng: Random | None = None
    ) -> None:
        where = f"{pods.namespace}/{pods.inference_pool or pods.selector}"
        self.state = SourceState(
            f"pod-sets {pods.name} (kubernetes {where})",
            pods.model,
            time.monotonic,
            WATCH_SECONDS + 2 * OVERDUE_SECONDS,
        )
        self._pods = pods
        self._api = api
        self._rng = rng or Random()  # noqa: S311  spreads times
        self._version: str | None = None
        """The version from which a watch may begin; None: the pods have to be listed before."""
        self._watches_left = 0
        """How many watches may begin before the next list."""
        self._pool = InferencePool(pods.selector, ())
        self._known: dict[str, _Pod] = {}
        """The pods that have the labels of `_selector`, by uid."""
        self._selector = pods.selector
        self._lacking: dict[str, int] = {}
        """How many lists in a row have lacked each of these pods, by uid."""
        self._is_deaf = False
        """Whether the last watch was silent, so that only lists say how the pods change."""
        self._is_refused = False
        self._goes_on = False
        """Whether the next watch may go on at once, as the last one said something."""

    async def look(self) -> Mapping[str, FoundPod]:
        async with self._connected() as api:
            await self._ask_pool(api)
            await self._list(api)
        return {name: one for name, one in self._found().items() if not one.withheld}

    async def sets(self) -> AsyncIterator[Mapping[str, FoundPod]]:
        # Whoever asks anew may have lost the last set.
        self._version = None
        while True:
            try:
                async with self._connected() as api:
                    async for is_change in self._changes(api):
                        if self._is_deaf or self._is_refused:
                            self.state.spoke()
                        else:
                            self.state.answered()
                        if is_change:
                            yield self._found()
                if self._goes_on:
                    continue
            except SourceError as error:
                self._version = None
                only_listed = self._is_deaf or self._is_refused
                self.state.failed(str(error), LISTED if only_listed else STAY, error.advice)
            # The pods stay as they were until the API answers again.
            await asyncio.sleep(RETRY_SECONDS * self._rng.uniform(1, 2))

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[ApiClient]:
        """Provide a client. Make a SourceError of whatever keeps the API from being asked."""
        api = self._api
        try:
            api = api or await connect()
            yield api
        except SourceError:
            raise
        except (OSError, aiohttp.ClientError, ValueError) as error:
            at = f"the API server at {api.server}: " if api else ""
            is_cut = isinstance(error, aiohttp.ClientPayloadError)
            problem = at + (CUT if is_cut else in_words(error) or type(error).__name__)
            raise SourceError(problem, advice=REACH) from error
        finally:
            if api is not None and api is not self._api:
                await api.close()

    def _refused(
        self, verb: str, resource: str, status: int, reason: str | None, text: str
    ) -> SourceError:
        try:
            said = str(json.loads(text)["message"])
        except (ValueError, KeyError, TypeError):
            said = ""
        namespace = self._pods.namespace
        problem = f"{verb} {resource} in namespace {namespace}: {status} {reason or ''}"
        problem += f": {said}" if said else ""
        if status != 403:
            return SourceError(problem, advice=LOG_IN if status == 401 else REACH)
        advice = (
            f"add the verb {verb!r} for {resource!r} to the Role of the router's ServiceAccount in "
            f"namespace {namespace}; the router asks again every {RETRY_SECONDS:g} s"
        )
        problem += f"; its Role lacks the verb {verb!r} for {resource!r}"
        return SourceError(problem, advice=advice)

    async def _changes(self, api: ApiClient) -> AsyncIterator[bool]:
        """Watch the pods until the API ends the watch; yield whether what was heard is a change.

        List them before, unless the last watch can go on.
        """
        self._goes_on = False
        if await self._ask_pool(api):
            self._version = None
        if self._version is None or not self._watches_left:
            self._version = await self._list(api)
            self._watches_left = WATCHES
            yield True
        while self._lacking:
            await asyncio.sleep(RETRY_SECONDS)
            self._version = await self._list(api)
            yield True
        self._watches_left -= 1
        async with aclosing(self._watch(api)) as changes:
            other_pool = asyncio.ensure_future(self._other_pool(api))
            tasks: list[asyncio.Task[Any]] = [other_pool]
            try:
                while True:
                    change = asyncio.ensure_future(anext(changes, self))
                    tasks = [other_pool, change]
                    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                    if other_pool.done():
                        other_pool.result()
                        self._version = None
                        return
                    said = change.result()
                    if said is self:
                        return
                    yield said is True
            finally:
                await cancel(tasks)

    async def _other_pool(self, api: ApiClient) -> None:
        """Return once the InferencePool has changed."""
        while True:
            await asyncio.sleep(POOL_SECONDS)
            if await self._ask_pool(api):
                return

    async def _list(self, api: ApiClient) -> str | None:
        """Read all pods; return the version from which to watch.

        A pod that an earlier answer had stays until LISTS in a row have lacked it.
        """
        listed = await self._said("list", "pods", await self._ask_pods(api, ANSWER_SECONDS))
        try:
            # Go writes an empty list as null.
            found = {pod["metadata"]["uid"]: self._read(pod) for pod in listed["items"] or ()}
            names = {pod.name for pod in found.values()}
            version: str | None = listed["metadata"].get("resourceVersion")
        except (AttributeError, KeyError, TypeError) as error:
            raise SourceError("list pods: the answer is no list of pods", advice=REACH) from error
        if self._pool.selector != self._selector:
            self._selector = self._pool.selector
            self._known, self._lacking = {}, {}
        self._lacking = {
            uid: lacks
            for uid, pod in self._known.items()
            if uid not in found
            and pod.name not in names
            and (lacks := self._lacking.get(uid, 0) + 1) < LISTS
        }
        self._known = {**{uid: self._known[uid] for uid in self._lacking}, **found}
        return version

    async def _watch(self, api: ApiClient) -> AsyncGenerator[bool, None]:
        """Note the pods' changes since `_version`; yield after each line whether it was one.

        At the begin it yields False. Ends when the API ends this or lacks the version.
        """
        lasts = WATCH_SECONDS * self._rng.uniform(LEAST_WATCH, 1)
        try:
            answer = await self._ask_pods(
                api,
                lasts + OVERDUE_SECONDS,
                watch="true",
                resourceVersion=self._version or "",
                allowWatchBookmarks="true",
                timeoutSeconds=str(math.ceil(lasts)),
            )
            async with answer:
                if answer.status == GONE:
                    self._version = None
                    return
                self._is_refused = answer.status != 200
                if self._is_refused:
                    await self._said("watch", "pods", answer)
                yield False
                async for line in answer.content:
                    kind, pod = _event(line)
                    if kind == "ERROR":
                        code, reason = pod.get("code", 0), pod.get("reason")
                        if code == GONE:
                            self._version = None
                            return
                        raise self._refused("watch", "pods", code, reason, json.dumps(pod))
                    is_change, metadata = False, pod["metadata"]
                    if kind == "DELETED":
                        is_change = self._known.pop(metadata["uid"], None) is not None
                    elif kind in ("ADDED", "MODIFIED"):
                        try:
                            read = self._read(pod)
                        except (AttributeError, KeyError, TypeError) as error:
                            raise SourceError(NO_EVENT, advice=REACH) from error
                        is_change = not read.says_same_as(self._known.get(metadata["uid"]))
                        self._known[metadata["uid"]] = read
                    self._version = metadata.get("resourceVersion")
                    self._is_deaf, self._goes_on = False, True
                    yield is_change
            self._is_deaf = False
        except TimeoutError as error:
            self._is_deaf = True
            problem = (
                f"watch pods: the API server did not end a watch of {WATCH_SECONDS} s, so what it "
                "sends may not arrive"
            )
            raise SourceError(problem, advice=SILENT) from error
        except HttpProcessingError as error:
            raise SourceError("watch pods: an event is too long", advice=REACH) from error

    async def _ask_pods(self, api: ApiClient, seconds: float, **options: str) -> Any:
        path = f"/api/v1/namespaces/{self._pods.namespace}/pods"
        return await api.get(path, seconds, {"labelSelector": self._pool.selector, **options})

    async def _said(self, verb: str, resource: str, answer: Any) -> Any:
        """Return what an answer says. Raises SourceError if it is a refusal."""
        async with answer:
            if answer.status == 200:
                return await answer.json()
            text = await answer.text(errors="replace")
            raise self._refused(verb, resource, answer.status, answer.reason, text)

    async def _ask_pool(self, api: ApiClient) -> bool:
        name, namespace = self._pods.inference_pool, self._pods.namespace
        if not name:
            return False
        before = self._pool
        for group, released in POOL_GROUPS:
            path = f"/apis/{group}/{released}/namespaces/{namespace}/inferencepools/{name}"
            answer = await api.get(path, ANSWER_SECONDS, {})
            if answer.status == 404:
                answer.release()
                continue
            pool = await self._said("get", f"inferencepools.{group}", answer)
            try:
                self._pool = read_pool(pool["spec"])
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                problem = f"InferencePool {name!r} has no selector or ports that can be read"
                raise SourceError(problem, advice=CORRECT) from error
            return self._pool != before
        advice = f"create it in namespace {namespace}, or correct `inference-pool`"
        raise SourceError(f"no InferencePool {name!r}", advice=advice)

    def _found(self) -> dict[str, FoundPod]:
        found: dict[str, FoundPod] = {}
        for pod in self._known.values():
            found.update(pod.found)
        return found

    def _read(self, pod: Mapping[str, Any]) -> _Pod:
        """Return what is read of a pod. Raises AttributeError, KeyError and TypeError if it is none."""
        metadata, status = pod["metadata"], pod.get("status") or {}
        name, address = metadata["name"], status.get("podIP")
        if metadata.get("deletionTimestamp") or not address or status.get("phase") in ENDED:
            return _Pod(name, {})
        is_ready = any(
            one.get("type") == "Ready" and one.get("status") == "True"
            for one in status.get("conditions") or ()
        )
        active = active_ports(metadata.get("annotations"), self._pool.ports)
        found = {}
        for nth, port in enumerate(self._pool.ports or (self._pods.port,)):
            takes = not self._pool.ports or port in active
            found[f"{name}:{port}" if nth else name] = FoundPod(
                self._pods.pod(name, address, port=port, nth=nth),
                identity=metadata["uid"],
                place=Place(self._pods.namespace, port),
                withheld=UNREADY if not is_ready else "" if takes else INACTIVE.format(port),
            )
        return _Pod(name, found)


def _event(line: bytes) -> tuple[str, dict[str, Any]]:
    """Return what a watch says: ADDED, MODIFIED or DELETED of a pod, or BOOKMARK or ERROR."""
    try:
        said = json.loads(line)
        kind, about = said["type"], said["object"]
        if kind != "ERROR":
            metadata = about["metadata"]
            assert isinstance(metadata.get("resourceVersion", ""), str)
            assert kind == "BOOKMARK" or (isinstance(metadata["name"], str) and metadata["uid"])
    except (AssertionError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise SourceError(NO_EVENT, advice=REACH) from error
    return kind, about
