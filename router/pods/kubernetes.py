"""Finds pods through the Kubernetes API: by labels, or by an InferencePool's selector.

Needs the extra `warmpath[kubernetes]` and the right to get, list and watch pods (and to get the pool)
in the namespace.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from router.config import schema as config
from router.pods.discover import FoundPod

log = logging.getLogger(__name__)

POOL_GROUPS = (("inference.networking.k8s.io", "v1"), ("inference.networking.x-k8s.io", "v1alpha2"))
RETRY_SECONDS = 2.0
WATCH_SECONDS = 300


class KubernetesSource:
    """Lists and watches pods with `api`, a `kubernetes_asyncio` client.

    Without one it makes its own for each watch, so that renewed tokens, certificates and authorities are
    used within `WATCH_SECONDS`, and at once where the old ones are refused.
    """

    def __init__(self, pods: config.PodSetSpec, *, api: Any = None) -> None:
        where = f"{pods.namespace}/{pods.inference_pool or pods.selector}"
        self.name = f"pod-sets {pods.name} (kubernetes {where})"
        self._problem = ""
        self._pods = pods
        self._api = api
        self._known: dict[str, dict[str, Any]] = {}

    async def sets(self) -> AsyncIterator[Mapping[str, FoundPod]]:
        """Yield all ready pods by name, now and after each change."""
        from kubernetes_asyncio import client  # noqa: PLC0415  an extra

        while True:
            try:
                async with self._connected() as api:
                    async for _ in self._changes(client, api):
                        self._problem = ""
                        yield self._found()
            except client.ApiException as error:
                self._say(f"{error.status} {error.reason}")
            except (OSError, aiohttp.ClientError, TimeoutError) as error:
                self._say(str(error))
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

    def _say(self, problem: str) -> None:
        """Log a problem once, until it has ended or changed."""
        if problem != self._problem:
            log.warning("%s: %s; the pods stay as they were", self.name, problem)
        self._problem = problem

    async def _changes(self, client: Any, api: Any) -> AsyncIterator[None]:
        """List the pods, then watch them until the API ends the watch; yield after each change."""
        selector = self._pods.selector or await self._pool_selector(client, api)
        core = client.CoreV1Api(api)
        listed = await self._call(core, selector)
        self._known = {pod["metadata"]["uid"]: pod for pod in listed["items"]}
        yield
        version = listed["metadata"].get("resourceVersion")
        async for event in self._watch(core, selector, version):
            pod = event["object"]
            if event["type"] == "ERROR":
                # The version is too old: list again.
                return
            if event["type"] == "DELETED":
                self._known.pop(pod["metadata"]["uid"], None)
            elif event["type"] in ("ADDED", "MODIFIED"):
                self._known[pod["metadata"]["uid"]] = pod
            yield

    async def _call(self, core: Any, selector: str) -> dict[str, Any]:
        answer = await core.list_namespaced_pod(
            self._pods.namespace, label_selector=selector, _preload_content=False
        )
        async with answer:
            if answer.status != 200:
                raise OSError(f"list pods: {answer.status} {answer.reason}")
            listed: dict[str, Any] = await answer.json()
        return listed

    async def _watch(
        self, core: Any, selector: str, version: str | None
    ) -> AsyncIterator[dict[str, Any]]:
        from kubernetes_asyncio import watch  # noqa: PLC0415  an extra

        async with watch.Watch() as watching:
            async for event in watching.stream(
                core.list_namespaced_pod,
                self._pods.namespace,
                label_selector=selector,
                resource_version=version,
                timeout_seconds=WATCH_SECONDS,
            ):
                yield {"type": event["type"], "object": event["raw_object"]}

    async def _pool_selector(self, client: Any, api: Any) -> str:
        """Return an InferencePool's selector as a label selector."""
        custom = client.CustomObjectsApi(api)
        error: Exception | None = None
        for group, version in POOL_GROUPS:
            try:
                pool = await custom.get_namespaced_custom_object(
                    group, version, self._pods.namespace, "inferencepools",
                    self._pods.inference_pool,
                )  # fmt: skip
            except client.ApiException as failure:
                if failure.status != 404:
                    raise
                error = failure
                continue
            selector = pool["spec"]["selector"]
            labels = selector.get("matchLabels", selector)
            return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
        raise OSError(f"no InferencePool {self._pods.inference_pool!r}") from error

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

    Raises OSError if there is neither.
    """
    from kubernetes_asyncio import client  # noqa: PLC0415  an extra
    from kubernetes_asyncio import config as access  # noqa: PLC0415

    try:
        access.load_incluster_config()  # type: ignore[no-untyped-call]
    except access.ConfigException:
        try:
            await access.load_kube_config()
        except (access.ConfigException, TypeError) as error:
            # A missing kubeconfig makes the library raise a TypeError.
            raise OSError("no service account of a cluster and no kubeconfig") from error
    return client.ApiClient()
