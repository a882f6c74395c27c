"""Asks an API server of Kubernetes for pods, an InferencePool and llm-d's objects."""

import ssl
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

from warmpath.process.command_line import version
from warmpath.router.pods.discover import SourceError
from warmpath.router.pods.inference_pool import InferencePool, read_pool
from warmpath.router.pods.refusal import NOT_FOUND, Refused, said
from warmpath.router.pods.watched import Status

POOL_GROUPS = (("inference.networking.k8s.io", "v1"), ("inference.networking.x-k8s.io", "v1alpha2"))
LLMD_GROUPS = ("llm-d.ai", "inference.networking.x-k8s.io")
"""The group of llm-d's objects, and the one that they had before; both in version v1alpha2."""
ANSWER_SECONDS = 30.0
"""How long an answer may take that is no watch."""
CORRECT = "correct `spec` of the InferencePool"

MOST_LINE_BYTES = 4 << 20
"""A longer event of a watch is an error; an object in etcd has 1.5 MiB at most."""


@dataclass(frozen=True, slots=True)
class Access:
    """The way to an API server."""

    server: str
    """Its URL, without a slash at the end."""
    token: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = None
    """None: it is asked over plain HTTP."""
    tls_name: str = ""
    """The name in its certificate; empty: its host."""
    proxy: str = field(default="", repr=False)
    """The URL of a proxy, which may have a password; empty: none."""


class ApiClient:
    """A client of one API server. Close it after use."""

    def __init__(self, access: Access) -> None:
        self.server = access.server
        headers = {"Accept": "application/json", "User-Agent": f"warmpath/{version()}"}
        if access.token:
            headers["Authorization"] = f"Bearer {access.token}"
        # aiohttp takes a line of twice its buffer.
        self._session = aiohttp.ClientSession(headers=headers, read_bufsize=MOST_LINE_BYTES // 2)
        self._options: dict[str, Any] = {
            "ssl": access.tls or True,
            "server_hostname": access.tls_name or None,
            "proxy": access.proxy or None,
            # The token is for this server only.
            "allow_redirects": False,
        }

    async def page(self, namespace: str, selector: str, limit: int, token: str) -> bytes:
        """Return a page of a list of pods: the first, or the one after the page that has the token.

        Raises Refused.
        """
        query = {"labelSelector": selector, "limit": str(limit)}
        if token:
            query["continue"] = token
        answer = await self._get(f"/api/v1/namespaces/{namespace}/pods", query)
        return await body_of(answer, "list", "pods", namespace)

    async def watch(
        self, namespace: str, selector: str, version: str, lasts: int, seconds: float
    ) -> aiohttp.ClientResponse:
        """Return the answer to a watch of pods that is to last so long, cut off after `seconds`."""
        query = {
            "labelSelector": selector,
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(lasts),
        }
        return await self._get(f"/api/v1/namespaces/{namespace}/pods", query, seconds)

    async def has_namespace(self, name: str) -> bool | None:
        """Return whether a namespace is there; None: the API server does not say."""
        async with await self._get(f"/api/v1/namespaces/{name}", {}) as answer:
            code = said(await answer.read()).code
        return True if answer.status == 200 else False if code == NOT_FOUND else None

    async def pool(self, namespace: str, name: str) -> InferencePool:
        """Return an InferencePool's labels and ports. Raises SourceError, also if it is not there."""
        for group, released in POOL_GROUPS:
            path = f"/apis/{group}/{released}/namespaces/{namespace}/inferencepools/{name}"
            answer = await self._get(path, {})
            if answer.status == NOT_FOUND:
                answer.release()
                continue
            body = await body_of(answer, "get", f"inferencepools.{group}", namespace)
            try:
                return read_pool(msgspec.json.decode(body)["spec"])
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                problem = f"InferencePool {name!r} has no selector or ports that can be read"
                raise SourceError(problem, advice=CORRECT) from error
        advice = f"create it in namespace {namespace}, or correct `inference-pool`"
        raise SourceError(f"no InferencePool {name!r}", advice=advice)

    async def llmd_objects(self, namespace: str, kind: str) -> list[bytes]:
        """Return the lists of a kind of llm-d's objects: one for each group that the cluster has.

        Raises Refused.
        """
        found = []
        for group in LLMD_GROUPS:
            answer = await self._get(f"/apis/{group}/v1alpha2/namespaces/{namespace}/{kind}", {})
            if answer.status == NOT_FOUND:
                answer.release()
            else:
                found.append(await body_of(answer, "list", f"{kind}.{group}", namespace))
        return found

    async def _get(
        self, path: str, query: dict[str, str], seconds: float = ANSWER_SECONDS
    ) -> aiohttp.ClientResponse:
        timeout = aiohttp.ClientTimeout(total=seconds)
        return await self._session.get(
            self.server + path, params=query, timeout=timeout, **self._options
        )

    async def close(self) -> None:
        await self._session.close()


async def body_of(
    answer: aiohttp.ClientResponse, verb: str, resource: str, namespace: str
) -> bytes:
    """Return an answer's body. Raises Refused if it is a refusal."""
    async with answer:
        body = await answer.read()
    if answer.status != 200:
        status = Status(answer.status, answer.reason or "", said(body).message)
        raise Refused(verb, resource, namespace, status)
    return body
