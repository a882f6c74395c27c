"""A cluster whose certificates and tokens are renewed while the router watches its pods."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from tests.servers.certificates import Authority
from warmpath.router.config.schema import PodSetSpec
from warmpath.router.pods.kubernetes import KubernetesSource


class Cluster:
    """An API server that wants a token, and that starts again with new certificates at the same port."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.token = ""
        self.pods: list[str] = []
        self.port = 0
        self._runner: web.AppRunner | None = None

    async def start(self, name: str) -> None:
        """Serve with a new authority; write it and a new token to the service account."""
        authority = Authority(self.folder, name)
        self.token = f"token-{name}"
        (self.folder / "token").write_text(self.token)
        (self.folder / "ca.crt").write_bytes(authority.ca.read_bytes())
        shown = authority.certificate(f"{name}-api")
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(shown.cert, shown.key)
        app = web.Application()
        app.router.add_get("/api/v1/namespaces/ns/pods", self._serve)
        self._runner = web.AppRunner(app, shutdown_timeout=0.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=context)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.Response(status=401)
        if "watch" in request.query:
            response = web.StreamResponse()
            await response.prepare(request)
            await asyncio.Event().wait()
        status = {"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
        items = [{"metadata": {"name": one, "uid": one}, "status": status} for one in self.pods]
        return web.json_response({"kind": "PodList", "metadata": {}, "items": items})


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    from kubernetes_asyncio.config import incluster_config

    monkeypatch.setattr("warmpath.router.pods.kubernetes.RETRY_SECONDS", 0.001)
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    cluster = Cluster(tmp_path)
    await cluster.start("first")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(cluster.port))
    yield cluster
    await cluster.stop()


async def test_the_next_connection_is_made_with_the_new_authority_and_token(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.pods = ["a"]
    sets = KubernetesSource(PodSetSpec(name="k", model="m", namespace="ns", selector="x=y")).sets()
    assert list(await anext(sets)) == ["a"]
    await cluster.stop()
    cluster.pods = ["a", "b"]
    await cluster.start("second")
    while list(await anext(sets)) != ["a", "b"]:
        pass
    await sets.aclose()  # type: ignore[attr-defined]
    assert "token-" not in caplog.text
