"""Finds pods through the Kubernetes API: by labels, or by an InferencePool's selector.

Needs the extra `warmpath[kubernetes]` and the right to get, list and watch pods (and to get the pool)
in the namespace.
"""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp

from indexer.process.command_line import in_words
from router.config import schema as config
from router.pods.discover import FoundPod, SourceError
from router.pods.source_state import STAY, SourceState

POOL_GROUPS = (("inference.networking.k8s.io", "v1"), ("inference.networking.x-k8s.io", "v1alpha2"))
RETRY_SECONDS = 2.0
ANSWER_SECONDS = 30.0
"""Longest time that the API may take to answer a list."""
WATCH_SECONDS = 300
GONE = 410
"""The status of a watch whose version is too old: the pods have to be listed again."""
NO_ACCESS = "no service account of a cluster and no kubeconfig"
MOUNT = "mount a service account's token, or name a kubeconfig in the variable KUBECONFIG"
REACH = "look whether the API server runs, and whether a NetworkPolicy lets this process reach it"
LOG_IN = "renew the service account's token or the kubeconfig, which the API server does not accept"
"""Orders for whoever runs the router."""


class KubernetesSource:
    """Lists and watches pods with `api`, a `kubernetes_asyncio` client.

    Without one it makes its own for each watch, so that renewed tokens, certificates and authorities are
    used within `WATCH_SECONDS`, and at once where the old ones are refused.
    """

    def __init__(
        self,
        pods: config.PodSetSpec,
        *,
        api: Any = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        where = f"{pods.namespace}/{pods.inference_pool or pods.selector}"
        self.state = SourceState(f"pod-sets {pods.name} (kubernetes {where})", pods.model, clock)
        self._pods = pods
        self._api = api
        self._known: dict[str, dict[str, Any]] = {}

    async def look(self) -> Mapping[str, FoundPod]:
        """Return the ready pods of this moment by name. Raises SourceError."""
        with self._told():
            async with self._connected() as api:
                await self._list(api)
        return self._found()

    async def sets(self) -> AsyncIterator[Mapping[str, FoundPod]]:
        """Yield all ready pods by name, now and after each change."""
        while True:
            try:
                with self._told():
                    async with self._connected() as api:
                        async for _ in self._changes(api):
                            self.state.answered()
                            yield self._found()
            except SourceError as error:
                self.state.failed(str(error), STAY, error.advice)
            # The pods stay as they were until the API answers again.
            await asyncio.sleep(RETRY_SECONDS)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Any]:
        if self._api is not None:
            yield self._api
            return
        api = await _connect()
        try:
            yield api
        finally:
            await api.close()

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Make a SourceError of whatever keeps the API from being asked."""
        try:
            yield
        except SourceError:
            raise
        except (OSError, aiohttp.ClientError, json.JSONDecodeError) as error:
            raise SourceError(in_words(error) or type(error).__name__, advice=REACH) from error

    def _refused(
        self, verb: str, resource: str, status: int, reason: str | None, text: str
    ) -> SourceError:
        """Return the error for an answer of the API; `text` is its body."""
        try:
            said = str(json.loads(text)["message"])
        except (ValueError, KeyError, TypeError):
            said = ""
        parts = [f"{verb} {resource} in namespace {self._pods.namespace}: {status} {reason or ''}"]
        if said:
            parts.append(f": {said}")
        advice = LOG_IN if status == 401 else REACH
        if status == 403:
            parts.append(f"; its Role lacks the verb {verb!r} for {resource!r}")
            advice = (
                f"add the verb {verb!r} for {resource!r} to the Role of the router's ServiceAccount "
                f"in namespace {self._pods.namespace}; the router asks again every {RETRY_SECONDS:g} s"
            )
        return SourceError("".join(parts), advice=advice)

    async def _changes(self, api: Any) -> AsyncIterator[None]:
        """List the pods, then watch them until the API ends the watch; yield after each change."""
        selector, version = await self._list(api)
        yield
        async for event in self._watch(api, selector, version):
            pod = event["object"]
            if event["type"] == "DELETED":
                self._known.pop(pod["metadata"]["uid"], None)
            elif event["type"] in ("ADDED", "MODIFIED"):
                self._known[pod["metadata"]["uid"]] = pod
            yield

    async def _list(self, api: Any) -> tuple[str, str | None]:
        """Read all pods; return the selector and the version from which to watch."""
        from kubernetes_asyncio import client  # noqa: PLC0415  an extra

        selector = self._pods.selector or await self._pool_selector(client, api)
        core: Any = client.CoreV1Api(api)
        answer = await core.list_namespaced_pod(
            self._pods.namespace,
            label_selector=selector,
            _preload_content=False,
            _request_timeout=ANSWER_SECONDS,
        )
        async with answer:
            if answer.status != 200:
                text = await answer.text()
                raise self._refused("list", "pods", answer.status, answer.reason, text)
            listed: dict[str, Any] = await answer.json()
        self._known = {pod["metadata"]["uid"]: pod for pod in listed["items"]}
        return selector, listed["metadata"].get("resourceVersion")

    async def _watch(
        self, api: Any, selector: str, version: str | None
    ) -> AsyncIterator[dict[str, Any]]:
        from kubernetes_asyncio import client, watch  # noqa: PLC0415  an extra

        async with watch.Watch() as watching:
            try:
                async for event in watching.stream(
                    client.CoreV1Api(api).list_namespaced_pod,
                    self._pods.namespace,
                    label_selector=selector,
                    resource_version=version,
                    timeout_seconds=WATCH_SECONDS,
                ):
                    if not isinstance(event, dict):
                        raise SourceError("watch pods: the answer is not JSON")
                    yield {"type": event["type"], "object": event["raw_object"]}
            except client.ApiException as error:
                if error.status == GONE:
                    return
                # The watch puts the message behind the reason.
                reason, _, said = str(error.reason).partition(": ")
                text = json.dumps({"message": said})
                raise self._refused("watch", "pods", error.status, reason, text) from error

    async def _pool_selector(self, client: Any, api: Any) -> str:
        """Return an InferencePool's selector as a label selector."""
        custom = client.CustomObjectsApi(api)
        error: Exception | None = None
        for group, version in POOL_GROUPS:
            try:
                pool = await custom.get_namespaced_custom_object(
                    group, version, self._pods.namespace, "inferencepools",
                    self._pods.inference_pool, _request_timeout=ANSWER_SECONDS,
                )  # fmt: skip
            except client.ApiException as failure:
                if failure.status != 404:
                    resource = f"inferencepools.{group}"
                    text = str(failure.body or "")
                    raise self._refused(
                        "get", resource, failure.status, failure.reason, text
                    ) from failure
                error = failure
                continue
            selector = pool["spec"]["selector"]
            labels = selector.get("matchLabels", selector)
            return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
        name, namespace = self._pods.inference_pool, self._pods.namespace
        advice = f"create it in namespace {namespace}, or correct `inference-pool`"
        raise SourceError(f"no InferencePool {name!r}", advice=advice) from error

    def _found(self) -> dict[str, FoundPod]:
        found = {}
        for uid, pod in self._known.items():
            status, name = pod.get("status") or {}, pod["metadata"]["name"]
            address = status.get("podIP")
            if pod["metadata"].get("deletionTimestamp") or not address or not _is_ready(status):
                continue
            found[name] = FoundPod(self._pods.pod(name, address), identity=uid)
        return found


def _is_ready(status: Mapping[str, Any]) -> bool:
    return any(
        one.get("type") == "Ready" and one.get("status") == "True"
        for one in status.get("conditions") or ()
    )


async def _connect() -> Any:
    """Return a client with the pod's service account, or else with the user's kubeconfig.

    Raises SourceError if there is neither.
    """
    from kubernetes_asyncio import client  # noqa: PLC0415  an extra
    from kubernetes_asyncio import config as access  # noqa: PLC0415
    from kubernetes_asyncio.config import kube_config  # noqa: PLC0415

    try:
        access.load_incluster_config()  # type: ignore[no-untyped-call]
    except access.ConfigException as error:
        # Without a file the library would log a warning for each try.
        if not _is_there(kube_config.KUBE_CONFIG_DEFAULT_LOCATION):
            raise SourceError(NO_ACCESS, advice=MOUNT) from error
        try:
            await access.load_kube_config()
        except (access.ConfigException, TypeError, ValueError) as failure:
            problem = f"the kubeconfig cannot be used: {failure}"
            raise SourceError(problem, advice=MOUNT) from failure
    return client.ApiClient()


def _is_there(kubeconfig: str) -> bool:
    """Return whether one of the files of a path like KUBECONFIG is there."""
    return any(Path(name).expanduser().is_file() for name in kubeconfig.split(os.pathsep) if name)
