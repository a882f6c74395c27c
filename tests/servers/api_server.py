"""The part of a Kubernetes API server that a router asks: pods, an InferencePool, llm-d's objects.

It keeps versions and their history, as the real one does, and lets a caller do only what its Role says.
"""

import asyncio
import base64
import binascii
import json
import ssl
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

from aiohttp import web

NAMESPACE = "ns"
USER = "system:serviceaccount:ns:warmpath"
POOLS = "inference.networking.k8s.io"


class Event(NamedTuple):
    """A change of one pod; None: it was not there, or is not there any more."""

    version: int
    before: dict[str, Any] | None
    after: dict[str, Any] | None


class ApiServer:
    """Serves one namespace. `rules` are those of a Role; None: everything is allowed.

    With `token`, whoever does not show it is refused. An async context manager.
    """

    def __init__(
        self,
        rules: Sequence[Mapping[str, Any]] | None = None,
        *,
        token: str = "",
        tls: ssl.SSLContext | None = None,
        port: int = 0,
    ) -> None:
        self.rules = rules
        self.port = port
        self._token = token
        self._tls = tls
        self.pool = {"app": "vllm"}
        """The labels of the InferencePool `pool`."""
        self.ports = [8000]
        """The target ports of the pool."""
        self.is_silent = False
        """Whether watches say nothing and do not end, as behind a balancer that has dropped them."""
        self.next_line = b""
        """What the next watch says before anything else."""
        self.refused = 0
        """How many requests no rule allowed."""
        self.llmd: dict[str, list[dict[str, Any]]] = {}
        """llm-d's objects of the kinds that the cluster has, by KIND.GROUP."""
        self.has_pool = True
        """Whether the InferencePool `pool` is there."""
        self.unready = 0
        """How many of the next requests are refused, as a server that starts does before it knows Roles."""
        self.late = 0
        """How many of the next watches begin at a version that the server has not reached yet."""
        self.forgets = 0
        """How many of the next pages that go on with a list are of a version that is too old."""
        self.empty_lists = 0
        """How many of the next lists have no pods."""
        self.lists = 0
        """How many lists have begun."""
        self.bookmarks = True
        """Whether a watch ends with a bookmark, if it may."""
        self.watches = 0
        """How many watches have begun."""
        self._finishing = asyncio.Event()
        self.asked_by = ""
        """The User-Agent of the last list."""
        self.failures = 0
        """How many of the next requests are answered with 500."""
        self.address = ""
        self._pods: dict[str, dict[str, Any]] = {}
        self._version = 1
        self._oldest = 0
        self._history: list[Event] = []
        self._snapshots: dict[int, list[dict[str, Any]]] = {}
        """The pods of each version of which a list goes on."""
        self._changed = asyncio.Condition()
        self._watches: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/api/v1/namespaces/{namespace}/pods", self._serve_pods)
        app.router.add_get("/api/v1/namespaces/{namespace}", self._serve_namespace)
        pool = f"/apis/{{group}}/{{version}}/namespaces/{NAMESPACE}/inferencepools/{{name}}"
        app.router.add_get(pool, self._serve_pool)
        of_llmd = f"/apis/{{group}}/v1alpha2/namespaces/{NAMESPACE}/{{kind}}"
        app.router.add_get(of_llmd, self._serve_llmd)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=self._tls).start()
        self.port = self._runner.addresses[0][1]
        self.address = f"http://127.0.0.1:{self.port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.end_watches()
        await self._runner.cleanup()

    def ready(self, labels: Mapping[str, str]) -> dict[str, str]:
        """Return the uids of the ready pods with these labels, by name."""
        return {
            pod["metadata"]["name"]: uid
            for uid, pod in self._pods.items()
            if _has(pod, labels) and pod["status"]["conditions"][0]["status"] == "True"
        }

    async def put(
        self,
        name: str,
        uid: str,
        *,
        ready: bool = True,
        ends: bool = False,
        ip: str = "10.0.0.1",
        annotations: Mapping[str, str] | None = None,
        phase: str = "Running",
        **labels: str,
    ) -> None:
        """Add or change a pod; `ends`: it was asked to end."""
        pod: dict[str, Any] = {
            "apiVersion": "v1", "kind": "Pod", "spec": {"containers": []},
            "metadata": {
                "name": name, "uid": uid, "labels": labels, "annotations": annotations or {},
            },
            "status": {
                "phase": phase,
                "podIP": ip,
                "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
            },
        }  # fmt: skip
        if ends:
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        await self._change(uid, pod)

    async def delete(self, uid: str) -> None:
        """Remove a pod, if it is there."""
        if uid in self._pods:
            await self._change(uid, None)

    async def _change(self, uid: str, pod: dict[str, Any] | None) -> None:
        self._version += 1
        before = self._pods.pop(uid, None)
        if pod is not None:
            pod["metadata"]["resourceVersion"] = str(self._version)
            self._pods[uid] = pod
        async with self._changed:
            self._history.append(Event(self._version, before, pod))
            self._changed.notify_all()

    def compact(self) -> None:
        """Forget the history, so that watches have to begin with a list, and lists have to begin anew."""
        self._oldest = self._version
        self._snapshots.clear()
        self._history.clear()

    async def finish_watches(self) -> None:
        """End every watch as one whose time is over ends, and wait until others have begun."""
        before = self.watches
        await self.finish_watches_unheard()
        while self.watches == before:
            await asyncio.sleep(0.001)

    async def finish_watches_unheard(self) -> None:
        """End every watch as one whose time is over ends."""
        finishing = self._finishing
        self._finishing = asyncio.Event()
        async with self._changed:
            finishing.set()
            self._changed.notify_all()

    def end_watches(self) -> None:
        """Cut every watch off."""
        for task in self._watches:
            task.cancel()

    def _lacks(self, verb: str, group: str, resource: str, name: str = "") -> web.Response | None:
        """Return the refusal of a request that no rule allows."""
        allowed = self.rules is None or any(
            group in rule["apiGroups"]
            and resource in rule["resources"]
            and verb in rule["verbs"]
            and name in rule.get("resourceNames", [name])
            for rule in self.rules
        )
        if allowed and not self.unready:
            return None
        self.unready = max(self.unready - 1, 0)
        self.refused += 1
        named = f' "{name}"' if name else ""
        message = (
            f'{resource}{named} is forbidden: User "{USER}" cannot {verb} resource "{resource}" in API '
            f'group "{group}" in the namespace "{NAMESPACE}"'
        )
        return _status(403, "Forbidden", message)

    def _fails(self) -> web.Response | None:
        if not self.failures:
            return None
        self.failures -= 1
        return _status(500, "InternalError", "etcd has no leader")

    async def _serve_pool(self, request: web.Request) -> web.Response:
        group, name = request.match_info["group"], request.match_info["name"]
        if refused := self._lacks("get", group, "inferencepools", name) or self._fails():
            return refused
        if (group, name) != (POOLS, "pool") or not self.has_pool:
            return _status(404, "NotFound", f'inferencepools "{name}" not found')
        ports = [{"number": port} for port in self.ports]
        return web.json_response(
            {"spec": {"selector": {"matchLabels": self.pool}, "targetPorts": ports}}
        )

    async def _serve_llmd(self, request: web.Request) -> web.Response:
        group, kind = request.match_info["group"], request.match_info["kind"]
        if refused := self._lacks("list", group, kind) or self._fails():
            return refused
        if (items := self.llmd.get(f"{kind}.{group}")) is None:
            return web.Response(status=404, text="404 page not found\n")
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": items})

    async def _serve_pods(self, request: web.Request) -> web.StreamResponse:
        if self._token and request.headers.get("Authorization") != f"Bearer {self._token}":
            return _status(401, "Unauthorized", "Unauthorized")
        verb = "watch" if "watch" in request.query else "list"
        if refused := self._lacks(verb, "", "pods") or self._fails():
            return refused
        chosen = request.query.get("labelSelector", "")
        labels = dict(one.split("=") for one in chosen.split(",") if one)
        if verb == "watch":
            return await self._watch(request, labels)
        self.lists += "continue" not in request.query
        self.asked_by = request.headers.get("User-Agent", "")
        version, start = self._version, 0
        if token := request.query.get("continue"):
            try:
                version, start = json.loads(base64.b64decode(token, validate=True))
            except (binascii.Error, ValueError):
                return _status(
                    400, "BadRequest", "invalid continue token: continue key is not valid"
                )
            if self.forgets:
                self.forgets -= 1
                self._snapshots.clear()
            if version not in self._snapshots:
                return _status(410, "Expired", "The provided continue parameter is too old")
            found = self._snapshots[version]
        else:
            named = sorted(self._pods.values(), key=lambda pod: str(pod["metadata"]["name"]))
            found = [pod for pod in named if _has(pod, labels)]
            if request.match_info["namespace"] != NAMESPACE:
                found = []
            if self.empty_lists:
                self.empty_lists -= 1
                found = []
        limit = int(request.query.get("limit", "0")) or len(found)
        metadata = {"resourceVersion": str(version)}
        if start + limit < len(found):
            self._snapshots[version] = found
            token = base64.b64encode(json.dumps([version, start + limit]).encode()).decode()
            metadata["continue"] = token
        items = found[start : start + limit]
        return web.json_response({"kind": "PodList", "metadata": metadata, "items": items or None})

    async def _serve_namespace(self, request: web.Request) -> web.Response:
        name = request.match_info["namespace"]
        if refused := self._lacks("get", "", "namespaces", name) or self._fails():
            return refused
        if name != NAMESPACE:
            return _status(404, "NotFound", f'namespaces "{name}" not found')
        return web.json_response({"kind": "Namespace", "metadata": {"name": name}})

    async def _watch(self, request: web.Request, labels: Mapping[str, str]) -> web.StreamResponse:
        version = int(request.query["resourceVersion"])
        task = asyncio.current_task()
        assert task is not None
        self._watches.add(task)
        self.watches += 1
        finishing = self._finishing
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            line, self.next_line = self.next_line, b""
            await response.write(line)
            if self.late:
                self.late -= 1
                message = f"Timeout: Too large resource version: {version}, current: 1"
                await response.write(_line("ERROR", _error(504, "Timeout", message)))
                return response
            while version >= self._oldest:
                if self.is_silent:
                    await asyncio.Event().wait()
                for event in [one for one in self._history if one.version > version]:
                    version = event.version
                    await response.write(_told(event, labels))
                async with self._changed:
                    while self._version <= version and not finishing.is_set():
                        await self._changed.wait()
                if finishing.is_set():
                    bookmark = {"kind": "Pod", "metadata": {"resourceVersion": str(version)}}
                    if self.bookmarks and request.query.get("allowWatchBookmarks") == "true":
                        await response.write(_line("BOOKMARK", bookmark))
                    return response
            message = f"too old resource version: {version} ({self._oldest})"
            await response.write(_line("ERROR", _error(410, "Expired", message)))
        finally:
            self._watches.discard(task)
        return response


def _status(code: int, reason: str, message: str) -> web.Response:
    return web.json_response(_error(code, reason, message), status=code)


def _error(code: int, reason: str, message: str) -> dict[str, Any]:
    return {
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code,
    }  # fmt: skip


def _line(kind: str, about: Mapping[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": about}).encode() + b"\n"


def _has(pod: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    return pod is not None and labels.items() <= pod["metadata"]["labels"].items()


def _told(event: Event, labels: Mapping[str, str]) -> bytes:
    """Return what a watch with a selector says of a change; of a pod that leaves it, its last state."""
    was, is_ = _has(event.before, labels), _has(event.after, labels)
    if not (was or is_):
        return b""
    kind = "MODIFIED" if was and is_ else "ADDED" if is_ else "DELETED"
    pod = event.after if is_ else event.before
    assert pod is not None
    metadata = {**pod["metadata"], "resourceVersion": str(event.version)}
    return _line(kind, {**pod, "metadata": metadata})
